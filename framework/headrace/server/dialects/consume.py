"""Dialect C: the consume API.

`GET …/http-consumers/{consumer}/next`, and `ack` and `nack` by POST. `next` also returns the size
of the backlog. It is counted at most once a second per consumer for all callers, over so few
messages that the time is negligible.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from headrace import store
from headrace.model.errors import FilterTooSlow, StoreBusy
from headrace.server.access.effects import effect
from headrace.server.data_plane.delivery_bodies import read_receive
from headrace.server.data_plane.registry import CachedConsumer
from headrace.server.dialects.operations import Operations
from headrace.server.http import Endpoint, Request, Response
from headrace.server.wire.dialect_answers import records
from headrace.store.database.time_limit import within

PREFIX = "http-consumers"

MAX_EXAMINED = 1000
"""Largest number of messages above the position that are examined to count the pending ones."""

CACHE_TTL = 1.0
"""Cache TTL of a count in seconds."""

COUNT_TIMEOUT = 0.5
"""Time limit of a count in seconds. If a condition takes longer, no messages are examined."""

MAX_ENTRIES = 10_000
"""Largest number of cached counts, one per consumer."""


class Counts(msgspec.Struct, frozen=True):
    """A consumer's backlog."""

    pending: int
    ack_pending: int


class Consume:
    """The endpoints of dialect C.

    Args:
        operations: does the work.
        clock: monotonic time in seconds.
    """

    def __init__(self, operations: Operations, clock: Callable[[], float] = time.monotonic) -> None:
        self._operations = operations
        self._engine = operations.engine
        self._clock = clock
        self._counts: dict[int, tuple[float, asyncio.Task[Counts]]] = {}

    def find(self, method: str, verb: str) -> Endpoint | None:
        """Return the endpoint for the part of the path after the consumer's name."""
        if verb == "next" and method == "GET":
            return self.next
        if method == "POST":
            return {"ack": self.ack, "nack": self.nack}.get(verb)
        return None

    @effect("deliver")
    async def next(self, request: Request) -> Response | None:
        """Return messages as records. It takes `batch_size` and `wait_for` like dialect A."""
        consumer = await self._operations.consumer_anywhere(request)
        share = await self._operations.receive(request, consumer, read_receive(request.body, request.query_string))
        if share is None:
            return None
        try:
            counts = await self._cached_counts(consumer)
        except Exception:  # the client gets the error instead of the messages
            await self._engine.release(consumer, share)
            raise
        if share.lease is not None and await request.is_disconnected():  # during the count
            await self._engine.release(consumer, share)
            return None
        return Response(200, records(consumer, share, counts.pending, counts.ack_pending))

    @effect("deliver")
    async def ack(self, request: Request) -> Response:
        """Settle messages as done."""
        return await self._operations.ack(request, self._operations.consumer_anywhere)

    @effect("deliver")
    async def nack(self, request: Request) -> Response:
        """Settle messages as failed. They are delivered again."""
        return await self._operations.nack(request, self._operations.consumer_anywhere)

    async def _cached_counts(self, consumer: CachedConsumer) -> Counts:
        now = self._clock()
        entry = self._counts.get(consumer.number)
        if entry is None or entry[0] <= now:
            if len(self._counts) >= MAX_ENTRIES:
                self._counts.clear()
            entry = now + CACHE_TTL, asyncio.ensure_future(self._count(consumer))
            self._counts[consumer.number] = entry
        try:
            return await asyncio.shield(entry[1])
        except Exception:
            self._counts.pop(consumer.number, None)
            raise

    async def _count(self, consumer: CachedConsumer) -> Counts:
        database, names = self._engine.app.database, (consumer.stream.name, consumer.name)
        try:
            async with (
                database.judging(consumer.stream.name, COUNT_TIMEOUT),
                within(database, COUNT_TIMEOUT) as connection,
            ):
                info = await store.consumer(connection, *names, look=MAX_EXAMINED)
        except (FilterTooSlow, StoreBusy):
            info = await store.consumer(database, *names, look=0)
        return Counts(info.num_pending, info.num_ack_pending)
