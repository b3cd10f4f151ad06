"""Headrace: a stream, and a consumer for each reader.

The handler takes one message, which its documentation recommends where messages succeed or fail for themselves: the worker
leases and acks them by the batch, as the loops of other peers do. A handler of batches has the messages of a key in one
call, so it fits where the job has a transaction for a batch. Orders are not typed, since peers hand out plain JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar

from benchmarks.harness import opened
from benchmarks.peers.process.adapter import Adapter
from benchmarks.peers.process.messages import Message
from benchmarks.peers.process.recorder import Handler
from headrace import App, Transaction, store
from headrace.model.specs import StreamSpec

STREAM = "orders"
TRANSACTIONS = 7
"""Transactional handlers at a time, as many as `max_connections=10` leaves room for."""


class Peer(Adapter):
    SETTINGS: ClassVar[dict[str, Any]] = {"concurrency": 256, "max_ack_pending": 10_000, "ack_wait": 30.0, "retry": 1.0}
    _app: App

    async def set_up(self) -> None:
        async with opened(self.url) as database:
            await store.migrate(database)
            await store.create_stream(database, StreamSpec(name=STREAM))

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[None]:
        async with App(self.url) as self._app:
            yield

    async def publish(self, messages: Sequence[Message], delay: float | None = None) -> None:
        if len(messages) == 1 and delay is None:
            await self._app.publish(STREAM, messages[0].key, messages[0].order)
        else:
            await self._app.publish_many(STREAM, [(one.key, one.order) for one in messages], delay=delay)

    @asynccontextmanager
    async def open_transaction(self, messages: Sequence[Message]) -> AsyncIterator[None]:
        async with self._app.transaction() as tx:
            await self._app.publish_many(STREAM, [(one.key, one.order) for one in messages], tx=tx)
            yield

    async def remaining(self) -> int:
        infos = [await store.consumer(self._app.database, STREAM, _name(reader)) for reader in range(self.readers)]
        return sum(info.lag + info.in_flight + info.parked for info in infos)

    async def stored(self) -> int:
        return int(await self._app.database.fetchval(f'select count(*) from headrace_streams."{STREAM}"'))

    async def consume(self, handler: Handler, reader: int, stop: asyncio.Event) -> None:
        app = App(self.url)
        options: dict[str, Any] = {
            "concurrency": self.settings["concurrency"],
            "max_ack_pending": self.settings["max_ack_pending"],
            "ack_wait": self.settings["ack_wait"],
            "backoff": [self.settings["retry"]],
        }
        if handler.mode == "effect":
            options |= {"transactional": True, "concurrency": TRANSACTIONS}
        if self.transaction > 1:
            options["batch"] = self.transaction
        app.consumer(STREAM, name=_name(reader), **options)(self._handler(handler))
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            stack.callback(stop.set)
            group.create_task(app.run())
            await stop.wait()
            app.stop()

    def _handler(self, handler: Handler) -> Callable[..., Awaitable[None]]:
        async def write(order: dict[str, Any], tx: Transaction) -> None:
            await handler(order, tx.execute)

        async def write_all(orders: list[dict[str, Any]], tx: Transaction) -> None:
            await handler.run(orders, ordered=False, write=tx.execute)

        if handler.mode != "effect":
            return handler.handle
        return write_all if self.transaction > 1 else write


def _name(reader: int) -> str:
    return f"reader-{reader}"
