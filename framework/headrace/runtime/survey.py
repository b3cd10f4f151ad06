"""The survey: asks the store now and then how this process's consumers are, for telemetry. Whoever collects metrics never waits for it."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from headrace import store
from headrace.model.errors import FilterTooSlow, UnknownConsumer
from headrace.model.records import ConsumerInfo
from headrace.runtime.instruments import Instruments
from headrace.runtime.weather import Weather
from headrace.store.database import within

LOOK = 1000
"""Messages above a consumer's position that are looked at, at most, to count the pending ones."""

LIMIT = 2.0
"""Seconds that one question may take. A consumer whose condition takes longer is asked for without its pending ones."""


class Survey:
    """Surveys consumers, one question at a time.

    Args:
        consumers: their streams and names.
    """

    def __init__(
        self, database: store.Database, consumers: Sequence[tuple[str, str]], instruments: Instruments
    ) -> None:
        self._database = database
        self._consumers = consumers
        self._instruments = instruments

    async def run(self, weather: Weather) -> None:
        """Survey until cancelled. Raises `StoreUnavailable`."""
        assert self._instruments.survey_every is not None
        while True:
            await self.once()
            weather.cleared()
            await anyio.sleep(self._instruments.survey_every)

    async def once(self) -> None:
        """Ask for each, and tell. One that was deleted meanwhile is left out. Raises `StoreUnavailable`."""
        found = [await self._ask(stream, name) for stream, name in self._consumers]
        self._instruments.surveyed(info for info in found if info is not None)

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
