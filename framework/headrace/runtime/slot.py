"""The actor slot (`ActorSlot`): the context of an actor. Code that runs below the actor, such as a log
filter, can read the current delivery."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING

import anyio

from headrace.runtime.isolation import absorb_cancellation, is_cancelled, own_task
from headrace.runtime.user_code import interrupts

if TYPE_CHECKING:
    from headrace.runtime.messages.batch import Batch
    from headrace.runtime.messages.message import Message

NEVER = float("inf")


class ActorSlot:
    """The slot of one actor's task, which makes it.

    Args:
        whole: the scope of all that the task does. It is cancelled to stop the actor.

    Attributes:
        task: the task.
        delivery: the current message or batch. None in between.
        until: the deadline of the handler, on the actor's clock.
        scope: the scope to cancel in order to stop the handler. A cancelled scope is replaced.
        overdue: whether it was cancelled because of the timeout, or since its message was cancelled.
        thread: the thread in which the handler runs, if it does in another one.
        spoilt: whether the task can't be used any more, since your code has left a scope open in it, or since it was
            cancelled to stop one message.
        replaced: whether another task takes the place of this one, because of that message.
    """

    __slots__ = ("_whole", "delivery", "overdue", "replaced", "scope", "spoilt", "task", "thread", "until")

    def __init__(self, whole: anyio.CancelScope) -> None:
        self._whole = whole
        self.task = own_task()
        self.spoilt = False
        self.replaced = False
        self.thread: int | None = None
        self.delivery: Message | Batch | None = None
        self.until = NEVER
        self.overdue = False
        self.scope = anyio.CancelScope()

    @property
    def stopped(self) -> bool:
        """Whether the handler is to stop, because of its timeout or since the actor ends."""
        return self._whole.cancel_called or self.scope.cancel_called

    def is_ended_by(self, error: BaseException) -> bool:
        """Return whether an exception of a handler ends the actor, or the program. Otherwise the handler has failed with it,
        such as with a cancellation of something that it waited for."""
        return self.stopped if isinstance(error, asyncio.CancelledError) else interrupts(error)

    async def recover(self) -> None:
        """Look after the task, when a handler has ended and `task.cancelling()`. Raises `CancelledError` if the handler was to
        stop, see `absorb_cancellation`.
        """
        if is_cancelled() and not self.stopped:
            self.spoilt = True
        else:
            await absorb_cancellation(self.task)

    def stop_message(self, *, scoped: bool) -> None:
        """Stop the handler of the current message or batch.

        Args:
            scoped: whether calls of the handler have a scope. Otherwise the task ends, and another one takes its place.
        """
        self.until, self.overdue = NEVER, True
        if scoped:
            self.scope.cancel()
        else:
            self.spoilt = self.replaced = True
            self._whole.cancel()

    def in_work(self) -> Message | Batch | None:
        """Return the current message or batch."""
        return self.delivery

    def clear(self) -> None:
        """Reset the slot for the next lane."""
        self.delivery = None
        self.until = NEVER
        self.overdue = False
        self.scope = anyio.CancelScope()


current_slot: ContextVar[ActorSlot | None] = ContextVar("headrace_bench", default=None)
"""The slot of the actor that this code runs below. It is set once per actor, since setting it for each
message would cost too much."""
