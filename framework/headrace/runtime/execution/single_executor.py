"""The executor of single messages: what an actor does with a lane if its handler takes one message at
a time."""

from __future__ import annotations

from typing import Any

import anyio.lowlevel

from headrace.flow.lanes import Lane, Lanes
from headrace.model.outcomes import Reject, Retry
from headrace.runtime.execution.failure_handler import FailureHandler, cancelled_inside
from headrace.runtime.execution.slot import NEVER, ActorSlot
from headrace.runtime.execution.suspects import Suspects
from headrace.runtime.handlers.handler import Decode
from headrace.runtime.messages.message import Message
from headrace.runtime.pipeline.acknowledger import Acknowledger
from headrace.runtime.pipeline.wiring import Call, Clock

STRETCH = 64
"""Number of messages after which an actor yields the event loop, in case its handler never waited."""


class SingleExecutor:
    """Runs the messages of a lane one after the other."""

    unit = 1

    def __init__(
        self, decode: Decode, call: Call, timeout: float | None,
        lanes: Lanes[Message], acknowledger: Acknowledger, failure_handler: FailureHandler, suspects: Suspects, clock: Clock,
    ) -> None:  # fmt: skip
        self._decode = decode
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

        Its loop runs once per message, so it is optimized.
        """
        next_message, clock, timeout = self._lanes.next, self._clock, self._timeout
        decode, call, ack, failure_handler = self._decode, self._call, self._acknowledger.ack, self._failure_handler
        stretch = 0
        while (message := next_message(lane)) is not None:
            if message.lease.deadline <= clock():
                self._acknowledger.give_up(message)
                continue
            try:
                payload = message._payload = decode(message.raw)
            except Exception as error:
                failure_handler.undecodable(message, error)
                continue
            slot.delivery = message
            if timeout is not None:
                slot.until = clock() + timeout
            try:
                if message.crashes:
                    result = await self._run_suspect(payload, message, slot)
                else:
                    result = await call(payload, message)
            except Exception as error:
                failure_handler.failed(message, error)
            except BaseException as error:
                if not cancelled_inside(error):
                    failure_handler.stopped(message, slot)
                    raise
                failure_handler.failed(message, error)
            else:
                if slot.overdue:
                    failure_handler.stopped(message, slot)
                elif result is not None and isinstance(result, (Retry, Reject)):
                    failure_handler.failed(message, result)
                elif not message.settled:
                    message.settled = True
                    ack(message)
            if message.xid is not None:  # acked in a transaction of the handler
                await self._acknowledger.transaction_acks.confirm(message, failure_handler.failed)
            if timeout is not None:
                if slot.overdue:
                    return False
                slot.until = NEVER
            stretch += 1
            if stretch >= STRETCH:
                stretch = 0
                await anyio.lowlevel.checkpoint()
        return True

    async def _run_suspect(self, payload: Any, message: Message, slot: ActorSlot) -> Any:
        """Run the handler with a message that a worker held when it died."""
        slot.until = NEVER  # the wait for its turn doesn't count against the timeout
        async with self._suspects.starting((message,)):
            if self._timeout is not None:
                slot.until = self._clock() + self._timeout
            return await self._call(payload, message)
