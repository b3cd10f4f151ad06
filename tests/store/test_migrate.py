"""Migrations: the first process creates the schema, concurrent ones do not repeat it, and no
process works with a newer schema."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from headrace import store
from headrace.model.errors import SchemaError
from headrace.store.database import revisions
from tests.conftest import Connect, Declare
from tests.support.readers import Clock, begun, publish
from tests.support.servers import opened
from tests.support.waiting import start, until_blocked
from tests.upgrade.revisions import add_revision

migrating = importlib.import_module("headrace.store.database.migrations")

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def empty(empty_dsn: str) -> AsyncIterator[store.Database]:
    async with opened(empty_dsn) as database:
        yield database


async def test_an_empty_database_gets_the_schema_and_the_migrations_are_reported(empty: store.Database) -> None:
    assert await store.schema_version(empty) == 0
    done = await store.migrate(empty)
    assert done[0].startswith("applied migration 1")
    assert done[-1] == "installed the server functions"
    assert await store.schema_version(empty) == revisions.newest_revision()
    assert await store.migrate(empty) == []


async def test_processes_that_start_in_an_empty_database_publish_by_the_functions_of_the_stream(
    empty: store.Database, empty_dsn: str
) -> None:
    """Both the one that has created the schema, and one that has found it created when it was connected."""
    async with opened(empty_dsn) as other:
        for database in (empty, other):
            assert not database.owns
            await store.migrate(database)
            assert database.owns
        await store.create_stream(empty, "orders")
        for database in (empty, other):
            await store.publish(database, "orders", "a", "1")
            assert list(database.direct_statements) == ["orders"]


async def test_without_the_schema_the_error_says_to_migrate(empty: store.Database) -> None:
    with pytest.raises(SchemaError, match="Run `headrace migrate`"):
        await store.publish(empty, "orders", "a", "1")
    with pytest.raises(SchemaError, match="Run `headrace migrate`"):
        await store.consumer_id(empty, "orders", "ship")


async def test_the_second_of_two_migrations_waits_for_the_first(empty: store.Database) -> None:
    """The first migration has done everything but commit when the second one starts."""
    async with empty.transaction() as first:
        await first.execute(migrating._LOCK)
        second = await start(store.migrate(empty))
        await until_blocked(empty, first)
        await first.execute(migrating._GROUND)
        await first.execute(
            "insert into headrace_internal.migrations values (1, 'headrace', 1), (99, 'of tomorrow', 99)"
        )
    with pytest.raises(SchemaError, match="has revision 99"):
        await second


async def test_many_first_migrations_at_once_make_the_schema_once(empty: store.Database) -> None:
    done = await asyncio.gather(*[store.migrate(empty) for _ in range(4)])
    assert sorted(len(steps) for steps in done)[:3] == [0, 0, 0]
    assert await store.create_stream(empty, "orders") == 1


async def test_many_upgrades_at_once_install_the_functions_once(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [store.Database(database.dsn) for _ in range(4)]
    await asyncio.gather(*[other.open() for other in others])
    add_revision(monkeypatch, "select 1")
    done = await asyncio.gather(*[store.migrate(other) for other in others])
    assert sorted(len(steps) for steps in done) == [0, 0, 0, 2]
    for other in others:
        await other.close()


async def test_a_schema_that_no_longer_serves_this_code_is_refused_and_left_alone(database: store.Database) -> None:
    newest = revisions.newest_revision()
    await database.fetch(
        f"insert into headrace_internal.migrations (version, name, serves_from) values ({newest + 1}, 'from the future', {newest + 1})"
    )
    with pytest.raises(
        SchemaError, match=rf"has revision {newest + 1}, .* from revision {newest + 1} on\. .* Upgrade Headrace"
    ):
        await store.migrate(database)
    with pytest.raises(SchemaError, match=rf"has revision {newest + 1}"):
        await store.require_current_schema(database)
    assert await store.schema_version(database) == newest + 1


async def test_a_schema_headrace_of_other_software_is_refused_and_left_alone(empty: store.Database) -> None:
    await empty.fetch("create schema headrace")
    await empty.fetch("create table headrace.mine (id int)")
    with pytest.raises(SchemaError, match=r"tables already, such as headrace\.mine"):
        await store.migrate(empty)
    assert await empty.fetchval("select count(*) from headrace.mine") == 0
    assert await empty.fetchval("select to_regnamespace('headrace_internal')") is None


async def test_functions_of_the_same_revision_are_only_replaced_on_demand(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another text of the same revision is another build, and none of them is newer."""
    addition = "\ncreate or replace function headrace.addition() returns int language sql as 'select 42';"
    text = revisions.functions() + addition
    monkeypatch.setattr(revisions, "functions", lambda: text)
    assert await store.migrate(database) == []
    assert await database.fetchval("select to_regproc('headrace.addition')") is None
    assert await store.migrate(database, reinstall=True) == ["installed the server functions"]
    assert await database.fetchval("select headrace.addition()") == 42


