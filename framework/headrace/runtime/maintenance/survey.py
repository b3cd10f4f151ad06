"""The survey: reads the state of this process's consumers from the store regularly, for telemetry. So
a metrics collector never waits for the database."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from headrace import store
from headrace.model.errors import FilterTooSlow, UnknownConsumer
from headrace.model.records import ConsumerInfo
from headrace.runtime.instruments import Instruments
from headrace.store.database.retry import DatabaseRetry
from headrace.store.database.time_limit import within

LOOK = 1000
"""Largest number of messages after a consumer's position that are examined to count the pending ones."""

LIMIT = 2.0
"""Time limit of one query in seconds. If a consumer's condition takes longer, its pending messages are
not counted."""


class Survey:
    """Surveys consumers, with one query at a time.

    Args:
        consumers: their streams and names.
    """

    def __init__(
        self, database: store.Database, consumers: Sequence[tuple[str, str]], instruments: Instruments
    ) -> None:
        self._database = database
        self._consumers = consumers
        self._instruments = instruments

    async def run(self, database_retry: DatabaseRetry) -> None:
        """Survey until cancelled. Raises `StoreUnavailable`."""
        assert self._instruments.survey_every is not None
        while True:
            await self.once()
            database_retry.cleared()
            await anyio.sleep(self._instruments.survey_every)

    async def once(self) -> None:
        """Read the state of each consumer, and report it to the instruments. Deleted consumers and streams are
        left out. Raises `StoreUnavailable`."""
        found = [await self._ask(stream, name) for stream, name in self._consumers]
        deleted = await self._deleted(frozenset(self._instruments.published()))
        self._instruments.surveyed((info for info in found if info is not None), deleted)

    async def _deleted(self, streams: frozenset[str]) -> frozenset[str]:
        """Return which of these streams no longer exist."""
        if not streams:
            return streams
        return streams.difference(name for _, _, name in await store.streams_named(self._database, streams))

    async def _ask(self, stream: str, name: str) -> ConsumerInfo | None:
        try:
            try:
                return await self._look(stream, name, LOOK)
            except FilterTooSlow:
                return await self._look(stream, name, 0)
        except (FilterTooSlow, UnknownConsumer):
            return None

    async def _look(self, stream: str, name: str, look: int) -> ConsumerInfo:
        async with within(self._database, LIMIT) as connection:
            return await store.consumer(connection, stream, name, look=look)
