"""Holes across a server restart: a transaction that was prepared before the restart is still waited
for afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import asyncpg
import pytest

from headrace import store
from headrace.model.specs import ConsumerSpec
from tests.support.clusters import cluster
from tests.support.readers import Clock, Reader, publish

pytestmark = pytest.mark.asyncio


@pytest.mark.process
async def test_a_prepared_transaction_is_waited_for_over_a_restart(tmp_path: Path) -> None:
    with cluster(tmp_path / "postgres", max_prepared_transactions="5") as server:
        clock = Clock()

        async def with_a_reader(do: Callable[[Reader], Awaitable[None]]) -> None:
            database = store.Database(server.url())
            await database.open()
            try:
                await store.migrate(database)
                await store.create_stream(database, "orders")
                spec = ConsumerSpec(stream="orders", name="ship")
                await do(Reader(database, spec, (await store.declare_consumer(database, spec)).id, clock))
            finally:
                await database.close()

        async def suspect(reader: Reader) -> None:
            late = await asyncpg.connect(server.url())
            await late.execute("begin; select headrace.publish('orders', 'late', '1')")
            await publish(reader.executor, "early")
            await read(reader)
            assert (await reader.cursor())["suspects"]
            await late.execute("prepare transaction 'late'")
            await late.close()

        async def read(reader: Reader) -> None:
            for _ in range(4):
                clock.advance(2)
                await publish(reader.executor, "more")
                await reader.drain()

        async def commit(reader: Reader) -> None:
            await read(reader)
            await reader.executor.fetch("commit prepared 'late'")
            assert await reader.drain() == [1]

        await with_a_reader(suspect)
        await anyio.to_thread.run_sync(server.restart)
        await with_a_reader(commit)
