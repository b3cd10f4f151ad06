"""Absurd: a task without steps, its asynchronous worker, and a transaction around the single spawns of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.peers.process.adapter import Adapter, Unable, ended
from benchmarks.peers.process.messages import Message
from benchmarks.peers.process.recorder import Handler
from benchmarks.peers.process.sql import run_script

QUEUE = "orders"
TASK = "handle"


class Peer(Adapter):
    SETTINGS: ClassVar[dict[str, Any]] = {
        "concurrency": 64,
        "poll_seconds": 0.25,
        "claim_seconds": 120,
        "connections": 8,  # of a publisher
    }

    async def set_up(self) -> None:
        await run_script(self.url, BUNDLED_SCHEMA_SQL)
        app = AsyncAbsurd(self.url, queue_name=QUEUE)
        await app.create_queue(QUEUE)
        await app.close()

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[None]:
        self._free: list[psycopg.AsyncConnection[Any]] = []
        self._places = asyncio.Semaphore(self.settings["connections"])
        try:
            yield
        finally:
            for connection in self._free:
                await connection.close()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with self._places:
            if self._free:
                connection = self._free.pop()
            else:
                connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
            try:
                yield connection
            finally:
                self._free.append(connection)

    async def publish(self, messages: Sequence[Message], delay: float | None = None) -> None:
        if delay is not None:
            raise Unable("a task is spawned for now")
        async with self._connection() as connection:
            if len(messages) == 1:
                await self._spawn(connection, messages)
            else:
                async with connection.transaction():
                    await self._spawn(connection, messages)

    async def _spawn(self, connection: psycopg.AsyncConnection[Any], messages: Sequence[Message]) -> None:
        app = AsyncAbsurd(connection, queue_name=QUEUE)
        for one in messages:
            await app.spawn(TASK, one.order, queue=QUEUE, retry_strategy={"kind": "fixed", "base_seconds": 1})

    @asynccontextmanager
    async def open_transaction(self, messages: Sequence[Message]) -> AsyncIterator[None]:
        async with self._connection() as connection, connection.transaction():
            await self._spawn(connection, messages)
            yield

    async def remaining(self) -> int:
        async with self._connection() as connection:
            cursor = await connection.execute(
                f"select count(*) from absurd.t_{QUEUE} where state in ('pending', 'running', 'sleeping')"
            )
            row = await cursor.fetchone()
            assert row is not None
            return int(row[0])

    async def consume(self, handler: Handler, reader: int, stop: asyncio.Event) -> None:
        app = AsyncAbsurd(self.url, queue_name=QUEUE)

        @app.register_task(TASK)
        async def handle(order: dict[str, Any], context: Any) -> None:
            await handler(order)

        worker = asyncio.create_task(
            app.start_worker(
                concurrency=self.settings["concurrency"],
                claim_timeout=self.settings["claim_seconds"],
                poll_interval=self.settings["poll_seconds"],
            )
        )
        async with ended(worker):
            await asyncio.wait([worker, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
            if worker.done():
                worker.result()
            app.stop_worker()
            await asyncio.wait([worker], timeout=5)
        await app.close()
