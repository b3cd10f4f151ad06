"""The actor slot (`ActorSlot`): the context of an actor. Code that runs below the actor, such as a log
filter, can read the current delivery."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

import anyio

from headrace.runtime.isolation import own_task

if TYPE_CHECKING:
    from headrace.runtime.messages.batch import Batch
    from headrace.runtime.messages.message import Message

NEVER = float("inf")


class ActorSlot:
    """The slot of one actor.

    Attributes:
        task: the actor's task, which makes the slot.
        delivery: the current message or batch. None in between.
        until: the deadline of the handler, on the actor's clock.
        scope: the scope to cancel in order to stop the handler. A cancelled scope is replaced.
        overdue: whether it was cancelled because of the timeout.
    """

    __slots__ = ("delivery", "overdue", "scope", "task", "until")

    def __init__(self) -> None:
        self.task = own_task()
        self.delivery: Message | Batch | None = None
        self.until = NEVER
        self.overdue = False
        self.scope = anyio.CancelScope()

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
