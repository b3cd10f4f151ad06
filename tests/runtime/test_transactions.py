"""Transactional handlers: their writes, published messages and ack commit together or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from headrace import App, ConfigurationError, Message, Reject, Retry, StoreUnavailable, Transaction
from tests.runtime.running import Gate, Seen, consumer, dead_letters, eventually, running, seek, work_off


@pytest_asyncio.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    app = App(dsn, streams=["orders", "invoices"])
    async with app:
        await app.database.fetch("create table effects (id bigint, note text)")
        yield app


async def effects(app: App) -> list[int]:
    return [row[0] for row in await app.database.fetch("select id from effects order by id")]


async def published(app: App, stream: str = "invoices") -> list[tuple[str, str]]:
    return [tuple(row) for row in await app.database.fetch(f"select key, data::text from headrace_streams.{stream}")]


async def nothing_is_left(app: App, name: str = "ship") -> None:
    info = await consumer(app, name)
    assert (info.lag, info.in_flight, info.parked, info.dead_letters) == (0, 0, 0, 0)
    assert await app.database.fetchval("select count(*) from headrace_internal.acks") == 0


@pytest.mark.asyncio
async def test_a_handler_s_write_its_publish_and_its_ack_are_there_together(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", transactional=True)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", number)
        await tx.publish("invoices", "a", number)
        await message.publish("invoices", "b", number)
        seen.note((await effects(app), await published(app)))

    await work_off(app, ("k", 7))
    assert seen.notes == [([], [])]
    assert await effects(app) == [7]
    assert await published(app) == [("a", "7"), ("b", "7")]
    async with running(app):
        await app.idle()
    await nothing_is_left(app)


@pytest.mark.asyncio
async def test_many_messages_are_each_in_a_transaction_of_their_own(app: App) -> None:
    xids = Seen()

    @app.consumer("orders", transactional=True, concurrency=20)
    async def ship(number: int, tx: Transaction) -> None:
        xids.note(await tx.fetchval("insert into effects values ($1) returning pg_current_xact_id()::text", number))

    await work_off(app, *[(f"k{number % 7}", number) for number in range(200)])
    assert await effects(app) == list(range(200))
    assert len(set(xids.notes)) == 200
    await nothing_is_left(app)


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["raises", "raises Retry", "returns Retry", "nacks"])
async def test_a_handler_that_fails_leaves_nothing_behind(app: App, how: str) -> None:
    attempts = Seen()

    @app.consumer("orders", transactional=True, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> Any:
        await tx.execute("insert into effects values ($1)", message.attempt)
        await tx.publish("invoices", "k", message.attempt)
        attempts.note(message.attempt)
        if message.attempt == 1:
            match how:
                case "raises":
                    raise RuntimeError("no")
                case "raises Retry":
                    raise Retry(after=0)
                case "returns Retry":
                    return Retry(after=0)
                case "nacks":
                    await message.nack(0)
        return None

    await work_off(app, ("k", 7))
    assert attempts.notes == [1, 2]
    assert await effects(app) == [2]
    assert await published(app) == [("k", "2")]
    await nothing_is_left(app)


@pytest.mark.asyncio
async def test_a_rejected_message_leaves_nothing_but_its_dead_letter(app: App) -> None:
    @app.consumer("orders", transactional=True)
    async def ship(number: int, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", number)
        raise Reject("never")

    await work_off(app, ("k", 7))
    assert await effects(app) == []
    assert [(letter.seq, letter.error) for letter in await dead_letters(app, "ship")] == [(1, "never")]


@pytest.mark.asyncio
async def test_a_constraint_that_fails_at_the_commit_fails_the_attempt(app: App) -> None:
    await app.database.fetch("alter table effects add constraint once unique (id) deferrable initially deferred")
    await app.database.fetch("insert into effects values (7)")

    @app.consumer("orders", transactional=True, max_deliver=1)
    async def ship(number: int, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", number)

    await work_off(app, ("k", 7))
    assert await effects(app) == [7]
    [letter] = await dead_letters(app, "ship")
    assert letter.error is not None
    assert letter.error.startswith("UniqueViolationError: duplicate key value violates unique constraint")


@pytest.mark.asyncio
async def test_a_failed_statement_that_is_swallowed_is_reported_and_not_committed(app: App) -> None:
    @app.consumer("orders", transactional=True, max_deliver=1)
    async def ship(number: int, tx: Transaction) -> None:
        with pytest.raises(asyncpg.UndefinedTableError):
            await tx.execute("insert into nowhere values (1)")

    await work_off(app, ("k", 7))
    [letter] = await dead_letters(app, "ship")
    assert letter.error is not None
    assert "A statement of the handler's transaction failed and the handler continued" in letter.error


@pytest.mark.asyncio
async def test_a_savepoint_rolls_back_a_part(app: App) -> None:
    async def one_that_fails(tx: Transaction) -> None:
        async with tx.transaction():
            await tx.execute("insert into effects values (3)")
            await tx.fetchval("select 1 / 0")

    @app.consumer("orders", transactional=True)
    async def ship(number: int, tx: Transaction) -> None:
        await tx.executemany("insert into effects values ($1)", [(1,), (2,)])
        with pytest.raises(asyncpg.DivisionByZeroError):
            await one_that_fails(tx)
        async with tx.connection.transaction():
            await tx.copy_records_to_table("effects", records=[(4, "x")])
        assert [row["id"] async for row in tx.cursor("select id from effects order by id")] == [1, 2, 4]
        assert (await tx.fetchrow("select count(*) from effects"))[0] == 3
        assert len(await tx.fetch("select * from effects")) == 3

    await work_off(app, ("k", 7))
    assert await effects(app) == [1, 2, 4]
    await nothing_is_left(app)


@pytest.mark.asyncio
async def test_a_transaction_that_has_ended_refuses_statements(app: App) -> None:
    kept: list[Transaction] = []

    @app.consumer("orders", transactional=True)
    async def ship(number: int, tx: Transaction) -> None:
        kept.append(tx)

    await work_off(app, ("k", 7))
    with pytest.raises(ConfigurationError, match="The transaction has ended: use it only inside its handler"):
        await kept[0].execute("select 1")
    with pytest.raises(ConfigurationError, match="The transaction has ended"):
        await app.publish("orders", "k", 1, tx=kept[0])


@pytest.mark.asyncio
async def test_an_ack_of_one_s_own_has_no_place_in_a_transactional_handler(app: App) -> None:
    @app.consumer("orders", transactional=True, max_deliver=1)
    async def ship(message: Message) -> None:
        await message.ack()

    await work_off(app, ("k", 7))
    [letter] = await dead_letters(app, "ship")
    assert letter.error is not None
    assert "The handler 'ship' is transactional, so its own transaction acks the message" in letter.error


@pytest.mark.asyncio
async def test_a_lost_lease_rolls_back_the_transaction(app: App) -> None:
    gate, attempts = Gate(), Seen()

    @app.consumer("orders", transactional=True)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", number)
        attempts.note(message.attempt)
        if len(attempts.notes) == 1:
            await gate.wait()

    async with running(app):
        await app.publish("orders", "k", 7)
        await gate.until(1)
        await seek(app, "ship", 0)  # ends every lease of the consumer, and starts at the beginning
        gate.open()
        await attempts.until(2)
        await app.idle()
    assert await effects(app) == [7]
    await nothing_is_left(app)


@pytest.mark.asyncio
async def test_a_timeout_rolls_back_the_transaction(app: App) -> None:
    attempts = Seen()

    @app.consumer("orders", transactional=True, timeout=0.05, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", message.attempt)
        attempts.note(message.attempt)
        if message.attempt == 1:
            await tx.execute("select pg_sleep(60)")

    await work_off(app, ("k", 7))
    # On a slow machine more attempts than the first may take too long, some of them before they note anything.
    assert attempts.notes[-1] > 1
    assert await effects(app) == attempts.notes[-1:]
    await nothing_is_left(app)


@pytest.mark.asyncio
async def test_consumers_are_notified_after_the_commit(app: App) -> None:
    """Notifications are sent only when the messages are visible. The poll would come much later."""
    bills = Seen()

    @app.consumer("orders", transactional=True)
    async def ship(number: int, tx: Transaction) -> None:
        await tx.publish("invoices", "k", number)

    @app.consumer("invoices")
    async def bill(number: int) -> None:
        bills.note(number)

    async with running(app):
        await app.publish("orders", "k", 7)
        assert await bills.until(1) == [7]


@pytest.mark.asyncio
async def test_transactions_of_handlers_leave_connections_for_leasing_and_settling(dsn: str) -> None:
    app = App(dsn, streams=["orders"], max_connections=3)
    gate = Gate()

    @app.consumer("orders", transactional=True, concurrency=50)
    async def ship(number: int, tx: Transaction) -> None:
        await tx.fetchval("select 1")
        await gate.wait()

    async with running(app):
        assert app.database.holds == 2
        await app.publish_many("orders", [(f"k{number}", number) for number in range(50)])
        await gate.until(2)
        for _ in range(10):  # leasing, settling and publishing find a connection although all handlers hold theirs
            await app.publish("orders", "k", 51)
        found = app.database.statistics()
        assert (found["held"], found["holds"], gate.most) == (2, 2, 2)
        gate.open()
        await app.idle()
        found = app.database.statistics()
        assert found["held"] == 0
        assert found["waits"] > 0
        assert found["waited"] > 0
    assert gate.most <= 2


@pytest.mark.asyncio
async def test_a_drain_lets_a_commit_finish(app: App) -> None:
    gate = Gate()

    @app.consumer("orders", transactional=True)
    async def ship(number: int, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", number)
        await gate.wait()

    async with running(app):
        await app.publish("orders", "k", 7)
        await gate.until(1)
        app.stop()
        gate.open()
    assert await effects(app) == [7]
    await nothing_is_left(app)


@pytest.mark.asyncio
async def test_a_handler_that_is_stopped_at_the_end_of_a_drain_leaves_nothing_behind(app: App) -> None:
    gate = Gate()

    @app.consumer("orders", transactional=True)
    async def ship(number: int, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", number)
        await gate.wait()

    async with running(app):
        await app.publish("orders", "k", 7)
        await gate.until(1)
        app.stop()
        app.stop()
    assert await effects(app) == []
    info = await consumer(app, "ship")
    assert (info.in_flight, info.parked) == (0, 1)


@pytest.mark.asyncio
async def test_round_trips_are_few(app: App) -> None:
    """The handler's statement, and the ack with COMMIT and the BEGIN of the next transaction."""
    counts = Seen()

    @app.consumer("orders", transactional=True, concurrency=1)
    async def ship(number: int, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", number)

    @app.middleware
    async def counted(delivery: Any, call_next: Any) -> None:
        before = app.database.statistics()["round_trips"]
        await call_next()
        counts.note(app.database.statistics()["round_trips"] - before)

    # So many that the consumer leases several at a time before they are done. The first calls bring one or two.
    await work_off(app, *[("k", number) for number in range(300)])
    assert min(counts.notes) == 2, "each begins the transaction of the next with its COMMIT"


@pytest.mark.asyncio
async def test_the_server_ends_a_transaction_in_which_nothing_happens(app: App) -> None:
    """As with a frozen process. Its locks must not be held for long."""
    first, again = Gate(), Seen()

    @app.consumer("orders", transactional=True, ack_wait=0.3, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", message.attempt)
        if message.attempt == 1:
            await first.wait()
        again.note(message.attempt)

    async with running(app):
        await app.publish("orders", "k", 7)
        await first.until(1)

        async def ended() -> bool:
            return not await app.database.fetchval(
                "select count(*) from pg_stat_activity where state = 'idle in transaction' and datname = current_database()"
            )

        await eventually(ended)
        first.open()
        await again.until(2)
        await app.idle()
    assert await effects(app) == [2]
    await nothing_is_left(app)


@pytest.mark.asyncio
async def test_a_database_that_goes_away_before_the_handler_costs_no_attempt(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", transactional=True, backoff=0, max_deliver=1)
    async def ship(number: int, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", number)
        seen.note(number)

    async with running(app):
        await app.publish("orders", "k", 1)
        await seen.until(1)
        await app.idle()
        begin, failures = app.database.begin, [StoreUnavailable("gone")] * 3

        async def unlucky(idle: float, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return await begin(idle, **options)

        app.database.begin = unlucky  # type: ignore[method-assign]
        await app.publish("orders", "k", 2)
        await seen.until(2)
        await app.idle()
    assert await effects(app) == [1, 2]
    await nothing_is_left(app)
