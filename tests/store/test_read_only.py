"""A database that is read-only for a while. Its sessions keep the mode that they began with, so they have to be replaced."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest
import pytest_asyncio

from headrace import store
from headrace.model.errors import StoreUnavailable
from headrace.store.connections import connection
from headrace.store.database.errors import translate
from tests.support.servers import opened

pytestmark = pytest.mark.asyncio

READ_ONLY = "alter database {} set default_transaction_read_only = on"
WRITABLE = "alter database {} reset default_transaction_read_only"
INSERT = "insert into effects values (1)"


@pytest_asyncio.fixture
async def limited(database: store.Database) -> AsyncIterator[store.Database]:
    """A database whose sessions begin read-only, until `WRITABLE` is run on `database`."""
    await database.fetch("create table effects (number int)")
    name = await database.fetchval("select current_database()")
    await database.fetch(READ_ONLY.format(name))
    async with opened(database.dsn) as limited:
        yield limited
    await database.fetch(WRITABLE.format(name))


async def _call(database: store.Database) -> None:
    await database.fetch(INSERT)


async def _transaction(database: store.Database) -> None:
    async with database.transaction() as transaction:
        await transaction.execute(INSERT)


async def _hold(database: store.Database) -> None:
    """As the transaction of a handler."""
    hold = await database.begin(idle=60, assign=True)
    try:
        await hold.run_and_commit(INSERT, (), timeout=10)
    finally:
        await database.end(hold)


@pytest.mark.parametrize("write", [_call, _transaction, _hold])
async def test_sessions_that_began_read_only_are_replaced(
    database: store.Database,
    limited: store.Database,
    write: Callable[[store.Database], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "READ_ONLY_TIME", 0.0)
    with pytest.raises(Exception, match="read-only"):
        await write(limited)
    await database.fetch(WRITABLE.format(await database.fetchval("select current_database()")))
    await write(limited)
    assert await database.fetchval("select count(*) from effects") == 1


async def test_a_database_that_stays_read_only_gets_no_session_for_each_call(
    limited: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "READ_ONLY_TIME", math.inf)
    pid = await limited.fetchval("select pg_backend_pid()")
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match=r"is read-only .*default_transaction_read_only"):
            await _call(limited)
    assert await limited.fetchval("select pg_backend_pid()") == pid


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction"),
        asyncpg.FeatureNotSupportedError("cannot access temporary or unlogged relations during recovery"),
        asyncpg.ObjectNotInPrerequisiteStateError("recovery is in progress"),
    ],
)
async def test_each_refusal_of_a_standby_says_that_it_is_one(error: asyncpg.PostgresError) -> None:
    found = translate(error, "postgresql://db/shop")
    assert isinstance(found, StoreUnavailable)
    assert "The database at postgresql://db/shop is read-only" in str(found)
    assert "It is a standby" in str(found)
