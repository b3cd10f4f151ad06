"""The pipeline of one consumer in one process: its parts, wired in the order of travel."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import anyio
import anyio.abc

from headrace import store
from headrace.flow.custody import Custody
from headrace.flow.governor import Governor
from headrace.flow.lanes import Lanes
from headrace.model.specs import ConsumerSpec
from headrace.runtime.actors import Actors
from headrace.runtime.desk import Desk
from headrace.runtime.drain import Drain
from headrace.runtime.fetcher import Fetcher
from headrace.runtime.handler import Handler
from headrace.runtime.keeper import Keeper
from headrace.runtime.message import Message
from headrace.runtime.scaler import scale
from headrace.runtime.settings import Settings
from headrace.runtime.settler import Settler
from headrace.runtime.weather import keep_going

logger = logging.getLogger("headrace")


class Pipeline:
    """Runs one consumer.

    Args:
        database: an open database.
        consumer: the consumer's id.
        spec: its settings.
        handler: what to run.
        concurrency: the least and the most actors.
        timeout: seconds that the handler may take, or None.
        shutdown_timeout: seconds that handlers have to finish when the pipeline stops.
    """

    def __init__(
        self, database: store.Database, consumer: int, spec: ConsumerSpec, handler: Handler,
        concurrency: tuple[int, int], timeout: float | None, shutdown_timeout: float,
    ) -> None:  # fmt: skip
        clock = time.monotonic
        self.spec = spec
        self.settings = settings = Settings(spec)
        self._clock = clock
        self._handler = handler
        self._timeout = timeout
        self._concurrency = concurrency
        owner = uuid4()  # one worker process is one owner: it may hold a run of a key
        self.lanes: Lanes[Message] = Lanes()
        self.custody: Custody[Message] = Custody()
        self.governor = Governor(*concurrency)
        self.desk = Desk(self.lanes, self.custody, settings, clock)
        self.actors = Actors(handler, timeout, self.lanes, self.desk, clock)
        self.settler = Settler(database, consumer, settings, self.lanes, self.custody, clock)
        self.keeper = Keeper(database, consumer, settings, owner, self.custody, self.actors, clock)
        self.fetcher = Fetcher(
            database, consumer, settings, owner, self.lanes, self.custody, self.desk, self.actors, self.settler, clock
        )
        self.lanes.on_low = self.fetcher.room
        self.settler.fetcher = self.fetcher
        self.desk.settler = self.settler
        self.desk.keeper = self.keeper
        self._stop = anyio.Event()
        self._drain = Drain(spec.name, shutdown_timeout)

    async def run(self) -> None:
        """Run until `stop`, and drain."""
        name = self.spec.name
        if not self._handler.is_async:
            self._handler.limiter = anyio.CapacityLimiter(self._concurrency[1])
        fetched, acted = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(keep_going, f"{name}: settling", self.settler.run)
            group.start_soon(_tell, acted, self.actors.run, self._concurrency[0])
            group.start_soon(_tell, fetched, keep_going, f"{name}: leasing", self.fetcher.run)
            group.start_soon(keep_going, f"{name}: extending", self.keeper.run)
            if self._timeout is not None:
                group.start_soon(self.keeper.watch, self._timeout)
            if self._concurrency[0] < self._concurrency[1]:
                group.start_soon(scale, name, self.governor, self.actors, self.lanes, self.custody, self._clock)
            await self._stop.wait()
            await self._drain.run(
                self.fetcher, fetched, self.lanes, self.desk, self.actors, acted, self.settler, self.custody
            )
            group.cancel_scope.cancel()

    def stop(self) -> None:
        """Begin to drain."""
        self._stop.set()

    def hurry(self) -> None:
        """Stop the handlers that still run."""
        self._drain.hurry()

    def statistics(self) -> dict[str, Any]:
        """Counts and states of every part."""
        return {
            "leased": self.fetcher.leased,
            "reason": self.governor.decision.reason,
            **self.lanes.statistics(),
            **self.custody.statistics(),
            **self.actors.statistics(),
        }


async def _tell(ended: anyio.Event, run: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Run, and tell when it has ended, however."""
    try:
        await run(*args)
    finally:
        ended.set()
