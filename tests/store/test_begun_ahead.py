"""Transactions that were begun together with the COMMIT of the one before: the next handler takes them, or they are ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import asyncpg
import pytest
import pytest_asyncio

from headrace import store
from headrace.store.connections import hold as holds
from headrace.store.connections.hold import Hold

pytestmark = pytest.mark.asyncio

NOTHING = "select where $1::int is null"
"""Returns no rows for a number."""


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is begun ahead wait for as long as a test takes."""
    monkeypatch.setattr(holds, "UNUSED", 3600.0)
    monkeypatch.setattr(holds, "_STALE", 3600.0)


@pytest_asyncio.fixture
async def few(empty_dsn: str) -> AsyncIterator[store.Database]:
    """A database with three connections at most, of which two may be in transactions of user code."""
    database = store.Database(empty_dsn, max_connections=3, connect_timeout=5)
    await database.open()
    await database.fetch("create table effects (id int)")
    yield database
    await database.close()


async def committed_with_the_next(database: store.Database, idle: float = 30, number: int = 1) -> Hold:
    """A transaction that wrote a row, was committed, and has begun the next one, which is kept."""
    hold = await database.begin(idle, assign=True)
    await hold.connection.execute("insert into effects values ($1)", number)
    assert database.may_begin_ahead(hold)
    await hold.run_and_commit(NOTHING, ("1",), 10, begin_next=True)
    assert hold.begun_ahead
    await database.end(hold)
    assert database.connections.begun == 1
    return hold


async def open_transactions(database: store.Database) -> int:
    count: int = await database.fetchval(
        "select count(*) from pg_stat_activity where state like 'idle in transaction%' and datname = current_database()"
    )
    return count


async def effects(database: store.Database) -> list[int]:
    return [row[0] for row in await database.fetch("select id from effects order by id")]


async def test_the_next_handler_takes_it(few: store.Database) -> None:
    before = await committed_with_the_next(few)
    assert await effects(few) == [1]
    sent = few.statistics()["round_trips"]
    hold = await few.begin(30, assign=True)
    assert few.statistics()["round_trips"] == sent
    assert hold is before
    assert not hold.begun_ahead
    assert hold.xid == await hold.connection.fetchval("select pg_current_xact_id()::text::bigint")
    assert await hold.connection.fetchval("show idle_in_transaction_session_timeout") == "30s"
    await hold.connection.execute("insert into effects values (2)")
    await few.end(hold)
    assert await effects(few) == [1]
    assert few.statistics()["held"] == 0


async def timeouts(database: store.Database) -> list[str]:
    """The timeout for idle transactions, as each of the connections has it outside of those."""
    async with anyio.create_task_group() as group:
        found: list[str] = []

        async def show() -> None:
            found.append(
                await database.fetchval(
                    "select current_setting('idle_in_transaction_session_timeout') from pg_sleep(0.05)"
                )
            )

        for _ in range(3):
            group.start_soon(show)
    return found


async def _committed(database: store.Database, hold: Hold) -> None:
    await hold.run_and_commit(NOTHING, ("1",), 10)
    await database.end(hold)


async def _committed_in_pieces(database: store.Database, hold: Hold) -> None:
    await hold.run_and_commit("select where $1 is null", ("x" * 2000,), 10)
    await database.end(hold)


async def _committed_by_itself(database: store.Database, hold: Hold) -> None:
    await hold.commit()
    await database.end(hold)


async def _rolled_back(database: store.Database, hold: Hold) -> None:
    await database.end(hold)


async def _failed(database: store.Database, hold: Hold) -> None:
    with pytest.raises(asyncpg.DivisionByZeroError):
        await hold.run_and_commit("select where 1 / $1::int = 0", ("0",), 10)
    await database.end(hold)


async def _failed_before_the_next(database: store.Database, hold: Hold) -> None:
    with pytest.raises(asyncpg.DivisionByZeroError):
        await hold.run_and_commit("select where 1 / $1::int = 0", ("0",), 10, begin_next=True)
    await database.end(hold)


async def _ended_by_the_handler(database: store.Database, hold: Hold) -> None:
    await hold.connection.execute("rollback")
    await database.end(hold)


async def _changed_by_the_handler(database: store.Database, hold: Hold) -> None:
    await hold.connection.execute("set idle_in_transaction_session_timeout = '7s'")
    assert not database.may_begin_ahead(hold)
    await _committed(database, hold)


@pytest.mark.parametrize(
    "end",
    [
        _committed, _committed_in_pieces, _committed_by_itself, _rolled_back, _failed, _failed_before_the_next,
        _ended_by_the_handler, _changed_by_the_handler,
    ],
)  # fmt: skip
async def test_the_timeout_holds_from_one_to_the_next_and_for_nobody_else(
    few: store.Database, end: Callable[[store.Database, Hold], Awaitable[None]]
) -> None:
    usual = await timeouts(few)
    for number in (1, 2, 3):
        await committed_with_the_next(few, number=number)
    hold = await few.begin(30, assign=True)
    assert await hold.connection.fetchval("show idle_in_transaction_session_timeout") == "30s"
    await end(few, hold)
    assert await timeouts(few) == usual == ["0"] * 3
    assert await effects(few) == [1, 2, 3]
    assert few.statistics()["held"] == 0


@pytest.mark.parametrize(("idle", "assign"), [(60, True), (30, False)], ids=["another_timeout", "without_an_id"])
async def test_only_for_the_same_kind_of_transaction(few: store.Database, idle: float, assign: bool) -> None:
    await committed_with_the_next(few)
    hold = await few.begin(idle, assign=assign)
    assert (hold.xid is not None) == assign
    assert await hold.connection.fetchval("show idle_in_transaction_session_timeout") in ("1min", "30s")
    await few.end(hold)


