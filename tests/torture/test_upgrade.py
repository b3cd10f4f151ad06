"""The server functions are replaced, as an upgrade does, while publishers publish and workers work."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import anyio
import asyncpg
import pytest

from headrace import store
from tests.torture.fleet import Fleet
from tests.torture.ledger import check_settles, counts, nothing_is_left, open_ledger
from tests.torture.publishers import Publishers


@pytest.mark.asyncio
@pytest.mark.long
async def test_running_workers_and_publishers_survive_an_upgrade(database: store.Database, tmp_path: Path) -> None:
    await run_through_upgrades(database, tmp_path, upgrades=4)


@pytest.mark.torture
@pytest.mark.asyncio
async def test_running_workers_and_publishers_survive_many_upgrades(database: store.Database, tmp_path: Path) -> None:
    await run_through_upgrades(database, tmp_path, upgrades=100)


async def run_through_upgrades(database: store.Database, logs: Path, *, upgrades: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}, workers' logs in {logs}")
    chance = random.Random(seed)
    await store.create_stream(database, "orders")
    connection = await asyncpg.connect(database.dsn)
    await open_ledger(connection)
    publishers = Publishers(database.dsn, "orders", seed, pause=0.004)
    async with Fleet(
        "receipts", 2, logs, seed, dsn=database.dsn, stream="orders", ack_wait="2s", failures=0.05, pace=0.01
    ) as fleet:
        await fleet.ready()
        enough = anyio.Event()
        publishing = asyncio.create_task(publishers.run(enough))
        for _ in range(upgrades):
            await asyncio.sleep(chance.uniform(0.1, 0.5))
            assert await store.migrate(database, reinstall=True) == ["installed the server functions"]
        enough.set()
        await fleet.or_death(publishing)
        await fleet.finish()
    await publishers.check(connection)
    accepted, refused = await check_settles(connection, fleet.lines())
    print(
        f"{upgrades} upgrades, {publishers.count} published, {len(publishers.doubtful)} in doubt, {await counts(connection)},"
        f" outcomes accepted {accepted}, refused {refused}"
    )
    await connection.close()
    await nothing_is_left(database, "orders")
