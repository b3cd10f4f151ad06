"""Oban for Python: a worker class, its pool of psycopg, and `enqueue_many` for batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import oban
import psycopg
from oban.schema import install

from benchmarks.peers.process.adapter import Adapter
from benchmarks.peers.process.messages import Message
from benchmarks.peers.process.recorder import Handler

QUEUE = "orders"
WAITING = (
    "select count(*) from oban_jobs where state in ('available', 'executing', 'retryable')"
    " or (state = 'scheduled' and scheduled_at < timezone('UTC', now()) + interval '1 hour')"
)

_handlers: list[Handler] = []


class HandleOrder:
    """The worker, which Oban finds by its name."""

    async def process(self, job: oban.Job) -> None:
        await _handlers[0](job.args)

    def backoff(self, job: oban.Job) -> int:
        return 1


_worker: Any = oban.worker(queue=QUEUE)(HandleOrder)


class Peer(Adapter):
    SETTINGS: ClassVar[dict[str, Any]] = {"limit": 64, "pool": 16, "rescue_seconds": 300.0}

    async def set_up(self) -> None:
        async with self._pool() as pool:
            await install(pool)

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[None]:
        async with self._pool() as self._connections, oban.Oban(pool=self._connections) as self._oban:
            yield

    async def publish(self, messages: Sequence[Message], delay: float | None = None) -> None:
        options = {} if delay is None else {"scheduled_in": delay}
        jobs = [_worker.new(one.order, **options) for one in messages]
        await self._oban.enqueue_many(jobs)

    @asynccontextmanager
    async def open_transaction(self, messages: Sequence[Message]) -> AsyncIterator[None]:
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            await self._oban.enqueue_many([_worker.new(one.order) for one in messages], conn=connection)
            yield

    async def remaining(self) -> int:
        async with self._connections.connection() as connection:
            row = await (await connection.execute(WAITING)).fetchone()
            return int(row[0])

    async def consume(self, handler: Handler, reader: int, stop: asyncio.Event) -> None:
        _handlers[:] = [handler]
        rescue = self.settings["rescue_seconds"]
        async with self._pool() as pool:
            worker = oban.Oban(
                pool=pool,
                queues={QUEUE: self.settings["limit"]},
                shutdown_grace_period=5.0,
                lifeline={"interval": min(60.0, rescue / 2), "rescue_after": rescue},
            )
            async with worker:
                await stop.wait()

    @asynccontextmanager
    async def _pool(self) -> AsyncIterator[Any]:
        pool = await oban.Oban.create_pool(self.url, min_size=1, max_size=self.settings["pool"])
        try:
            yield pool
        finally:
            await pool.close()