async def test_an_old_process_that_restarts_during_a_rollout_leaves_the_new_functions(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as new:
        add_revision(
            new,
            "select 1",
            functions="create or replace function headrace.addition() returns int language sql as 'select 42';",
        )
        assert len(await store.migrate(database)) == 2
    assert await store.migrate(database) == []
    assert await store.migrate(database, reinstall=True) == []
    assert await database.fetchval("select headrace.addition()") == 42
    await store.require_current_schema(database)


async def test_a_worker_that_runs_during_an_upgrade_goes_on(database: store.Database, declare: Declare) -> None:
    """Its connections have prepared statements and plans for functions that are replaced."""
    reader = await declare()
    await publish(database, *"abc")
    batch = await reader.lease(limit=1)
    other = store.Database(database.dsn)
    await other.open()
    assert await store.migrate(other, reinstall=True) == ["installed the server functions"]
    await other.close()
    await publish(database, "d")
    assert await reader.nack(batch) == []
    assert await reader.drain() == [1, 2, 3, 4]
    assert (await reader.info()).lag == 0


async def test_a_migration_that_fails_leaves_nothing_behind(
    empty: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [*revisions.migrations(), revisions.Migration(revisions.newest_revision() + 1, "broken", "select 1/0")]
    monkeypatch.setattr(revisions, "migrations", lambda: broken)
    with pytest.raises(Exception, match="division by zero"):
        await store.migrate(empty)
    assert await store.schema_version(empty) == 0
    assert await empty.fetchval("select to_regnamespace('headrace_internal')") is None


async def test_migrations_are_numbered_without_gaps() -> None:
    assert [one.version for one in revisions.migrations()] == list(range(1, revisions.newest_revision() + 1))


NEWER = """
alter table headrace_internal.consumers add column note text not null default 'new';
alter table headrace_internal.cursors add column note text not null default 'new';
alter table headrace_internal.leases add column note text;
alter table headrace_internal.parked add column note text;
"""
"""A migration of a later version, which changes tables that functions read and write as whole rows."""


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> int:
    """From now on, the code knows two more migrations, and its functions differ. Returns its version."""
    add_revision(monkeypatch, NEWER, name="notes")
    return add_revision(
        monkeypatch,
        "create index notes on headrace_internal.cursors (note);",
        functions="-- a later version",
        name="index",
    )


async def upgrade(database: store.Database, version: int) -> None:
    """Upgrade as a process of the later version does, over a separate pool."""
    other = store.Database(database.dsn)
    await other.open()
    assert await store.migrate(other) == [
        f"applied migration {version - 1} (notes)",
        f"applied migration {version} (index)",
        "installed the server functions",
    ]
    assert await store.migrate(other) == []
    assert await store.schema_version(other) == version
    await other.close()


async def test_streams_of_the_version_before_continue_where_they_are(
    database: store.Database, declare: Declare, connect: Connect, newer: int
) -> None:
    """The consumer has read half of the stream, with a hole whose transaction is open during the upgrade."""
    reader = await declare()
    await publish(database, *(f"k{n % 3}" for n in range(1, 4)))
    await database.fetch("grant select on headrace_streams.orders to pg_monitor with grant option")
    await database.fetch('grant usage on sequence headrace_streams."orders.seq" to public')
    async with begun(connect) as (late, transaction):
        await publish(late, "k1")
        await publish(database, *(f"k{n % 3}" for n in range(5, 10)))
        batch = await reader.lease(limit=4)
        assert batch.seqs == [1, 2, 3, 5]
        await reader.ack(batch)
        await upgrade(database, newer)
        assert await store.publish(database, "orders", "k1", "10") == 10
        assert (await reader.lease(limit=1)).seqs == [6]
        await transaction.commit()
    declared = await store.declare_consumer(database, reader.spec)
    assert (declared.new, declared.changed) == (False, {})
    assert await reader.drain() == [4, 7, 8, 9, 10]
    await reader.seek(0)
    assert await reader.drain() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    granted = await database.fetch(
        """select relname::text, case grantee when 0 then 'public' else grantee::regrole::text end, privilege_type, is_grantable
           from pg_class, aclexplode(relacl)
           where relnamespace = 'headrace_streams'::regnamespace and grantee <> relowner order by 1, 2, 3"""
    )
    assert [tuple(row) for row in granted] == [
        ("orders", "pg_monitor", "SELECT", True), ("orders.seq", "public", "USAGE", False),
    ]  # fmt: skip


async def test_leases_of_the_version_before_are_settled_acked_and_expired(
    database: store.Database, declare: Declare, clock: Clock, newer: int
) -> None:
    reader = await declare(ack_wait=30.0)
    await publish(database, *"abcd")
    first = await reader.lease(limit=2)
    await reader.nack(first, 2, delay=0.0)
    again = await reader.lease(limit=3)
    assert (first.seqs, again.seqs) == ([1, 2], [2, 3, 4])
    await upgrade(database, newer)
    info = await reader.info()
    assert (info.num_ack_pending, info.parked) == (4, 0)
    assert await reader.ack(first, 1) == []
    assert await reader.nack(again, 3, delay=0.0) == []
    async with database.transaction() as connection:
        assert again.lease_id is not None
        await store.ack(connection, reader.id, [again.lease_id], [4], now=clock.now)
    clock.advance(30)
    batch = await reader.lease()
    assert (batch.seqs, batch.attempts, batch.crashes) == ([2, 3], [3, 2], [1, 0])
    assert await reader.ack(batch) == []
    assert (await reader.info()).lag == 0


async def test_keys_that_waited_in_the_version_before_continue_in_order(
    database: store.Database, declare: Declare, clock: Clock, newer: int
) -> None:
    """One key is blocked, one waits for an hour, one is due with messages that were released."""
    reader = await declare(on_exhausted="block", max_deliver=2)
    await publish(database, "blocked", "late", "due", "blocked", "late", "due")
    batch = await reader.lease()
    await reader.nack(batch, 1, delay=0.0)
    await reader.release(batch, 3, 4, 5, 6)
    await reader.nack(batch, 2, delay=3600.0)
    again = await reader.lease(limit=1)
    assert again.seqs == [1]
    await reader.nack(again, error="no")
    await upgrade(database, newer)
    info = await reader.info()
    assert (info.parked, info.blocked) == (5, 1)
    assert await reader.drain() == [3, 6]
    clock.advance(3600)
    assert await reader.drain() == [2, 5]
    assert await reader.redrive() == 1
    assert await reader.drain() == [1, 4]
