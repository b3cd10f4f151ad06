"""The executor of single messages: what an actor does with a lane if its handler takes one message at
a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio.lowlevel

from headrace.flow.lanes import Lane, Lanes
from headrace.model.clock import Clock
from headrace.model.outcomes import Reject, Retry
from headrace.runtime.calls import Call
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

    async def run(self, lane: Lane[Message], slot: ActorSlot) -> bool:
        """Run a lane until it is empty, or until a timeout has cancelled the actor slot's scope.
        Returns whether it is empty.
        """
        next_message, execute, stretch = self._lanes.next, self._execute, 0
        while (message := next_message(lane)) is not None:
            await execute(message, slot)
            if slot.overdue:
                return False
            stretch += 1
            if stretch >= STRETCH:
                stretch = 0
                await anyio.lowlevel.checkpoint()
        return True

    async def _execute(self, message: Message, slot: ActorSlot) -> None:
        """Execute one message: check its lease and its life, decode it, call the handler, and record the outcome."""
        now = self._clock()
        if message.lease.deadline <= now:
            self._acknowledger.give_up(message)
            return
        if message.alive_until <= now:
            self._acknowledger.expire(message)
            return
        try:
            if self._open is not None:
                self._open(message)
            payload = message._payload = self._decode(message.raw)
        except BaseException as error:  # code of users in a type may raise anything
            if interrupts(error):
                raise
            self._failure_handler.undecodable(message, error)
            return
        slot.delivery = message
        try:
            result = await self._call_handler(payload, message, slot)
        except Exception as error:
            self._failure_handler.failed(message, error)
        except BaseException as error:
            if not failed_inside(error):
                self._failure_handler.stopped(message, slot)
                raise
            self._failure_handler.failed(message, error)
        else:
            self._finish(message, result, slot)
        if message.xid is not None:  # acked in a transaction of the handler
            await self._acknowledger.confirm(message, self._failure_handler.failed)
        slot.until = NEVER

    def _call_handler(self, payload: Any, message: Message, slot: ActorSlot) -> Awaitable[Any]:
        if message.crashes:
            return self._call_suspect(payload, message, slot)
        if self._timeout is not None:
            slot.until = self._clock() + self._timeout
        return self._call(payload, message)

    async def _call_suspect(self, payload: Any, message: Message, slot: ActorSlot) -> Any:
        """Call the handler with a message that a worker held when it died. The wait for its turn doesn't
        count against the timeout."""
        async with self._suspects.starting((message,)):
            if self._timeout is not None:
                slot.until = self._clock() + self._timeout
            return await self._call(payload, message)

    def _finish(self, message: Message, result: Any, slot: ActorSlot) -> None:
        """Record the outcome after the handler has returned."""
        if slot.overdue:
            self._failure_handler.stopped(message, slot)
        elif result is not None and isinstance(result, (Retry, Reject)):
            self._failure_handler.failed(message, result)
        elif not message.settled:
            message.settled = True
            self._acknowledger.ack(message)
