"""Connections are terminated, two a second, while publishers publish and workers work."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import anyio
import asyncpg
import pytest

from headrace import store
from headrace.model.errors import StoreUnavailable
from tests.torture.fleet import Fleet
from tests.torture.ledger import check_settles, counts, nothing_is_left, open_ledger
from tests.torture.publishers import Publishers

# Pick any two, but prefer active ones.
_TERMINATE = """
select count(pg_terminate_backend(pid)) from (
    select pid from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
    order by random() * case state when 'active' then 0.1 else 1 end limit 2) as victims
"""


@pytest.mark.long
@pytest.mark.asyncio
async def test_nothing_is_lost_while_backends_are_killed(database: store.Database, tmp_path: Path) -> None:
    await run_through_kills(database, tmp_path, seconds=3)


@pytest.mark.torture
@pytest.mark.asyncio
async def test_nothing_is_lost_while_backends_are_killed_for_a_minute(database: store.Database, tmp_path: Path) -> None:
    await run_through_kills(database, tmp_path, seconds=60)


async def run_through_kills(database: store.Database, logs: Path, *, seconds: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}, workers' logs in {logs}")
    await store.create_stream(database, "orders")
    connection = await asyncpg.connect(database.dsn)
    await open_ledger(connection)
    publishers = Publishers(database.dsn, "orders", seed, pause=0.004)
    chance = random.Random(seed)
    killed = 0
    async with Fleet(
        "receipts", 2, logs, seed, dsn=database.dsn, stream="orders", ack_wait="2s", failures=0.05, pace=0.01
    ) as fleet:
        await fleet.ready()
        enough = anyio.Event()
        publishing = asyncio.create_task(publishers.run(enough))
        for _ in range(seconds * 2):
            await asyncio.sleep(chance.uniform(0.3, 0.7))
            killed += await connection.fetchval(_TERMINATE)
        enough.set()
        await fleet.or_death(publishing)
        await fleet.finish()
    twice = await publishers.check(connection)
    accepted, refused = await check_settles(connection, fleet.lines())
    print(
        f"{killed} backends killed, {publishers.count} published, {len(publishers.doubtful)} in doubt, {twice} of them came"
        f" twice, {await counts(connection)}, outcomes accepted {accepted}, refused {refused}"
    )
    assert killed >= seconds * 2
    await connection.close()
    await nothing_is_left(database, "orders")


@pytest.mark.asyncio
async def test_a_connection_that_dies_at_any_moment_is_retried(database: store.Database) -> None:
    """The driver raises errors of several kinds, depending on how much of the server's last message it has read."""
    admin = await asyncpg.connect(database.dsn)
    for _ in range(100):
        pid = await database.fetchval("select pg_backend_pid()")
        death = asyncio.create_task(admin.execute("select pg_terminate_backend($1)", pid))
        dead = False
        while not dead:
            try:
                dead = pid != await database.fetchval("select pg_backend_pid()")
            except StoreUnavailable:
                dead = True
        await death
    await admin.close()
