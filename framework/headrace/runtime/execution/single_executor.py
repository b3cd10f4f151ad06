"""The executor of single messages: what an actor does with a lane if its handler takes one message at
a time."""

from __future__ import annotations

from contextvars import Context, copy_context
from typing import Any

import anyio.lowlevel

from headrace.model.outcomes import Reject, Retry, misreturned
from headrace.runtime.execution.actors import Crew
from headrace.runtime.execution.execution import Execution
from headrace.runtime.isolation import changed, in_context, undisturbed
from headrace.runtime.messages.message import Message
from headrace.runtime.slot import NEVER, ActorSlot
from headrace.runtime.user_code import interrupts

STRETCH = 64
"""Number of messages after which an actor looks whether to yield the event loop, in case its handler never waited."""

SLICE = 0.0005
"""Seconds for which handlers that never wait may keep the event loop, but at least for a stretch."""


class SingleExecutor:
    """Runs the messages of a lane one after the other.

    Args:
        execution: the parts that it uses.
        timeout: seconds that the handler may take, or None.
    """

    unit = 1
    batches: int | None = None
    _one_at_a_time = False
    """Whether `_run` returns after each message."""

    def __init__(self, execution: Execution, timeout: float | None) -> None:
        self._decode = execution.decode
        self._open = execution.opens
        self._call = execution.call
        self._timeout = timeout
        self._lanes = execution.lanes
        self._acknowledger = execution.acknowledger
        self._failure_handler = execution.failure_handler
        self._suspects = execution.suspects
        self._clock = execution.clock
        self._durations = execution.durations

    async def run(self, message: Message, slot: ActorSlot, crew: Crew) -> Message | None:
        """Run messages until none is left to take, until a timeout has cancelled the actor slot's scope, or until the task is
        spoilt. Then it returns the last message."""
        base, following = copy_context(), message
        stretch, began = 0, self._clock()
        while True:
            context = base.copy()
            done = await in_context(context, self._run, following, slot, crew, context, base)
            if done is None or slot.overdue or slot.spoilt:
                return done
            stretch += 1
            if stretch == STRETCH:
                stretch, began = 0, await self._rest(began)
            after = self._lanes.next(done, crew.onward)
            if after is None:
                return None
            following = after

    async def _run(
        self, message: Message, slot: ActorSlot, crew: Crew, context: Context, base: Context
    ) -> Message | None:
        """Run messages until none is left to take, or until a handler has changed the context, or was stopped. Then it
        returns its message.

        For each message: check its lease and its life, decode it, call the handler, and record the outcome. All of it is
        one function, and one coroutine for many lanes, since a call costs as much as any of these steps.
        """
        next_message, clock, decode, opens = self._lanes.next, self._clock, self._decode, self._open
        call, timed, ack = self._call, self._timeout is not None, self._acknowledger.ack
        durations = self._durations
        cancelling = slot.task.cancelling
        following: Message | None = message
        stretch, began = 0, clock()
        while following is not None:
            message = slot.delivery = following
            now = clock()
            if (
                message.lease.term.until <= now
                or message.alive_until <= now
                or (message.lease.cancelled and message.cancelled)
            ):
                self._leave_out(message, now)
            else:
                try:
                    if opens is not None:
                        opens(message)
                    payload = message._payload = decode(message.raw)
                except BaseException as error:  # code of users in a type may raise anything
                    self._undecodable(message, error)
                else:
                    if measured := now >= durations.due:
                        message.began = now
                        if sampled := now >= durations.sample_due:
                            durations.begin_sample(message.lease, now)
                    try:
                        if timed or message.crashes:
                            result = await self._call_guarded(payload, message, slot)
                        else:
                            result = await (message.call or call)(payload, message)
                        if cancelling():
                            await slot.recover()
                    except BaseException as error:
                        if self._ends_actor(message, error, slot):
                            raise
                        if cancelling():
                            await slot.recover()
                    else:
                        if result is None and not message.settled and not slot.overdue:
                            message.settled = True
                            ack(message)
                        else:
                            self._finish(message, result, slot)
                    finally:
                        if measured:
                            ended = clock()
                            message.lease.note_seconds(message.seq, now, ended)
                            if sampled:
                                durations.add(now, ended)
                    if message.xid is not None:  # acked in a transaction of the handler
                        await self._acknowledger.confirm(message, self._failure_handler.failed)
                    slot.until = NEVER
            stretch += 1
            if stretch == STRETCH:  # while the next message still waits in its lane, as the actor may be cancelled here
                stretch, began = 0, await self._rest(began)
            if slot.overdue or slot.spoilt or self._one_at_a_time or changed(context, base):
                return message
            following = next_message(message, crew.onward)
        return None

    async def _rest(self, began: float) -> float:
        """Yield the event loop, if the actor has it since `began` and that was a slice ago. Returns since when it has it.
        A clock that stands still doesn't tell."""
        if began < self._clock() < began + SLICE:
            return began
        await undisturbed(anyio.lowlevel.checkpoint)
        return self._clock()

    def _leave_out(self, message: Message, now: float) -> None:
        """Settle a message that may not start: its lease is over, it is cancelled, or it has expired."""
        if message.lease.deadline <= now:
            self._acknowledger.give_up(message)
        elif message.cancelled:
            self._acknowledger.cancel(message)
        else:
            self._acknowledger.expire(message)

    def _undecodable(self, message: Message, error: BaseException) -> None:
        """Settle a message whose payload can't be decoded. Raises what ends the program."""
        if interrupts(error):
            raise error
        self._failure_handler.undecodable(message, error)

    def _ends_actor(self, message: Message, error: BaseException, slot: ActorSlot) -> bool:
        """Record the outcome after the handler has raised. Returns whether the error ends the actor. It is raised by the
        caller, since the frame of a function that raises its argument is in a cycle with the error's traceback."""
        if not isinstance(error, Exception) and slot.is_ended_by(error):
            self._failure_handler.stopped(message, slot)
            return True
        self._failure_handler.failed(message, error)
        return False

    async def _call_guarded(self, payload: Any, message: Message, slot: ActorSlot) -> Any:
        """Call a handler that has a timeout, or with a message that a worker held when it died. The wait for its turn
        doesn't count against the timeout."""
        call = message.call or self._call
        if message.crashes:
            async with self._suspects.starting((message,)):
                self._start_timeout(slot)
                return await call(payload, message)
        self._start_timeout(slot)
        return await call(payload, message)

    def _start_timeout(self, slot: ActorSlot) -> None:
        if self._timeout is not None:
            slot.until = self._clock() + self._timeout

    def _finish(self, message: Message, result: Any, slot: ActorSlot) -> None:
        """Record the outcome after the handler has returned."""
        if slot.overdue:
            self._failure_handler.stopped(message, slot)
        elif result is not None and isinstance(result, (Retry, Reject)):
            self._failure_handler.failed(message, result)
        elif (error := misreturned(result)) is not None:
            self._failure_handler.failed(message, error)
        elif not message.settled:
            message.settled = True
            self._acknowledger.ack(message)
