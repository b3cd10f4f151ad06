"""A COMMIT with a lost answer: nothing is retried before the outcome of the transaction is known."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import asyncpg
import pytest
import pytest_asyncio

from headrace import App, Message, StoreUnavailable, Transaction, store
from headrace.store.connections.hold import Hold
from tests.runtime.running import Seen, consumer, running


@pytest_asyncio.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    app = App(dsn, streams=["orders"])
    async with app:
        await app.database.fetch("create table effects (id bigint)")
        yield app


@pytest.fixture(params=["id_from_the_ack", "id_from_the_begin", "next_begun_with_the_commit"])
def assigned(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transactions of handlers get their id with the ack, or at the BEGIN. Then the ack and the COMMIT are sent
    together, and with them the BEGIN of the next one."""
    begin, ack_and_commit = store.Database.begin, Transaction.ack_and_commit

    async def begun(database: store.Database, idle: float, *, assign: bool = False) -> Hold:
        return await begin(database, idle, assign=request.param != "id_from_the_ack")

    async def committed(transaction: Transaction, *args: Any, begin_next: bool, **options: Any) -> None:
        begin_next = request.param == "next_begun_with_the_commit"
        await ack_and_commit(transaction, *args, begin_next=begin_next, **options)

    monkeypatch.setattr(store.Database, "begin", begun)
    monkeypatch.setattr(Transaction, "ack_and_commit", committed)


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch, assigned: None) -> Callable[..., list[str]]:
    """Let the next COMMIT fail, before the server receives it or before its answer arrives. Returns
    what was done, in order."""

    def breaks(when: str) -> list[str]:
        status, done = store.transaction_status, []

        def breaking(commit: Callable[..., Any]) -> Callable[..., Any]:
            async def broken(hold: Hold, *args: Any, **options: Any) -> None:
                if "break" in done:
                    await commit(hold, *args, **options)
                    return
                done.append("break")
                if when == "after":
                    await commit(hold, *args, **options)
                else:
                    hold.break_off()
                raise ConnectionResetError("the connection broke at COMMIT")

            return broken

        async def noted(executor: Any, xid: int, **more: Any) -> Any:
            found = await status(executor, xid, **more)
            done.append(found)
            return found

        monkeypatch.setattr(Hold, "commit", breaking(Hold.commit))
        monkeypatch.setattr(Hold, "run_and_commit", breaking(Hold.run_and_commit))
        monkeypatch.setattr(store, "transaction_status", noted)
        return done

    return breaks


async def effects(app: App) -> list[int]:
    return [row[0] for row in await app.database.fetch("select id from effects order by id")]


async def nothing_is_left(app: App) -> None:
    info = await consumer(app, "ship")
    assert (info.lag, info.in_flight, info.parked, info.dead_letters) == (0, 0, 0, 0)
    assert await app.database.fetchval("select count(*) from headrace_internal.acks") == 0