async def test_one_that_nobody_takes_is_ended(few: store.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holds, "UNUSED", 0.001)
    await committed_with_the_next(few)
    with anyio.fail_after(30):
        while await open_transactions(few):
            await anyio.lowlevel.checkpoint()
        while few.connections._begun_ahead._unused.ending:
            await anyio.lowlevel.checkpoint()
    assert few.statistics()["held"] == 0
    assert few._hold_semaphore.value == few.holds
    assert few.statistics()["open"] == few.statistics()["idle"], "their connections are used again"


async def test_one_that_has_waited_for_long_is_not_taken(few: store.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may have ended it while a handler blocked the event loop."""
    before = await committed_with_the_next(few)
    monkeypatch.setattr(holds, "_STALE", -1.0)
    hold = await few.begin(30, assign=True)
    assert hold is not before
    await few.end(hold)


async def test_one_that_the_server_has_ended_is_not_taken(few: store.Database) -> None:
    before = await committed_with_the_next(few)
    await few.fetch(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity where state = 'idle in transaction' and datname = current_database()"
    )
    while before.connected:
        await anyio.lowlevel.checkpoint()
    hold = await few.begin(30, assign=True)
    assert hold is not before
    assert await hold.connection.fetchval("select 1") == 1
    await few.end(hold)


async def test_whoever_waits_for_a_transaction_gets_the_place_of_one_that_nobody_takes(few: store.Database) -> None:
    await committed_with_the_next(few)
    assert few.holds == 2
    one = await few.begin(60)
    with anyio.fail_after(30):
        two = await few.begin(60)
    await few.end(one)
    await few.end(two)


async def test_not_begun_while_somebody_waits_for_the_connection(few: store.Database) -> None:
    all_of_them = [await few.begin(30, assign=True) for _ in range(few.holds)]
    async with anyio.create_task_group() as group:

        async def another() -> None:
            await few.end(await few.begin(30))

        group.start_soon(another)
        while not few.waiting:
            await anyio.lowlevel.checkpoint()
        assert not any(few.may_begin_ahead(hold) for hold in all_of_them)
        for hold in all_of_them:
            await few.end(hold)


async def test_not_begun_on_a_connection_that_has_to_be_replaced(few: store.Database) -> None:
    hold = await few.begin(30, assign=True)
    assert few.may_begin_ahead(hold)
    await few._expire()
    assert not few.may_begin_ahead(hold)
    await few.end(hold)
    hold = await few.begin(30, assign=True)
    await hold.connection.add_listener("news", lambda *_: None)
    assert not few.may_begin_ahead(hold)
    await few.end(hold)


@pytest.mark.parametrize("way", ["close", "drain", "_expire"])
async def test_none_is_left_when_the_connections_end(few: store.Database, way: str) -> None:
    hold = await committed_with_the_next(few)
    with anyio.fail_after(10):
        await getattr(few, way)()
        while hold.connected:
            await anyio.lowlevel.checkpoint()


async def test_a_last_statement_that_fails_commits_and_begins_nothing(few: store.Database) -> None:
    hold = await few.begin(30, assign=True)
    await hold.connection.execute("insert into effects values (7)")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await hold.run_and_commit("select where 1 / $1::int is null", ("0",), 10, begin_next=True)
    assert not hold.begun_ahead
    inner = hold.connection._con
    await few.end(hold)
    assert await effects(few) == []
    assert inner.reusable


async def test_a_commit_that_fails_begins_nothing(few: store.Database) -> None:
    await few.fetch("create table numbers (id int unique deferrable initially deferred)")
    hold = await few.begin(30, assign=True)
    await hold.connection.execute("insert into numbers values (1), (1)")
    with pytest.raises(asyncpg.UniqueViolationError):
        await hold.run_and_commit(NOTHING, ("1",), 10, begin_next=True)
    assert not hold.begun_ahead
    await few.end(hold)
    assert await open_transactions(few) == 0
    assert await few.fetchval("select count(*) from numbers") == 0


async def test_what_does_not_fit_in_one_packet_is_committed_and_begins_nothing(few: store.Database) -> None:
    hold = await few.begin(30, assign=True)
    await hold.connection.execute("insert into effects values (7)")
    await hold.run_and_commit("select where $1::text is null", ("x" * 5000,), 10, begin_next=True)
    assert not hold.begun_ahead
    await few.end(hold)
    assert await effects(few) == [7]
    assert await open_transactions(few) == 0


async def test_nothing_that_a_handler_keeps_reaches_the_next_transaction(few: store.Database) -> None:
    hold = await few.begin(30, assign=True)
    connection = hold.connection
    savepoint, statement = (
        connection.transaction(),
        await connection.prepare("insert into effects values (7) returning id"),
    )
    cursor = connection.cursor("insert into effects values (7) returning id")
    await hold.run_and_commit(NOTHING, ("1",), 10, begin_next=True)

    async def iterated() -> list[Any]:
        return [row async for row in cursor]

    for attempt in (
        lambda: connection.execute("insert into effects values (7)"),
        lambda: connection.fetchval("insert into effects values (7) returning id"),
        lambda: connection.copy_records_to_table("effects", records=[(7,)]),
        savepoint.start, statement.fetch, iterated,
    ):  # fmt: skip
        with pytest.raises(asyncpg.InterfaceError):
            await attempt()
    await few.end(hold)
    await anyio.lowlevel.checkpoint()
    hold = await few.begin(30, assign=True)
    await hold.commit()
    await few.end(hold)
    assert await effects(few) == []
