"""DBOS: a workflow on a durable queue, whose partitions are the keys where order counts.

Its documentation says that a smaller polling interval lowers the latency; the default is a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar

import sqlalchemy as sa
from dbos import DBOS, DBOSClient

from benchmarks.peers.process.adapter import Adapter
from benchmarks.peers.process.messages import Message
from benchmarks.peers.process.recorder import Handler

QUEUE = "orders"
WORKFLOW = "handle"
VERSION = "1"
WAITING = "select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING')"


class Peer(Adapter):
    SETTINGS: ClassVar[dict[str, Any]] = {"polling_seconds": 0.1, "pool": 20, "concurrency": 1000, "retry": 1.0}

    def _limits(self) -> dict[str, Any]:
        limits: dict[str, Any] = {
            "worker_concurrency": self.settings["concurrency"],
            "polling_interval_sec": self.settings["polling_seconds"],
        }
        return limits | ({"partition_concurrency": 1} if self.ordered else {})

    def _launch(self) -> None:
        DBOS(
            config={
                "name": "peers",
                "system_database_url": self.url,
                "sys_db_pool_size": self.settings["pool"],
                "application_version": VERSION,
                "log_level": "ERROR",
            }
        )
        DBOS.launch()

    async def set_up(self) -> None:
        await asyncio.to_thread(self._launch)
        await DBOS.register_queue_async(QUEUE, **self._limits())
        await asyncio.to_thread(DBOS.destroy)
        # It shut down the executor of this loop.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[None]:
        self._client = DBOSClient(system_database_url=self.url)
        self._engine = sa.create_engine(
            self.url.replace("postgresql://", "postgresql+psycopg://"), pool_size=8, max_overflow=0
        )
        try:
            yield
        finally:
            self._client.destroy()
            self._engine.dispose()

    def _options(self, message: Message, delay: float | None = None) -> dict[str, Any]:
        options: dict[str, Any] = {"workflow_name": WORKFLOW, "queue_name": QUEUE, "app_version": VERSION}
        if self.ordered:
            options["queue_partition_key"] = message.key
        if delay is not None:
            options["delay_seconds"] = delay
        return options

    async def publish(self, messages: Sequence[Message], delay: float | None = None) -> None:
        if len(messages) == 1:
            await self._client.enqueue_async(self._options(messages[0], delay), messages[0].order)
        else:
            await asyncio.to_thread(self._enqueue_all, messages, delay)

    def _enqueue_all(self, messages: Sequence[Message], delay: float | None) -> None:
        with self._engine.begin() as connection:
            self._enqueue(connection, messages, delay)

    def _enqueue(self, connection: sa.Connection, messages: Sequence[Message], delay: float | None = None) -> None:
        for one in messages:
            self._client.enqueue_in_transaction(connection, self._options(one, delay), one.order)

    @asynccontextmanager
    async def open_transaction(self, messages: Sequence[Message]) -> AsyncIterator[None]:
        connection = await asyncio.to_thread(self._engine.connect)
        try:
            await asyncio.to_thread(self._enqueue, connection, messages)
            yield
            await asyncio.to_thread(connection.commit)
        finally:
            await asyncio.to_thread(connection.close)

    async def remaining(self) -> int:
        def count() -> int:
            with self._engine.connect() as connection:
                return int(connection.execute(sa.text(WAITING)).scalar_one())

        return await asyncio.to_thread(count)

    async def consume(self, handler: Handler, reader: int, stop: asyncio.Event) -> None:
        home = asyncio.get_running_loop()

        async def call(order: dict[str, Any]) -> None:
            if asyncio.get_running_loop() is home:
                await handler(order)
            else:  # DBOS runs workflows in a loop of its own
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(handler(order), home))

        @DBOS.step(name="step", retries_allowed=True, interval_seconds=self.settings["retry"])
        async def step(order: dict[str, Any]) -> None:
            await call(order)

        # A step is recorded by itself, and is what is retried. Handlers that don't fail do without.
        act = step if handler.mode == "fail" else call

        @DBOS.workflow(name=WORKFLOW)
        async def handle(order: dict[str, Any]) -> None:
            await act(order)

        await asyncio.to_thread(self._launch)
        await DBOS.register_queue_async(QUEUE, **self._limits())
        try:
            await stop.wait()
        finally:
            await asyncio.to_thread(partial(DBOS.destroy, workflow_completion_timeout_sec=1))
