"""Suspects: messages that were in the hands of a worker when it died. One of them may have been what killed it.

Before a suspect is started, that is written down; when the worker dies again, the store knows which of its suspects were at
work, and counts a crash for these only. What has crashed while it was written down runs alone from then on, so that soon only
the culprit goes on collecting crashes, until `max_deliver` of them make it a dead letter.
"""

from __future__ import annotations

from typing import Any

import anyio

from headrace import store
from headrace.model.errors import LeaseLost
from headrace.runtime.message import Message
from headrace.runtime.wiring import Call

ALONE = 2
"""Crashes from which on a message runs alone."""


class Suspects:
    """Runs the suspects of one consumer."""

    def __init__(self, database: store.Database, consumer: int) -> None:
        self._database = database
        self._consumer = consumer
        self._one = anyio.Lock()

    async def run(self, call: Call, payload: Any, message: Message) -> Any:
        """Run a message that has crashes. Raises `LeaseLost`, and what the handler raises."""
        if message.crashes < ALONE:
            await self.mark([message])
            return await call(payload, message)
        async with self._one:
            await self.mark([message])
            return await call(payload, message)

    async def mark(self, messages: list[Message]) -> None:
        """Write down that these are being started. Raises `LeaseLost`."""
        if await store.mark_started(
            self._database, self._consumer, [m.lease.id for m in messages], [m.seq for m in messages]
        ):
            raise LeaseLost(f"The lease of message {messages[0].seq} of {messages[0].stream!r} was lost.")
