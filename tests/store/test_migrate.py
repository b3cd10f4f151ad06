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
from headrace.model.outcomes import Settlement
from headrace.model.specs import ConsumerSpec
from tests.conftest import Declare
from tests.support.readers import Clock, Reader, publish
from tests.support.waiting import start, until_blocked

migrating = importlib.import_module(
    "headrace.store.database.migrations"
)  # `headrace.store.database.migrations` is also the name of a function

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def empty(empty_dsn: str) -> AsyncIterator[store.Database]:
    database = store.Database(empty_dsn)
    await database.open()
    yield database
    await database.close()


async def test_an_empty_database_gets_the_schema_and_the_migrations_are_reported(empty: store.Database) -> None:
    assert await store.schema_version(empty) == 0
    done = await store.migrate(empty)
    assert done[0].startswith("applied migration 1")
    assert done[-1] == "installed the server functions"
    assert await store.schema_version(empty) == len(migrating.migrations())
    assert await store.migrate(empty) == []


async def test_without_the_schema_the_error_says_to_migrate(empty: store.Database) -> None:
    with pytest.raises(SchemaError, match="run `headrace migrate`"):
        await store.publish(empty, "orders", "a", "1")
    with pytest.raises(SchemaError, match="run `headrace migrate`"):
        await store.consumer_id(empty, "orders", "ship")


async def test_the_second_of_two_migrations_waits_for_the_first(empty: store.Database) -> None:
    """The first migration has done everything but commit when the second one starts."""
    async with empty.transaction() as first:
        await first.execute(migrating._LOCK)
        second = await start(store.migrate(empty))
        await until_blocked(empty, first)
        await first.execute(migrating._GROUND)
        await first.execute("insert into headrace.migrations select n, 'x', 'y' from generate_series(1, 99) as n")
    with pytest.raises(SchemaError, match="at version 99"):
        await second


async def test_many_first_migrations_at_once_make_the_schema_once(empty: store.Database) -> None:
    done = await asyncio.gather(*[store.migrate(empty) for _ in range(4)])
    assert sorted(len(steps) for steps in done)[:3] == [0, 0, 0]
    assert await store.create_stream(empty, "orders") == 1


async def test_many_upgrades_at_once_install_the_functions_once(database: store.Database) -> None:
    others = [store.Database(database.dsn) for _ in range(4)]
    await asyncio.gather(*[other.open() for other in others])
    await database.fetch("update headrace.migrations set functions = 'old'")
    done = await asyncio.gather(*[store.migrate(other) for other in others])
    assert sorted(len(steps) for steps in done) == [0, 0, 0, 1]
    for other in others:
        await other.close()


async def test_a_newer_schema_is_refused_and_left_alone(database: store.Database) -> None:
    newest = len(migrating.migrations())
    await database.fetch(f"insert into headrace.migrations (version, name) values ({newest + 1}, 'from the future')")
    with pytest.raises(SchemaError, match=f"is at version {newest + 1}, .* up to {newest}: upgrade Headrace"):
        await store.migrate(database)
    assert await store.schema_version(database) == newest + 1


