"""PgQueuer: an entrypoint, its driver for asyncpg with a pool, and enqueueing in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, ClassVar

from pgqueuer import PgQueuer
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.adapters.persistence.queries import Queries
from pgqueuer.core.executors import DatabaseRetryEntrypointExecutor
from pgqueuer.domain.models import Job

from benchmarks.peers.process.adapter import Adapter, ended
from benchmarks.peers.process.messages import Message
from benchmarks.peers.process.recorder import Handler
from benchmarks.peers.process.sql import connect, decode, encode, pool

ENTRYPOINT = "handle"
WAITING = (
    "select count(*) from pgqueuer where status in ('queued', 'picked') and execute_after < now() + interval '1 hour'"
)


class Peer(Adapter):
    SETTINGS: ClassVar[dict[str, Any]] = {
        "batch": 100,
        "concurrency": 1000,  # jobs that a worker has picked
        "pool": 16,
        "retry": 1.0,
        "heartbeat_seconds": 30.0,
    }

    async def set_up(self) -> None:
        connection = await connect(self.url)
        try:
            await Queries(AsyncpgDriver(connection)).install()
        finally:
            await connection.close()

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[None]:
        async with pool(self.url) as self._pool:
            self._queries = Queries(AsyncpgPoolDriver(self._pool))
            yield

    async def publish(self, messages: Sequence[Message], delay: float | None = None) -> None:
        await self._enqueue(self._queries, messages, delay)

    async def _enqueue(self, queries: Queries, messages: Sequence[Message], delay: float | None = None) -> None:
        after = None if delay is None else timedelta(seconds=delay)
        count = len(messages)
        if count == 1:
            await queries.enqueue(ENTRYPOINT, encode(messages[0].order), execute_after=after)
            return
        payloads = [encode(one.order) for one in messages]
        await queries.enqueue([ENTRYPOINT] * count, payloads, [0] * count, None if after is None else [after] * count)

    @asynccontextmanager
    async def open_transaction(self, messages: Sequence[Message]) -> AsyncIterator[None]:
        async with self._pool.acquire() as connection, connection.transaction():
            await self._enqueue(Queries(AsyncpgDriver(connection)), messages)
            yield

    async def remaining(self) -> int:
        return int(await self._pool.fetchval(WAITING))

    async def consume(self, handler: Handler, reader: int, stop: asyncio.Event) -> None:
        async with pool(self.url, self.settings["pool"]) as connections:
            app = PgQueuer(AsyncpgPoolDriver(connections))

            def executor(parameters: Any) -> DatabaseRetryEntrypointExecutor:
                return DatabaseRetryEntrypointExecutor(
                    parameters, initial_delay=timedelta(seconds=self.settings["retry"])
                )

            @app.entrypoint(ENTRYPOINT, executor_factory=executor)
            async def handle(job: Job) -> None:
                await handler(decode(job.payload or b"null"))

            running = asyncio.create_task(
                app.run(
                    dequeue_timeout=timedelta(seconds=1),
                    batch_size=self.settings["batch"],
                    max_concurrent_tasks=self.settings["concurrency"],
                    heartbeat_timeout=timedelta(seconds=self.settings["heartbeat_seconds"]),
                )
            )
            async with ended(running):
                await asyncio.wait([running, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()
                app.shutdown.set()
                await asyncio.wait([running], timeout=5)
