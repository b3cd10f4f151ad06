"""The ack of a transactional handler and the COMMIT are one message to the server: both take effect, or neither."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import anyio
import asyncpg
import pytest
import pytest_asyncio

from headrace import App, ConfigurationError, Message, Transaction, store
from headrace.runtime.handlers import transactional
from headrace.store.connections import connection as connections
from headrace.store.connections import hold as holds
from headrace.store.connections.hold import Hold
from headrace.store.connections.statements import ending_when_idle
from headrace.store.database import database as databases
from tests.conftest import Connect
from tests.runtime.running import Gate, Seen, consumer, dead_letters, eventually, running, seek
from tests.support.commits import Break, CommitProxy, commit_proxy

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every transaction gets its id at the BEGIN, except the first of a consumer."""
    monkeypatch.setattr(transactional, "QUICK", 60.0)


@pytest_asyncio.fixture
async def proxy(dsn: str) -> AsyncIterator[CommitProxy]:
    async with commit_proxy(dsn) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def app(dsn: str, database: store.Database) -> AsyncIterator[App]:
    app = App(dsn, streams=["orders", "invoices"])
    async with app:
        await database.fetch("create table effects (id bigint, note text)")
        yield app


async def effects(app: App) -> list[int]:
    return [row[0] for row in await app.database.fetch("select id from effects order by id")]


async def nothing_is_left(app: App, name: str = "ship") -> None:
    info = await consumer(app, name)
    assert (info.lag, info.in_flight, info.parked, info.dead_letters) == (0, 0, 0, 0)
    assert await app.database.fetchval("select count(*) from headrace_internal.acks") == 0


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """The result of each lookup of a transaction."""
    seen, status = Seen(), store.transaction_status

    async def noted(executor: Any, xid: int, **more: Any) -> Any:
        answer = await status(executor, xid, **more)
        seen.note(answer)
        return answer

    monkeypatch.setattr(store, "transaction_status", noted)
    return seen


async def warm_up(app: App, seen: Seen) -> None:
    """Let the first message through, which is committed in two messages to the server."""
    await app.publish("orders", "warm", 0)
    await seen.until(1)
    await app.idle()


# --- a connection that breaks