async def test_functions_are_installed_again_when_their_text_changed(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = migrating.functions()
    addition = "\ncreate function headrace.addition() returns int language sql as 'select 42';"
    monkeypatch.setattr(migrating, "functions", lambda: text + addition)
    assert await store.migrate(database) == ["installed the server functions"]
    assert await database.fetchval("select headrace.addition()") == 42
    assert await store.migrate(database) == []
    monkeypatch.setattr(migrating, "functions", lambda: text)
    assert await store.migrate(database) == ["installed the server functions"]
    assert await database.fetchval("select to_regproc('headrace.addition')") is None


async def test_a_worker_that_runs_during_an_upgrade_goes_on(
    database: store.Database, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections have prepared statements and plans for functions that no longer exist."""
    reader = await declare()
    await publish(database, *"abc")
    batch = await reader.lease(limit=1)
    text = migrating.functions()
    monkeypatch.setattr(migrating, "functions", lambda: text + "\n-- another version")
    other = store.Database(database.dsn)
    await other.open()
    assert await store.migrate(other) == ["installed the server functions"]
    await other.close()
    await publish(database, "d")
    assert await reader.nack(batch) == []
    assert await reader.drain() == [1, 2, 3, 4]
    assert (await reader.info()).lag == 0


async def test_a_migration_that_fails_leaves_nothing_behind(
    empty: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [*migrating.migrations(), migrating.Migration(len(migrating.migrations()) + 1, "broken", "select 1/0")]
    monkeypatch.setattr(migrating, "migrations", lambda: broken)
    with pytest.raises(Exception, match="division by zero"):
        await store.migrate(empty)
    assert await store.schema_version(empty) == 0
    assert await empty.fetchval("select to_regnamespace('headrace')") is None


async def test_migrations_are_numbered_without_gaps() -> None:
    assert [one.version for one in migrating.migrations()] == list(range(1, len(migrating.migrations()) + 1))
    assert set(migrating.FUNCTIONS) == {
        entry.name.removesuffix(".sql") for entry in (migrating._SQL / "functions").iterdir()
    }


def applied_from(version: int) -> list[str]:
    """Migrate from this version and return the report."""
    steps = [f"applied migration {one.version} ({one.name})" for one in migrating.migrations()[version - 1 :]]
    return [*steps, "installed the server functions"]


VERSION_1 = r"""
create sequence headrace_streams."orders_seq";
create table headrace_streams."orders" (
    xid         xid8 not null default pg_current_xact_id(),
    seq         bigint not null default nextval('headrace_streams."orders_seq"') primary key,
    created_at  timestamptz not null default clock_timestamp(),
    key         text collate "C" not null
                constraint valid_key check (octet_length(key) <= 1024 and ('.' || key || '.') not like '%..%'
                                       and (key not like '%*%' and key not like '%>%'
                                            or ('.' || key || '.') !~ '\.[*>]\.')),
    data        json not null
                constraint no_nul check (position('\u0000' in data::text) = 0
                                         or data::text !~ '(^|[^\\])(\\\\)*\\u0000'),
    headers     json
                constraint headers_are_objects check (headers is null or json_typeof(headers) = 'object')
) with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
        autovacuum_analyze_scale_factor = 0.5);
alter sequence headrace_streams."orders_seq" owned by headrace_streams."orders".seq;
alter table headrace_streams."orders" alter column data set storage external;
insert into headrace.streams (name, relation) values ('orders', 'headrace_streams.orders');
insert into headrace_streams.orders (key, data) select 'k' || n % 3, to_json(n) from generate_series(1, 10) as n;
delete from headrace_streams.orders where seq in (4, 10);
insert into headrace.consumers (stream_id, name, filters, condition, ordered, ack_wait, max_ack_pending, max_deliver, backoff, on_exhausted)
    values (1, 'ship', '{>}', 'true', true, '30s', 1000, 10, '{}', 'dead_letter');
insert into headrace.cursors (consumer_id, version, position, young_holes) values (1, 7, 5, '{[4,5)}');
"""
"""A stream of schema version 1, and a consumer that has read half of it, with a hole at 4."""


async def test_streams_of_the_first_version_continue_where_they_are(empty: store.Database) -> None:
    async with empty.transaction() as connection:
        await connection.execute(migrating._GROUND)
        await connection.execute(migrating.migrations()[0].sql)
        await connection.execute("insert into headrace.migrations (version, name) values (1, 'tables')")
        await connection.execute(VERSION_1)
    assert await store.migrate(empty) == applied_from(2)
    assert await store.publish(empty, "orders", "k1", "11") == 11
    # The transaction that fills the hole has been open since before the migration.
    await empty.fetch(
        "insert into headrace_streams.orders (seq, key, data) overriding system value values (4, 'k1', '4')"
    )
    spec = ConsumerSpec(stream="orders", name="ship")
    declared = await store.declare_consumer(empty, spec)
    assert (declared.new, declared.changed) == (False, {})
    reader = Reader(empty, spec, declared.id, Clock())
    assert await reader.drain() == [4, 6, 7, 8, 9, 11]
    await reader.seek(0)
    assert await reader.drain() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 11]
    info = await store.stream(empty, "orders")
    assert (info.messages, info.segments) == (10, 2)


IN_FLIGHT = """
insert into headrace.leases (consumer_id, lease_id, owner, expires_at, held, lowest, seqs, hashes, attempts)
    select 1, 70, '11111111-0000-4000-8000-000000000000', '2030-01-01 00:00:30Z', 3, 1, array_agg(seq), array_agg(hashtextextended(key, 0)),
           '{1,2,1}' from headrace_streams.orders where seq <= 3;
insert into headrace.parked (consumer_id, seq, key_hash, attempts, due_at)
    select 1, seq, hashtextextended(key, 0), 1, '-infinity' from headrace_streams.orders where seq = 5;
"""
"""That consumer in schema version 2: a lease of 1 to 3, and a parked 5."""


async def test_leases_of_the_second_version_are_settled_acked_and_expired(empty: store.Database) -> None:
    async with empty.transaction() as connection:
        await connection.execute(migrating._GROUND)
        first, second = migrating.migrations()[:2]
        await connection.execute(first.sql)
        await connection.execute(VERSION_1)
        await connection.execute(second.sql)
        await connection.execute(IN_FLIGHT)
        await connection.execute(
            "insert into headrace.migrations (version, name) values (1, 'tables'), (2, 'policies')"
        )
    assert await store.migrate(empty) == applied_from(3)
    reader = Reader(empty, ConsumerSpec(stream="orders", name="ship"), 1, Clock())
    info = await reader.info()
    assert (info.num_ack_pending, info.parked, info.settings["rate_limit"]) == (3, 1, None)
    assert await store.settle(empty, 1, Settlement(leases=[70], seqs=[1], failures=[None]), now=reader.clock.now) == []
    async with empty.transaction() as connection:
        await store.ack(connection, 1, [70], [3], now=reader.clock.now)
    reader.clock.advance(30)
    batch = await reader.lease(limit=2)
    assert (batch.seqs, batch.attempts, batch.crashes) == ([2, 5], [3, 2], [1, 0])


BEFORE_IDENTITIES = """
    alter table headrace_streams.{name} alter seq drop identity;
    create sequence headrace_streams."{name}.seq";
    alter table headrace_streams.{name} alter seq set default nextval('headrace_streams."{name}.seq"');
    alter sequence headrace_streams."{name}.seq" owned by headrace_streams.{name}.seq;
    grant select on sequence headrace_streams."{name}.seq" to public;
    grant usage on sequence headrace_streams."{name}.seq" to pg_monitor with grant option;
"""
"""A stream in schema version 6, with grants to another role."""


async def test_seqs_become_identities_that_continue_where_they_are_and_grants_stay(
    database: store.Database, declare: Declare
) -> None:
    keys = next(one for one in migrating.migrations() if one.name == "keys")
    await declare()
    await store.create_stream(database, "empty")
    async with database.transaction() as connection:
        for name in ("orders", "empty"):
            await connection.execute(BEFORE_IDENTITIES.format(name=name))
        await connection.execute("insert into headrace_streams.orders (key, data) values ('a', '1'), ('b', '1')")
        await connection.execute("select nextval('headrace_streams.\"orders.seq\"')")
    async with database.transaction() as connection:
        await connection.execute(keys.sql)
    assert await store.publish(database, "orders", "c", "1") == 4
    assert await store.publish(database, "empty", "c", "1") == 1
    granted = await database.fetch(
        """select grantee::regrole::text, privilege_type, is_grantable from pg_class, aclexplode(relacl)
           where oid = 'headrace_streams."orders.seq"'::regclass and grantee <> relowner order by 1, 2"""
    )
    assert [tuple(row) for row in granted] == [("-", "SELECT", False), ("pg_monitor", "USAGE", True)]


WAITING = """
insert into headrace.cursors (consumer_id, version, position) values (1, 8, 9);
insert into headrace.parked (consumer_id, seq, key_hash, attempts, due_at)
    select 1, seq, hashtextextended(key, 0), (seq in (2, 3, 6))::int, case when seq = 2 then '2030-01-01 01:00Z' else '-infinity' end::timestamptz
    from headrace_streams.orders where seq in (2, 3, 5, 6, 8, 9);
insert into headrace.blocked (consumer_id, seq, key_hash)
    select 1, seq, hashtextextended(key, 0) from headrace_streams.orders where seq in (1, 7);
insert into headrace.dead_letters (consumer_id, seq, key_hash, key, data, created_at, attempts, reason, blocks, died_at)
    select 1, seq, hashtextextended(key, 0), key, data, created_at, 10, 'exhausted', true, now() from headrace_streams.orders where seq = 1;
"""
"""That consumer in schema version 8: k0 is due with two messages that were released, k1 is blocked,
and k2 waits for an hour."""


async def test_keys_that_waited_in_the_eighth_version_continue_in_order(empty: store.Database) -> None:
    async with empty.transaction() as connection:
        await connection.execute(migrating._GROUND)
        for one in migrating.migrations()[:8]:
            await connection.execute(one.sql)
            await connection.execute(
                "insert into headrace.migrations (version, name) values ($1, $2)", one.version, one.name
            )
            if one.version == 1:
                await connection.execute(VERSION_1)
        await connection.execute(WAITING)
    assert await store.migrate(empty) == applied_from(9)
    reader = Reader(empty, ConsumerSpec(stream="orders", name="ship"), 1, Clock())
    info = await reader.info()
    assert (info.parked, info.blocked) == (6, 2)
    tails = await empty.fetch("select seq from headrace.tails order by seq")
    assert [row["seq"] for row in tails] == [5, 7, 8, 9]
    assert await reader.drain() == [3, 6, 9]
    reader.clock.advance(3600)
    assert await reader.drain() == [2, 5, 8]
    assert await reader.redrive() == 1
    assert await reader.drain() == [1, 7]
