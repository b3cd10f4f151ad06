"""Dialect C: the consume API.

`GET …/http-consumers/{consumer}/next`, and `ack` and `nack` by POST. `next` also returns the size
of the backlog. It is counted at most once a second per consumer for all callers, over so few
messages that the time is negligible.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from headrace import store
from headrace.model.errors import FilterTooSlow
from headrace.server.data_plane.bodies import Nack, Settle, read_receive
from headrace.server.data_plane.registry import KnownConsumer
from headrace.server.dialects.pull import anywhere
from headrace.server.transport.http import Call, Endpoint, Reply
from headrace.server.wire.dialect_answers import records
from headrace.store.database.pool import within

if TYPE_CHECKING:
    from headrace.server.data_plane.endpoints import DataPlane

PREFIX = "http-consumers"

LOOK = 1000
"""Largest number of messages above the position that are examined to count the pending ones."""

FRESH = 1.0
"""Cache TTL of a count in seconds."""

JUDGING = 0.5
"""Time limit of a count in seconds. If a condition takes longer, no messages are examined."""

MOST = 10_000
"""Largest number of cached counts, one per consumer."""

_settle = msgspec.json.Decoder(Settle)
_nack = msgspec.json.Decoder(Nack)


class Counts(msgspec.Struct, frozen=True):
    """A consumer's backlog."""

    pending: int
    ack_pending: int


class Consume:
    """The endpoints of dialect C.

    Args:
        data: the shared endpoints, which do the work.
        clock: monotonic time in seconds.
    """

    def __init__(self, data: DataPlane, clock: Callable[[], float] = time.monotonic) -> None:
        self._data = data
        self._clock = clock
        self._counts: dict[int, tuple[float, asyncio.Task[Counts]]] = {}

    def find(self, method: str, verb: str) -> Endpoint | None:
        """Return the endpoint for the part of the path after the consumer's name."""
        if verb == "next" and method == "GET":
            return self.next
        if method == "POST":
            return {"ack": self.ack, "nack": self.nack}.get(verb)
        return None

    async def next(self, call: Call) -> Reply | None:
        """Return messages as records. It takes `batch_size` and `wait_for` like dialect A."""
        consumer = await anywhere(self._data, call)
        share = await self._data.received(call, consumer, *read_receive(call))
        if share is None:
            return None
        try:
            counts = await self._counted(consumer)
        except Exception:  # the client gets the error instead of the messages
            await self._data.engine.give_back(consumer, share)
            raise
        if share.lease is not None and await call.left():  # during the count
            await self._data.engine.give_back(consumer, share)
            return None
        return Reply(200, records(consumer, share, counts.pending, counts.ack_pending))

    async def ack(self, call: Call) -> Reply:
        """Settle messages as done."""
        return await self._data.acked(await anywhere(self._data, call), _settle.decode(call.body))

    async def nack(self, call: Call) -> Reply:
        """Settle messages as failed. They are delivered again."""
        return await self._data.nacked(await anywhere(self._data, call), _nack.decode(call.body))

    async def _counted(self, consumer: KnownConsumer) -> Counts:
        now = self._clock()
        known = self._counts.get(consumer.number)
        if known is None or known[0] <= now:
            if len(self._counts) >= MOST:
                self._counts.clear()
            known = now + FRESH, asyncio.ensure_future(self._count(consumer))
            self._counts[consumer.number] = known
        try:
            return await asyncio.shield(known[1])
        except Exception:
            self._counts.pop(consumer.number, None)
            raise

    async def _count(self, consumer: KnownConsumer) -> Counts:
        database, where = self._data.engine.app.database, (consumer.stream.name, consumer.name)
        try:
            async with within(database, JUDGING) as connection:
                info = await store.consumer(connection, *where, look=LOOK)
        except FilterTooSlow:
            info = await store.consumer(database, *where, look=0)
        return Counts(info.num_pending, info.num_ack_pending)