@pytest.mark.parametrize("waiting", [[], [8]], ids=["alone", "with_the_next_begin"])
@pytest.mark.parametrize(("when", "attempts"), [("before", [1, 2]), ("after", [1])])
async def test_an_ack_and_commit_without_an_answer_takes_effect_once(
    database: store.Database, proxy: CommitProxy, when: Break, attempts: list[int], waiting: list[int]
) -> None:
    app, seen = App(proxy.url(), streams=["orders", "invoices"]), Seen()

    @app.consumer("orders", transactional=True, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", number)
        await tx.publish("invoices", "k", number)
        seen.note((number, message.attempt))

    async with app:
        await database.fetch("create table effects (id bigint, note text)")
        async with running(app):
            await warm_up(app, seen)
            proxy.breaks = when
            await app.publish_many("orders", [("k", number) for number in (7, *waiting)])
            await app.idle()
            assert proxy.broken.is_set()
        assert seen.notes == [(0, 1), *((7, attempt) for attempt in attempts), *((number, 1) for number in waiting)]
        assert await effects(app) == [0, 7, *waiting]
        assert await database.fetchval("select count(*) from headrace_streams.invoices") == 2 + len(waiting)
        await nothing_is_left(app)


@pytest.mark.parametrize("fails", ["assign", "settings"])
async def test_a_begin_that_fails_after_the_commit_repeats_nothing(
    app: App, database: store.Database, looked_up: Seen, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The server answers the ack, the COMMIT and the BEGIN of the next transaction with one error."""
    seen, ack_and_commit = Seen(), Transaction.ack_and_commit

    @app.consumer("orders", transactional=True, concurrency=1, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", number)
        seen.note((number, message.attempt))

    async def committed(transaction: Transaction, *args: Any, begin_next: bool, **options: Any) -> None:
        await ack_and_commit(transaction, *args, begin_next=True, **options)

    monkeypatch.setattr(holds, "UNUSED", 3600.0)
    monkeypatch.setattr(holds, "_STALE", 3600.0)
    # A number that a sequence has given stays given, so it fails once. The settings are made by the first two transactions, and for the
    # session after the commit of the second.
    await database.fetch("create sequence begins")
    failing = f"1 / (nextval('begins') - {4 if fails == 'assign' else 3})"
    if fails == "assign":
        monkeypatch.setattr(connections, "_ASSIGN", f"select pg_current_xact_id()::text::bigint + 0 * ({failing})")
    else:
        code = f"do $$ begin perform {failing}; end $$"
        monkeypatch.setattr(databases, "ending_when_idle", lambda seconds: code)
    monkeypatch.setattr(Transaction, "ack_and_commit", committed)
    await app.publish_many("orders", [("k", number) for number in range(10)])
    async with running(app):
        await app.idle()
    assert looked_up.notes == ["committed"]
    assert seen.notes == [(number, 1) for number in range(10)]
    assert await effects(app) == list(range(10))
    await nothing_is_left(app)


async def test_the_isolation_level_can_be_set_in_a_transaction_that_was_begun_with_a_commit(app: App) -> None:
    levels = Seen()

    @app.consumer("orders", transactional=True, concurrency=1)
    async def ship(number: int, tx: Transaction) -> None:
        if number % 3 == 0:
            await tx.execute("set transaction isolation level serializable")
        levels.note(await tx.fetchval("show transaction_isolation"))
        await tx.execute("insert into effects values ($1)", number)

    await app.publish_many("orders", [("k", number) for number in range(40)])
    async with running(app):
        await app.idle()
    assert levels.notes == ["read committed" if number % 3 else "serializable" for number in range(40)]
    assert await effects(app) == list(range(40))
    await nothing_is_left(app)


async def test_what_a_handler_leaves_behind_writes_into_no_other_transaction(app: App) -> None:
    """While the next transaction is begun with the COMMIT of the one before."""
    seen, outcomes = Seen(), Seen()

    async def later(returned: asyncio.Event, write: Any) -> None:
        await returned.wait()
        while (
            True
        ):  # at each step of the event loop, since another task may run between an answer and whoever waits for it
            try:
                await write("insert into effects values (-1)")
                outcomes.note("written")
                return
            except (asyncpg.InterfaceError, ConfigurationError) as error:
                if "another operation" not in str(error):
                    outcomes.note("refused")
                    return
            await anyio.lowlevel.checkpoint()

    @app.consumer("orders", transactional=True, concurrency=1)
    async def ship(number: int, tx: Transaction) -> None:
        returned = asyncio.Event()
        if number:
            left.extend(asyncio.ensure_future(later(returned, write)) for write in (tx.execute, tx.connection.execute))
        await tx.execute("insert into effects values ($1)", number)
        returned.set()
        seen.note(number)

    left: list[asyncio.Task[None]] = []
    async with running(app):
        await warm_up(app, seen)
        await app.publish_many("orders", [("k", number) for number in range(1, 40)])
        await app.idle()
    await asyncio.gather(*left)
    assert outcomes.notes == ["refused"] * 2 * 39
    assert await effects(app) == list(range(40))


async def test_a_commit_that_the_server_has_not_read_yet_is_not_reported_as_failed(
    database: store.Database, proxy: CommitProxy, looked_up: Seen
) -> None:
    """The connection breaks for the client only, and the message arrives later. Until then the transaction is open, and
    nothing is handled again."""
    app, seen = App(proxy.url(), streams=["orders"]), Seen()

    @app.consumer("orders", transactional=True, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", number)
        seen.note((number, message.attempt))

    async with app:
        await database.fetch("create table effects (id bigint, note text)")
        async with running(app):
            await warm_up(app, seen)
            proxy.breaks = "late"
            await app.publish_many("orders", [("k", 7), ("k", 8)])
            await looked_up.until(3)
            assert set(looked_up.notes) == {"in progress"}
            assert seen.notes == [(0, 1), (7, 1)], "the key goes on only after the outcome is known"
            proxy.let_through.set()
            await app.idle()
        assert looked_up.notes[-1] == "committed"
        assert seen.notes == [(0, 1), (7, 1), (8, 1)]
        assert await effects(app) == [0, 7, 8]
        await nothing_is_left(app)


@pytest.mark.parametrize("moment", ["before the first statement", "before the ack", "in an idle savepoint"])
async def test_a_connection_that_is_killed_in_a_handler_leaves_nothing_behind(
    app: App, database: store.Database, moment: str
) -> None:
    seen = Seen()

    async def kill(tx: Transaction) -> None:
        pid = tx.connection.get_server_pid()
        await database.fetch("select pg_terminate_backend($1)", pid)

        async def gone() -> bool:
            return not await database.fetchval("select exists (select from pg_stat_activity where pid = $1)", pid)

        await eventually(gone)

    @app.consumer("orders", transactional=True, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        seen.note((number, message.attempt))
        unlucky = number == 7 and message.attempt == 1
        if unlucky and moment == "before the first statement":
            await kill(tx)
        await tx.execute("insert into effects values ($1)", number)
        if unlucky and moment == "in an idle savepoint":
            async with tx.transaction():
                await kill(tx)
        if unlucky and moment == "before the ack":
            await kill(tx)

    async with running(app):
        await warm_up(app, seen)
        await app.publish("orders", "k", 7)
        await app.idle()
    assert seen.notes == [(0, 1), (7, 1), (7, 2)]
    assert await effects(app) == [0, 7]
    await nothing_is_left(app)


async def test_a_connection_that_is_closed_before_the_ack_needs_no_lookup(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, lookups = Seen(), Seen()
    status = store.transaction_status

    async def noted(executor: Any, xid: int, **more: Any) -> Any:
        lookups.note(xid)
        return await status(executor, xid, **more)

    monkeypatch.setattr(store, "transaction_status", noted)

    @app.consumer("orders", transactional=True, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        seen.note((number, message.attempt))
        await tx.execute("insert into effects values ($1)", number)
        if number == 7 and message.attempt == 1:
            tx.connection.terminate()

    async with running(app):
        await warm_up(app, seen)
        await app.publish("orders", "k", 7)
        await app.idle()
    assert seen.notes == [(0, 1), (7, 1), (7, 2)]
    assert lookups.notes == []
    assert await effects(app) == [0, 7]


# --- a commit that can't be


async def test_a_lease_that_is_lost_before_the_commit_commits_nothing_and_costs_no_connection(app: App) -> None:
    gate, seen, pids = Gate(), Seen(), Seen()

    @app.consumer("orders", transactional=True, concurrency=1)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        pids.note(tx.connection.get_server_pid())
        await tx.execute("insert into effects values ($1)", number)
        seen.note((number, message.attempt))
        if number == 7 and len(seen.notes) == 2:
            await gate.wait()

    async with running(app):
        await warm_up(app, seen)
        await app.publish("orders", "k", 7)
        await gate.until(1)
        await seek(app, "ship", 1)  # ends every lease of the consumer
        pid = pids.notes[-1]
        gate.open()
        await seen.until(3)
        await app.idle()
        assert await app.database.fetchval("select exists (select from pg_stat_activity where pid = $1)", pid)
    assert await effects(app) == [0, 7]
    await nothing_is_left(app)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_a_deferred_constraint_that_fails_at_the_commit_undoes_the_ack_too(
    app: App, database: store.Database, isolation: str
) -> None:
    await database.fetch("alter table effects add constraint once unique (id) deferrable initially deferred")
    await database.fetch("insert into effects values (7)")
    seen = Seen()

    @app.consumer("orders", transactional=True, max_deliver=2, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        await tx.execute(f"set transaction isolation level {isolation}")
        await tx.execute("insert into effects values ($1)", number)
        seen.note((number, message.attempt))

    async with running(app):
        await warm_up(app, seen)
        await app.publish("orders", "k", 7)
        await app.idle()
    assert seen.notes == [(0, 1), (7, 1), (7, 2)]
    assert await effects(app) == [0, 7]
    [letter] = await dead_letters(app, "ship")
    assert letter.error is not None
    assert letter.error.startswith("UniqueViolationError: duplicate key value violates unique constraint")
    assert await database.fetchval("select count(*) from headrace_internal.acks") == 0


async def test_a_deferred_trigger_that_misses_a_table_fails_the_attempt(app: App, database: store.Database) -> None:
    """The ack was made, and the COMMIT failed. It is not taken for a function of Headrace that is being replaced."""
    await database.fetch(
        "create function missing() returns trigger language plpgsql as $$ begin insert into nowhere values (1); return null; end $$"
    )
    await database.fetch(
        "create constraint trigger misses after insert on effects initially deferred for each row when (new.id = 7) execute function missing()"
    )
    seen = Seen()

    @app.consumer("orders", transactional=True, max_deliver=2, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", number)
        seen.note((number, message.attempt))

    async with running(app):
        await warm_up(app, seen)
        await app.publish("orders", "k", 7)
        await app.idle()
    assert seen.notes == [(0, 1), (7, 1), (7, 2)]
    [letter] = await dead_letters(app, "ship")
    assert letter.error is not None
    assert "nowhere" in letter.error
    assert await effects(app) == [0]


async def test_a_serialization_failure_at_the_commit_is_handled_again(app: App, database: store.Database) -> None:
    """Two handlers read the sum that both change, so that only one of them can commit at a time."""
    both, written, seen = Gate(), Gate(), Seen()

    @app.consumer("orders", transactional=True, backoff=0, concurrency=2)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        await tx.execute("set transaction isolation level serializable")
        total = await tx.fetchval("select count(*) from effects")
        if number and message.attempt == 1:
            await both.wait()
        await tx.execute("insert into effects values ($1)", total)
        seen.note((number, message.attempt))
        if number and message.attempt == 1:
            await written.wait()  # neither commits before the other has written, which could fail then

    async with running(app):
        await warm_up(app, seen)
        await app.publish_many("orders", [("a", 1), ("b", 2)])
        await both.until(2)
        both.open()
        await written.until(2)
        written.open()
        await app.idle()
    assert len(seen.notes) == 4
    assert await effects(app) == [0, 1, 2], "each has read what the other has written"
    await nothing_is_left(app)


@pytest.mark.parametrize(
    ("ends", "first"),
    [("commit", True), ("rollback", True), ("commit", False), ("rollback", False), ("commit; begin", False)],
)
async def test_a_handler_that_ends_its_transaction_by_itself_gets_a_clear_error(
    app: App, ends: str, first: bool
) -> None:
    seen = Seen()

    @app.consumer("orders", transactional=True, max_deliver=1)
    async def ship(number: int, tx: Transaction) -> None:
        seen.note(number)
        if number == 7:
            await tx.execute(ends)

    async with running(app):
        if not first:
            await warm_up(app, seen)
        await app.publish("orders", "k", 7)
        await app.idle()
    [letter] = await dead_letters(app, "ship")
    assert letter.error is not None
    assert "A statement of the handler has ended its transaction, such as COMMIT or ROLLBACK." in letter.error


async def test_a_statement_that_failed_and_was_swallowed_is_not_committed(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", transactional=True, max_deliver=1)
    async def ship(number: int, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", number)
        seen.note(number)
        if number == 7:
            with pytest.raises(asyncpg.UndefinedTableError):
                await tx.execute("insert into nowhere values (1)")

    async with running(app):
        await warm_up(app, seen)
        await app.publish("orders", "k", 7)
        await app.idle()
    [letter] = await dead_letters(app, "ship")
    assert letter.error is not None
    assert "A statement of the handler's transaction failed and the handler continued" in letter.error
    assert await effects(app) == [0]


@pytest.mark.parametrize("size", [10, 400], ids=["prepared", "text"])
async def test_a_batch_is_acked_and_committed_in_one_message(
    app: App, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    seen, sent, run_and_commit = Seen(), Seen(), Hold.run_and_commit

    async def noted(hold: Hold, *last: Any, **options: Any) -> None:
        sent.note(last)
        await run_and_commit(hold, *last, **options)

    @app.consumer("orders", transactional=True, batch=size, concurrency=1)
    async def ship(numbers: list[int], tx: Transaction) -> None:
        await tx.executemany("insert into effects values ($1)", [(number,) for number in numbers])
        seen.note(tuple(numbers))

    monkeypatch.setattr(Hold, "run_and_commit", noted)
    async with running(app):
        await warm_up(app, seen)
        await app.publish_many("orders", [(f"k{number}", number) for number in range(1, 3 * size + 1)])
        await app.idle()
    assert await effects(app) == list(range(3 * size + 1))
    assert len(sent.notes) == len(seen.notes) - 1, "all but the first, whose transaction got no id at its beginning"
    await nothing_is_left(app)


async def test_a_handler_that_never_sends_a_statement_is_acked(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", transactional=True)
    async def ship(number: int, tx: Transaction) -> None:
        seen.note(number)

    async with running(app):
        await warm_up(app, seen)
        await app.publish_many("orders", [("k", number) for number in range(1, 10)])
        await app.idle()
    assert seen.notes == list(range(10))
    await nothing_is_left(app)


@pytest.mark.parametrize("step", ["begin", "statement", "savepoint"])
async def test_a_timeout_at_any_step_leaves_nothing_behind(
    app: App, database: store.Database, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, begin = Seen(), Hold.begin
    sleeps = ["do $$ begin perform pg_sleep(60); end $$"] if step == "begin" else []

    async def slow(hold: Hold, settings: tuple[str, ...], **options: Any) -> None:
        if seen.notes and sleeps:
            settings = (*settings, sleeps.pop())
        await begin(hold, settings, **options)

    @app.consumer("orders", transactional=True, timeout=0.5, backoff=0)
    async def ship(number: int, message: Message, tx: Transaction) -> None:
        seen.note(number)
        await tx.execute("insert into effects values ($1)", number)
        if len(seen.notes) != 2 or step == "begin":
            return
        if step == "savepoint":
            async with tx.transaction():
                await tx.execute("select pg_sleep(60)")
        await tx.execute("select pg_sleep(60)")

    monkeypatch.setattr(Hold, "begin", slow)
    async with running(app):
        await warm_up(app, seen)
        await app.publish("orders", "k", 7)
        await app.idle()
    assert await effects(app) == [0, 7]
    await nothing_is_left(app)


# --- the id of a transaction


async def test_slow_handlers_get_an_id_only_when_they_write(
    app: App, database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id holds back the cleaning of dead rows for as long as its transaction is open."""
    monkeypatch.setattr(transactional, "QUICK", 0.0)
    ids = Seen()

    @app.consumer("orders", transactional=True, concurrency=1)
    async def ship(number: int, tx: Transaction) -> None:
        ids.note(await tx.fetchval("select pg_current_xact_id_if_assigned() is not null"))

    async with running(app):
        await app.publish_many("orders", [("k", number) for number in range(3)])
        await app.idle()
        monkeypatch.setattr(transactional, "QUICK", 60.0)
        await app.publish_many("orders", [("k", number) for number in range(3)])
        await app.idle()
    assert ids.notes == [False, False, False, False, True, True]


async def test_a_transaction_has_the_id_that_was_read_at_its_beginning(database: store.Database) -> None:
    hold = await database.begin(30, assign=True)
    try:
        assert hold.xid == await hold.connection.fetchval("select pg_current_xact_id()::text::bigint")
        assert await hold.connection.fetchval("show idle_in_transaction_session_timeout") == "30s"
        async with hold.connection.transaction():
            await hold.connection.fetchval("select 1")
    finally:
        await database.end(hold)
    assert await store.transaction_status(database, hold.xid or 0) == "aborted"


async def test_a_transaction_has_the_isolation_level_that_the_user_has_chosen(dsn: str, connect: Connect) -> None:
    other = await connect()
    await other.execute(
        f"alter database {await other.fetchval('select quote_ident(current_database())')} set default_transaction_isolation = 'serializable'"
    )
    database = store.Database(dsn)
    await database.open()
    try:
        for assign in (False, True):
            hold = await database.begin(30, assign=assign)
            assert hold.xid is None, "its query would take the snapshot of the transaction"
            assert await hold.connection.fetchval("show transaction_isolation") == "serializable"
            await database.end(hold)
    finally:
        await database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "set transaction isolation level serializable",
        "SET LOCAL transaction_isolation = 'serializable'",
        "begin isolation level serializable",
        "set transaction\nread only, isolation level serializable",
    ],
)
async def test_a_handler_may_choose_the_isolation_level_in_its_first_statement(
    database: store.Database, statement: str
) -> None:
    hold = await database.begin(30, assign=True)
    assert hold.xid is not None
    await hold.connection.execute(statement)
    assert hold.xid is None
    assert await hold.connection.fetchval("show transaction_isolation") == "serializable"
    assert await hold.connection.fetchval("show idle_in_transaction_session_timeout") == "30s"
    assert await hold.connection.fetchval("select pg_current_xact_id_if_assigned()::text") is None
    await hold.commit()
    await database.end(hold)