@pytest.mark.asyncio
async def test_a_commit_that_happened_is_not_done_again(app: App, breaks: Callable[..., list[str]]) -> None:
    attempts = Seen()

    @app.consumer("orders", transactional=True, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        attempts.note(message.attempt)
        await tx.execute("insert into effects values ($1)", number)

    async with running(app):
        done = breaks("after")
        await app.publish("orders", "k", 7)
        await app.idle()
    assert attempts.notes == [1]
    assert done == ["break", "committed"]
    assert await effects(app) == [7]
    await nothing_is_left(app)


@pytest.mark.asyncio
async def test_a_commit_that_did_not_happen_is_a_failed_attempt(app: App, breaks: Callable[..., list[str]]) -> None:
    attempts = Seen()

    @app.consumer("orders", transactional=True, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        attempts.note(message.attempt)
        await tx.execute("insert into effects values ($1)", number)

    async with running(app):
        done = breaks("before")
        await app.publish("orders", "k", 7)
        await app.idle()
    assert attempts.notes == [1, 2]
    assert done[0] == "break"
    assert done[-1] == "aborted"
    assert await effects(app) == [7]
    await nothing_is_left(app)


@pytest.mark.asyncio
async def test_nothing_is_retried_while_the_answer_is_not_known(
    app: App, breaks: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the database is unavailable, then the outcome is not known yet, then it is known."""
    attempts, answers = Seen(), [StoreUnavailable("gone"), "in progress", "in progress"]

    @app.consumer("orders", transactional=True, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        attempts.note(message.attempt)
        await tx.execute("insert into effects values ($1)", number)

    async with running(app):
        breaks("after")
        status = store.transaction_status

        async def slow(executor: Any, xid: int, **more: Any) -> Any:
            if answers:
                answer = answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer
            return await status(executor, xid, **more)

        monkeypatch.setattr(store, "transaction_status", slow)
        await app.publish_many("orders", [("k", 7), ("k", 8)])
        await app.idle()
    assert answers == []
    assert attempts.notes == [1, 1]
    assert await effects(app) == [7, 8]
    await nothing_is_left(app)


@pytest.mark.asyncio
async def test_a_timeout_that_comes_during_the_commit_comes_too_late(
    app: App, assigned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Seen()

    @app.consumer("orders", transactional=True, timeout=0.2, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        attempts.note(message.attempt)
        await tx.execute("insert into effects values ($1)", number)

    def slow(commit: Callable[..., Any]) -> Callable[..., Any]:
        async def slowly(hold: Hold, *args: Any, **options: Any) -> None:
            if attempts.notes == [1]:
                await hold.connection.execute("select pg_sleep(1)")
            await commit(hold, *args, **options)

        return slowly

    monkeypatch.setattr(Hold, "commit", slow(Hold.commit))
    monkeypatch.setattr(Hold, "run_and_commit", slow(Hold.run_and_commit))
    async with running(app):
        await app.publish_many("orders", [("k", 7), ("k", 8)])
        await app.idle()
    assert attempts.notes == [1, 1]
    assert await effects(app) == [7, 8]
    await nothing_is_left(app)


# --- app.transaction()


@pytest.mark.asyncio
async def test_a_service_writes_and_publishes_in_one_transaction(app: App) -> None:
    async with app.transaction() as tx:
        await tx.execute("insert into effects values (7)")
        assert await app.publish("orders", "k", 7, tx=tx) == 1
        assert await app.publish_many("orders", [("k", 8)], tx=tx) == 1
        assert await tx.publish("orders", "k", 9) == 3
        assert await app.database.fetchval("select count(*) from headrace_streams.orders") == 0
    assert await effects(app) == [7]
    assert await app.database.fetchval("select count(*) from headrace_streams.orders") == 3


@pytest.mark.asyncio
async def test_an_exception_rolls_back_the_writes_of_a_service(app: App) -> None:
    async def fail() -> None:
        async with app.transaction() as tx:
            await tx.execute("insert into effects values (7)")
            await tx.publish("orders", "k", 7)
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        await fail()
    assert await effects(app) == []
    assert await app.database.fetchval("select count(*) from headrace_streams.orders") == 0


@pytest.mark.asyncio
async def test_app_transaction_raises_when_a_swallowed_error_prevented_the_commit(app: App) -> None:
    async def swallow() -> None:
        async with app.transaction() as tx:
            with pytest.raises(asyncpg.UndefinedTableError):
                await tx.execute("insert into nowhere values (7)")

    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await swallow()


@pytest.mark.asyncio
@pytest.mark.parametrize(("when", "there"), [("after", [7]), ("before", [])])
async def test_a_service_knows_whether_it_was_committed(
    app: App, breaks: Callable[..., list[str]], when: str, there: list[int]
) -> None:
    async def write() -> None:
        async with app.transaction() as tx:
            await tx.execute("insert into effects values (7)")
            await tx.publish("orders", "k", 7)

    done = breaks(when)
    if there:
        await write()
    else:
        with pytest.raises(StoreUnavailable, match="The transaction was not committed"):
            await write()
    assert done[0] == "break"
    assert done[-1] == ("committed" if there else "aborted")
    assert await effects(app) == there


@pytest.mark.asyncio
async def test_consumers_of_this_process_are_notified_after_the_commit_even_for_later_messages(app: App) -> None:
    seen = Seen()

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        async with app.transaction() as tx:
            await tx.publish("orders", "k", 1)
            await tx.publish("orders", "k", 2, delay=0.01)
        assert await seen.until(2) == [1, 2]


@pytest.mark.asyncio
async def test_a_transaction_that_gets_no_connection_in_time_is_refused_with_the_reason(app: App) -> None:
    async with anyio.create_task_group() as group:
        inside, over = [0], anyio.Event()

        async def hold() -> None:
            async with app.transaction():
                inside[0] += 1
                await over.wait()

        for _ in range(app.database.holds):
            group.start_soon(hold)
        while inside[0] < app.database.holds:
            await anyio.lowlevel.checkpoint()
        app.database.connect_timeout = 0.05
        with pytest.raises(
            StoreUnavailable, match="All 7 transactions that this process may hold open have been in use"
        ):
            await app.transaction().__aenter__()
        over.set()
