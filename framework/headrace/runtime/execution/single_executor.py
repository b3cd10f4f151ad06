"""The executor of single messages: what an actor does with a lane if its handler takes one message at
a time."""

from __future__ import annotations

from typing import Any

import anyio.lowlevel

from headrace.flow.lanes import Lane, Lanes
from headrace.model.outcomes import Reject, Retry
from headrace.runtime.execution.failure_handler import Verdicts, from_within
from headrace.runtime.execution.slot import NEVER, Bench
from headrace.runtime.execution.suspects import Suspects
from headrace.runtime.handlers.handler import Decode
from headrace.runtime.messages.message import Message
from headrace.runtime.pipeline.acknowledger import Desk
from headrace.runtime.pipeline.wiring import Call, Clock

STRETCH = 64
"""Number of messages after which an actor yields the event loop, in case its handler never waited."""


class Singles:
    """Runs the messages of a lane one after the other."""

    unit = 1

    def __init__(
        self, decode: Decode, call: Call, timeout: float | None,
        lanes: Lanes[Message], desk: Desk, verdicts: Verdicts, suspects: Suspects, clock: Clock,
    ) -> None:  # fmt: skip
        self._decode = decode
        self._call = call
        self._timeout = timeout
        self._lanes = lanes
        self._desk = desk
        self._verdicts = verdicts
        self._suspects = suspects
        self._clock = clock

    async def run(self, lane: Lane[Message], bench: Bench) -> bool:
        """Run a lane until it is empty, or until a timeout has cancelled the actor slot's scope.
        Returns whether it is empty.

        Its loop runs once per message, so it is optimized.
        """
        next_message, clock, timeout = self._lanes.next, self._clock, self._timeout
        decode, call, ack, verdicts = self._decode, self._call, self._desk.ack, self._verdicts
        stretch = 0
        while (message := next_message(lane)) is not None:
            if message.lease.deadline <= clock():
                self._desk.give_up(message)
                continue
            try:
                payload = message._payload = decode(message.raw)
            except Exception as error:
                verdicts.undecodable(message, error)
                continue
            bench.delivery = message
            if timeout is not None:
                bench.until = clock() + timeout
            try:
                if message.crashes:
                    result = await self._run_suspect(payload, message, bench)
                else:
                    result = await call(payload, message)
            except Exception as error:
                verdicts.failed(message, error)
            except BaseException as error:
                if not from_within(error):
                    verdicts.stopped(message, bench)
                    raise
                verdicts.failed(message, error)
            else:
                if bench.overdue:
                    verdicts.stopped(message, bench)
                elif result is not None and isinstance(result, (Retry, Reject)):
                    verdicts.failed(message, result)
                elif not message.settled:
                    message.settled = True
                    ack(message)
            if message.xid is not None:  # acked in a transaction of the handler
                await self._desk.own.confirm(message, verdicts.failed)
            if timeout is not None:
                if bench.overdue:
                    return False
                bench.until = NEVER
            stretch += 1
            if stretch >= STRETCH:
                stretch = 0
                await anyio.lowlevel.checkpoint()
        return True

    async def _run_suspect(self, payload: Any, message: Message, bench: Bench) -> Any:
        """Run the handler with a message that a worker held when it died."""
        bench.until = NEVER  # the wait for its turn doesn't count against the timeout
        async with self._suspects.starting((message,)):
            if self._timeout is not None:
                bench.until = self._clock() + self._timeout
            return await self._call(payload, message)