@pytest.mark.parametrize(
    "before", ["execute", "fetch", "copy", "copy records", "copy out", "executemany", "cursor", "prepared", "savepoint"]
)
async def test_what_a_handler_has_done_is_not_undone_when_it_sets_the_isolation_level_afterwards(
    database: store.Database, before: str
) -> None:
    """The server refuses that, as in any transaction."""
    await database.fetch("create table effects (id bigint)")
    hold = await database.begin(30, assign=True)
    connection = hold.connection
    match before:
        case "execute":
            await connection.execute("insert into effects values (1)")
        case "fetch":
            await connection.fetch("insert into effects values (1)")
        case "copy":
            await connection.copy_to_table("effects", source=BytesIO(b"1\n"))
        case "copy out":
            await connection.copy_from_table("effects", output=BytesIO())
        case "copy records":
            await connection.copy_records_to_table("effects", records=[(1,)])
        case "executemany":
            await connection.executemany("insert into effects values ($1)", [(1,)])
        case "cursor":
            assert [row async for row in connection.cursor("insert into effects values (1) returning id")]
        case "prepared":
            await (await connection.prepare("insert into effects values (1)")).fetch()
        case "savepoint":
            async with connection.transaction():
                await connection.execute("insert into effects values (1)")
    with pytest.raises(asyncpg.ActiveSQLTransactionError):
        await connection.execute("set transaction isolation level serializable")
    await database.end(hold)


