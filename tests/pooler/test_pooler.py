"""Everything works through a pooler that gives each transaction another connection."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest
import pytest_asyncio

from headrace import store
from headrace.app.app import App
from headrace.model.errors import StoreUnavailable
from headrace.model.specs import ConsumerSpec
from headrace.runtime.messages.message import Message
from headrace.store.connections.connection import Connection
from tests.pooler.conftest import renew_connections
from tests.support.readers import Clock, Reader, publish
from tests.torture.fleet import Fleet
from tests.torture.ledger import check_settles, counts, nothing_is_left, open_ledger
from tests.torture.publishers import Publishers


@pytest_asyncio.fixture
async def pooled(pooled_dsn: str) -> AsyncIterator[store.Database]:
    """An open `Database` through the pooler, with more connections than the pooler has."""
    database = store.Database(pooled_dsn, max_connections=20)
    await database.open()
    yield database
    await database.close()


@pytest.mark.asyncio
async def test_a_pooler_is_noticed(pooled: store.Database, database: store.Database) -> None:
    assert pooled.pooled
    assert not database.pooled


@pytest.mark.asyncio
async def test_an_app_starts_on_an_empty_database_and_works(empty_dsn: str, through: Callable[[str], str]) -> None:
    app = App(through(empty_dsn))
    seen: dict[str, list[int]] = defaultdict(list)

    @app.consumer("orders", backoff="10ms")
    async def ship(n: int, message: Message) -> None:
        if n % 10 == message.attempt:
            raise RuntimeError("not at first")
        seen[message.key].append(n)

    async with app.running():
        for n in range(0, 300, 3):
            await app.publish("orders", "a", n)
            await app.publish_many("orders", [("b", n + 1), ("c", n + 2)])
        await app.idle()
    assert seen == {"a": list(range(0, 300, 3)), "b": list(range(1, 300, 3)), "c": list(range(2, 300, 3))}


@pytest.mark.asyncio
async def test_twenty_owners_at_once_meet_no_prepared_statement(pooled: store.Database) -> None:
    """Behind a pooler a client gets server connections with another client's prepared statements, and
    without its own.
    """
    await store.create_stream(pooled, "orders")
    spec = ConsumerSpec(stream="orders", name="ship", max_ack_pending=10_000)
    reader = Reader(pooled, spec, (await store.declare_consumer(pooled, spec)).id, Clock())

    async def own(number: int) -> list[int]:
        found: list[int] = []
        for turn in range(10):
            await publish(pooled, *(f"key{number}.{n}" for n in range(5)), turn=turn)
            batch = await reader.lease(f"owner{number}", 7)
            await reader.extend(f"owner{number}")
            if batch.lease_id is not None:
                found += batch.seqs
                assert await reader.ack_all(batch) == []
        return found

    async with asyncio.TaskGroup() as group:
        owners = [group.create_task(own(number)) for number in range(20)]
    found = [seq for owner in owners for seq in owner.result()] + await reader.drain()
    assert sorted(found) == list(range(1, 1001))


@pytest.mark.long
@pytest.mark.asyncio
async def test_workers_and_publishers_go_on_while_connections_are_renewed(
    pooled: store.Database, database: store.Database, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}, workers' logs in {tmp_path}")
    chance = random.Random(seed)
    await store.create_stream(database, "orders")
    direct = await asyncpg.connect(database.dsn)
    await open_ledger(direct)
    publishers = Publishers(pooled.dsn, "orders", seed)
    async with Fleet(
        "receipts", 3, tmp_path, seed, dsn=pooled.dsn, stream="orders", ack_wait="1s", failures=0.05, pace=0.01
    ) as fleet:
        await fleet.ready()
        enough = anyio.Event()
        publishing = asyncio.create_task(publishers.run(enough))
        for turn in range(8):
            await asyncio.sleep(chance.uniform(0.2, 0.6))
            await renew_connections(pooled.dsn)
            if turn == 3:
                fleet.freeze(chance, 1.6)
            if turn == 5:
                fleet.kill(chance)
        enough.set()
        await fleet.or_death(publishing)
        await fleet.finish()
    await publishers.check(direct)
    accepted, refused = await check_settles(direct, fleet.lines())
    print(f"{publishers.count} published, {await counts(direct)}, outcomes accepted {accepted}, refused {refused}")
    await direct.close()
    await nothing_is_left(database, "orders")


@pytest.mark.asyncio
async def test_a_worker_that_freezes_in_a_transaction_does_not_stop_the_others(
    pooled: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a pooler a call has to be a transaction, and its client may freeze while it holds the
    lock, before it commits.
    """
    await store.create_stream(pooled, "orders")
    spec = ConsumerSpec(stream="orders", name="ship")
    reader = Reader(pooled, spec, (await store.declare_consumer(pooled, spec)).id, Clock())
    await publish(pooled, "a", "b")
    holding, thawed, fetchval = anyio.Event(), anyio.Event(), Connection.fetchval
    lock = "select pg_advisory_xact_lock(1212498508, $1)"

    async def freezing(connection: Connection, query: str, *args: Any, **options: Any) -> Any:
        found = await fetchval(connection, query, *args, **options)
        if query == lock:
            holding.set()
            await thawed.wait()
        return found

    async def frozen() -> None:
        with pytest.raises(StoreUnavailable):
            await pooled.fetchval(lock, reader.id)

    monkeypatch.setattr(Connection, "fetchval", freezing)
    async with asyncio.timeout(30):
        zombie = asyncio.create_task(frozen())
        await holding.wait()
        assert await reader.drain() == [1, 2]
        thawed.set()
        await zombie
