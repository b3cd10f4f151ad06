"""What takes long lifts the timeouts that an administrator has set, for itself."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from headrace import store
from tests.conftest import Connect
from tests.runtime.running import eventually

pytestmark = pytest.mark.asyncio

SECONDS = 1
TIMEOUTS = ("statement_timeout", "transaction_timeout")


async def limit(connection: asyncpg.Connection[asyncpg.Record], timeout: str) -> None:
    """Set a timeout for the later sessions of the database."""
    if not await connection.fetchval("select count(*) from pg_settings where name = $1", timeout):
        pytest.skip(f"PostgreSQL has {timeout} from version 17 on")
    here = await connection.fetchval("select current_database()")
    await connection.execute(f"alter database {here} set {timeout} = '{SECONDS}s'")


@pytest.mark.parametrize("timeout", TIMEOUTS)
async def test_an_upgrade_may_take_longer_than_the_timeouts_of_a_role(timeout: str, empty_dsn: str) -> None:
    waits = f"""select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
                               and clock_timestamp() - xact_start > interval '{SECONDS + 0.5} s')"""
    other, watch = await asyncpg.connect(empty_dsn), await asyncpg.connect(empty_dsn)
    database = store.Database(empty_dsn)
    try:
        await limit(other, timeout)
        await database.open()
        async with other.transaction():
            await other.execute("select pg_advisory_xact_lock(1212498508, -1)")
            upgrade = asyncio.create_task(store.migrate(database))

            async def waited() -> bool:
                return upgrade.done() or bool(await watch.fetchval(waits))

            await eventually(waited)
        assert await upgrade
    finally:
        await database.close()
        await other.close()
        await watch.close()


@pytest.mark.parametrize("timeout", TIMEOUTS)
async def test_a_vacuum_may_take_longer_than_the_timeouts_of_a_role(
    timeout: str, database: store.Database, connect: Connect
) -> None:
    await database.fetch("create table slow (n int, x text)")
    await database.fetch("alter table slow alter column x set storage plain")
    await database.fetch("insert into slow select n, repeat('x', 7000) from generate_series(1, 40) as n")
    await database.fetch("delete from slow where n % 2 = 0")
    here = await database.fetchval("select current_database()")
    await database.fetch(f"alter database {here} set vacuum_cost_delay = '100ms'")
    await database.fetch(f"alter database {here} set vacuum_cost_limit = 1")
    await limit(await connect(), timeout)
    begun = await store.vacuum_table(database, "slow")
    assert (await database.fetchval("select clock_timestamp()") - begun).total_seconds() > SECONDS
    assert await store.is_in_statistics(database, "slow", begun)


async def test_the_lock_of_an_apply_has_no_timeout_of_a_role(dsn: str, connect: Connect) -> None:
    await limit(await connect(), "transaction_timeout")
    later = store.Database(dsn)
    await later.open()
    try:
        async with later.transaction() as connection:
            await store.lock_configurations(connection)
            assert await connection.fetchval("select current_setting('transaction_timeout')") == "0"
    finally:
        await later.close()