async def test_a_begin_that_fails_leaves_no_transaction_open(database: store.Database) -> None:
    connections = database.connections
    connection = await connections.acquire()
    hold = Hold(connections, connection)
    with pytest.raises(asyncpg.PostgresSyntaxError):
        await hold.begin(("nonsense",), assign=True)
    await hold.end()
    assert not hold.in_transaction
    assert hold.connected
    await connections.release(connection)


async def test_a_connection_that_refuses_to_begin_is_closed(database: store.Database) -> None:
    """A part of the message was sent then. Nothing may be sent after it."""
    hold = await database.begin(30, assign=True)  # prepares the statements
    await database.end(hold)
    connections = database.connections
    connection = await connections.acquire()
    left_behind = asyncio.get_running_loop().create_task(connection.execute("select pg_sleep(60)"))
    await asyncio.sleep(0)
    hold = Hold(connections, connection)
    with pytest.raises(asyncpg.InterfaceError):
        await hold.begin((ending_when_idle(30),), assign=True)
    assert not hold.connected
    await hold.end()
    with pytest.raises((asyncpg.InterfaceError, asyncpg.PostgresConnectionError)):
        await left_behind
    await connections.release(connection)


async def test_transactions_pass_a_connection_on_without_the_pool(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = await database.begin(30)
    await hold.commit()
    await database.end(hold)
    monkeypatch.delattr(asyncpg.Pool, "acquire")
    for assign in (False, True, True):
        again = await database.begin(30, assign=assign)
        await again.connection.fetchval("select 1")
        await again.commit()
        await database.end(again)
    statistics = database.statistics()
    assert (statistics["held"], statistics["open"], statistics["idle"]) == (0, 1, 1)


async def test_what_a_handler_prepared_is_useless_after_it(database: store.Database) -> None:
    hold = await database.begin(30, assign=True)
    prepared = await hold.connection.prepare("select 1")
    savepoint = hold.connection.transaction()
    await hold.commit()
    await database.end(hold)
    after = await database.begin(30, assign=True)
    for use in (prepared.fetchval, savepoint.start, lambda: hold.connection.execute("select 1")):
        with pytest.raises(asyncpg.InterfaceError, match="released back to the pool"):
            await use()
    assert await after.connection.fetchval("select 1") == 1
    await database.end(after)
