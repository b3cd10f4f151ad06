"""Awa: a task, COPY for batches, and a partitioned queue with one worker for each partition where order counts."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import asyncpg
import awa
from awa.bridge import insert_job

from benchmarks.peers.process.adapter import Adapter
from benchmarks.peers.process.messages import Message
from benchmarks.peers.process.recorder import Handler
from benchmarks.peers.process.sql import connect

QUEUE = "orders"


@dataclass
class HandleOrder:
    order: dict[str, Any]


class Peer(Adapter):
    SETTINGS: ClassVar[dict[str, Any]] = {
        "workers": 256,
        "connections": 48,
        "partitions": 16,  # where order counts
        "poll_ms": 200,
        "heartbeat_stale_ms": 0,  # 0 for the default
    }

    def _partitions(self) -> awa.PartitionedQueue:
        return awa.PartitionedQueue(QUEUE, self.settings["partitions"])

    async def set_up(self) -> None:
        async with awa.AsyncClient(self.url) as client:
            await client.migrate()
            await client.install_queue_storage()  # a fresh installation has it once its first worker ran

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[None]:
        async with awa.AsyncClient(self.url, self.settings["connections"]) as self._client:
            yield

    def _route(self, message: Message) -> dict[str, Any]:
        return self._partitions().route_by_key(message.key) if self.ordered else {"queue": QUEUE}

    async def publish(self, messages: Sequence[Message], delay: float | None = None) -> None:
        run_at = None
        if delay is not None:
            run_at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=delay)
        if len(messages) == 1:
            await self._client.insert(HandleOrder(messages[0].order), run_at=run_at, **self._route(messages[0]))
            return
        jobs = [HandleOrder(one.order) for one in messages]
        if self.ordered:
            await self._client.enqueue_many_copy(jobs, opts=[self._route(one) for one in messages], run_at=run_at)
        else:
            await self._client.enqueue_many_copy(jobs, queue=QUEUE, run_at=run_at)

    @asynccontextmanager
    async def open_transaction(self, messages: Sequence[Message]) -> AsyncIterator[None]:
        connection: asyncpg.Connection[Any] = await connect(self.url)
        try:
            async with connection.transaction():
                for one in messages:
                    await insert_job(connection, HandleOrder(one.order), **self._route(one))
                yield
        finally:
            await connection.close()

    async def remaining(self) -> int:
        return sum(stat.available + stat.running + stat.retryable for stat in await self._client.queue_stats())

    async def consume(self, handler: Handler, reader: int, stop: asyncio.Event) -> None:
        client = awa.AsyncClient(self.url, self.settings["connections"])
        partitions = self._partitions()

        @client.task(HandleOrder, queue=partitions.physical_queues[0] if self.ordered else QUEUE)
        async def handle(job: Any) -> None:
            await handler(job.args.order)

        queues = (
            partitions.queue_configs(max_workers_per_partition=1)
            if self.ordered
            else [(QUEUE, self.settings["workers"])]
        )
        options = {"poll_interval_ms": self.settings["poll_ms"]}
        if stale := self.settings["heartbeat_stale_ms"]:
            options |= {"heartbeat_staleness_ms": stale, "heartbeat_interval_ms": stale // 3}
        await client.start(queues, **options)
        try:
            await stop.wait()
        finally:
            await client.shutdown()
            await client.close()
