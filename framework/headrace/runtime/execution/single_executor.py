"""The executor of single messages: what an actor does with a lane if its handler takes one message at
a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio.lowlevel

from headrace.flow.lanes import Lane, Lanes
from headrace.model.clock import Clock
from headrace.model.outcomes import Reject, Retry
from headrace.runtime.calls import Call
from headrace.runtime.execution.actors import Take
from headrace.runtime.execution.failure_handler import FailureHandler, failed_inside
from headrace.runtime.execution.suspects import Suspects
from headrace.runtime.handlers.handler import Decode
from headrace.runtime.messages.message import Message
from headrace.runtime.settling.acknowledger import Acknowledger
from headrace.runtime.slot import NEVER, ActorSlot
from headrace.runtime.user_code import interrupts

STRETCH = 64
"""Number of messages after which an actor yields the event loop, in case its handler never waited."""


class SingleExecutor:
    """Runs the messages of a lane one after the other.

    Args:
        decode: decodes a payload into the type that the handler takes.
        call: calls the handler with all its layers, see `headrace.runtime.pipeline.layers`.
        timeout: seconds that the handler may take, or None.
        opens: brings a stored payload to the form that `decode` takes. None if it has that form.
    """

    unit = 1

    def __init__(
        self, decode: Decode, call: Call, timeout: float | None, lanes: Lanes[Message], acknowledger: Acknowledger,
        failure_handler: FailureHandler, suspects: Suspects, clock: Clock,
        opens: Callable[[Message], None] | None = None,
    ) -> None:  # fmt: skip
        self._decode = decode
        self._open = opens
        self._call = call
        self._timeout = timeout
        self._lanes = lanes
        self._acknowledger = acknowledger
        self._failure_handler = failure_handler
        self._suspects = suspects
        self._clock = clock

    async def run(self, lane: Lane[Message], slot: ActorSlot, take: Take) -> Lane[Message] | None:
        """Run lanes until none is ready, or until a timeout has cancelled the actor slot's scope. Then it returns the
        lane, which may have more messages.

        For each message: check its lease and its life, decode it, call the handler, and record the outcome. All of it is
        one function, and one coroutine for many lanes, since a call costs as much as any of these steps.
        """
        next_message, clock, decode, opens = self._lanes.next, self._clock, self._decode, self._open
        call, timed, ack = self._call, self._timeout is not None, self._acknowledger.ack
        following: Lane[Message] | None = lane
        stretch = 0
        while following is not None:
            message = next_message(following)
            if message is None:
                following = take()
                continue
            now = clock()
            if message.lease.deadline <= now or message.alive_until <= now:
                self._leave_out(message, now)
                continue
            try:
                if opens is not None:
                    opens(message)
                payload = message._payload = decode(message.raw)
            except BaseException as error:  # code of users in a type may raise anything
                if interrupts(error):
                    raise
                self._failure_handler.undecodable(message, error)
                continue
            slot.delivery = message
            try:
                if timed or message.crashes:
                    result = await self._call_guarded(payload, message, slot)
                else:
                    result = await call(payload, message)
            except BaseException as error:
                if not isinstance(error, Exception) and not failed_inside(error):
                    self._failure_handler.stopped(message, slot)
                    raise
                self._failure_handler.failed(message, error)
            else:
                if result is None and not message.settled and not slot.overdue:
                    message.settled = True
                    ack(message)
                else:
                    self._finish(message, result, slot)
            if message.xid is not None:  # acked in a transaction of the handler
                await self._acknowledger.confirm(message, self._failure_handler.failed)
            slot.until = NEVER
            if slot.overdue:
                return following
            stretch += 1
            if stretch == STRETCH:
                stretch = 0
                await anyio.lowlevel.checkpoint()
        return None

    def _leave_out(self, message: Message, now: float) -> None:
        """Settle a message that may not start: its lease is over, or it has expired."""
        if message.lease.deadline <= now:
            self._acknowledger.give_up(message)
        else:
            self._acknowledger.expire(message)

    async def _call_guarded(self, payload: Any, message: Message, slot: ActorSlot) -> Any:
        """Call a handler that has a timeout, or with a message that a worker held when it died. The wait for its turn
        doesn't count against the timeout."""
        if message.crashes:
            async with self._suspects.starting((message,)):
                self._start_timeout(slot)
                return await self._call(payload, message)
        self._start_timeout(slot)
        return await self._call(payload, message)

    def _start_timeout(self, slot: ActorSlot) -> None:
        if self._timeout is not None:
            slot.until = self._clock() + self._timeout

    def _finish(self, message: Message, result: Any, slot: ActorSlot) -> None:
        """Record the outcome after the handler has returned."""
        if slot.overdue:
            self._failure_handler.stopped(message, slot)
        elif result is not None and isinstance(result, (Retry, Reject)):
            self._failure_handler.failed(message, result)
        elif not message.settled:
            message.settled = True
            self._acknowledger.ack(message)
