"""Dump and restore: a dump restored into an empty database continues from there, in order and without loss."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from headrace import store
from headrace.embedded.binaries import Installation
from headrace.model.errors import NotGranted
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.runtime.maintenance.sweeper import Sweeper
from tests.conftest import Connect, Declare
from tests.support.clusters import client_programs
from tests.support.readers import Clock, Reader, begun, publish
from tests.support.roles import Login, as_role, user

pytestmark = pytest.mark.asyncio

Restore = Callable[[store.Database], Awaitable[store.Database]]


async def programs_for(database: store.Database) -> Installation:
    """Return pg_dump, psql and pg_restore of the server's own version, or of the next newer one. A much
    newer pg_dump writes what an older server can't read."""
    major = int(await database.fetchval("select current_setting('server_version_num')::int / 10000"))
    return client_programs("pg_dump", "psql", "pg_restore", major=major)


async def call(*command: object) -> None:
    done = await asyncio.to_thread(
        subprocess.run, [str(part) for part in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest_asyncio.fixture(params=["plain", "custom"])
async def restore(request: pytest.FixtureRequest, empty_dsn: str, tmp_path: Path) -> AsyncIterator[Restore]:
    """Dump a database, restore the dump into a new one, and open that."""
    restored = store.Database(empty_dsn)

    async def restore(database: store.Database) -> store.Database:
        programs, dump = await programs_for(database), tmp_path / "dump"
        await call(programs.program("pg_dump"), "--format", request.param, "--file", dump, database.dsn)
        if request.param == "plain":
            await call(programs.program("psql"), "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", dump, "-d", empty_dsn)
        else:
            await call(programs.program("pg_restore"), "-1", "--exit-on-error", "--dbname", empty_dsn, dump)
        await restored.open()
        return restored

    yield restore
    await restored.close()


def elsewhere(reader: Reader, restored: store.Database) -> Reader:
    """A reader for the same consumer in the restored database."""
    return Reader(restored, reader.spec, reader.id, reader.clock)


async def contents(database: store.Database) -> dict[str, list[str]]:
    """Every row of every table of Headrace, as text."""
    tables = await database.fetch(
        "select oid::regclass::text as name from pg_class where relkind = 'r' and relnamespace in ("
        "  select oid from pg_namespace where nspname ~ '^headrace(_internal|_streams|_staging)?$')"
    )
    return {
        table["name"]: sorted(
            row[0] for row in await database.fetch(f"select row_to_json(t)::text from {table['name']} as t")
        )
        for table in tables
    }


async def test_a_dump_holds_every_row_and_is_at_the_version_of_its_functions(
    database: store.Database, declare: Declare, restore: Restore
) -> None:
    reader = await declare(max_deliver=1)
    await publish(database, *"abcd")
    batch = await reader.lease()
    await reader.nack(batch, 1, error="no")
    await reader.release(batch, 2)
    restored = await restore(database)
    assert await contents(restored) == await contents(database)
    assert await store.migrate(restored) == []


async def test_a_restored_database_goes_on_where_the_dump_was_taken(
    database: store.Database, declare: Declare, connect: Connect, clock: Clock, restore: Restore
) -> None:
    """The dump contains leases, retries, blocked keys, dead letters, and holes of a publisher that
    had not committed."""
    reader = await declare(on_exhausted="block", max_deliver=2, ack_wait=10.0)
    await publish(database, "acked", "failed", "failed", "leased", "leased", "blocked", "blocked", "rejected")
    first = await reader.lease()
    await reader.ack(first, 1)
    await reader.nack(first, 2, delay=60.0)
    await reader.release(first, 3)
    await reader.nack(first, 6, delay=0.0)
    await reader.release(first, 7)
    await reader.reject(first, 8)
    again = await reader.lease(limit=1)
    assert again.seqs == [6]
    await reader.nack(again, error="no")
    async with begun(connect) as (late, _):
        await publish(late, "late")
        await publish(database, "fresh", "leased")
        assert (await reader.lease(limit=1)).seqs == [10]
        restored = await restore(database)
    there = elsewhere(reader, restored)
    assert await there.count("leases") == 2

    clock.advance(20)
    await publish(restored, "leased", "failed")
    assert await there.drain() == [4, 5, 10, 11, 12]
    clock.advance(60)
    assert await there.drain() == [2, 3, 13]
    assert [letter.seq for letter in await there.dead_letters()] == [6, 8]
    assert await there.redrive() == 2
    assert await there.drain() == [6, 7, 8]
    assert (await there.info()).lag == 0


async def test_a_worker_of_the_dumped_database_gets_its_leases_reported_as_lost(
    database: store.Database, declare: Declare, restore: Restore
) -> None:
    reader = await declare()
    await publish(database, *"ab")
    held = await reader.lease(limit=1)
    restored = await restore(database)
    there = elsewhere(reader, restored)
    after_the_dump = await reader.lease(limit=1)
    assert await there.ack_all(held) == []
    assert len(await there.ack_all(after_the_dump)) == 1
    assert await there.drain() == [2]


async def test_a_compacted_stream_and_scheduled_messages_are_restored(
    database: store.Database, clock: Clock, restore: Restore
) -> None:
    await store.create_stream(database, StreamSpec(name="prices", one_message_per_key=True, dedupe=True))
    spec = ConsumerSpec(stream="prices", name="show")
    reader = Reader(database, spec, (await store.declare_consumer(database, spec)).id, clock)
    await publish(database, "a", "b", stream="prices")
    assert await reader.drain(limit=1, calls=1) == [1]
    await publish(database, "a", stream="prices", again=True)
    due = await database.fetchval("select clock_timestamp() + interval '1 hour'")
    await store.publish_many(database, "prices", ["c"], ["1"], options=[PublishOptions(deliver_at=at) for at in [due]])

    restored = await restore(database)
    there = elsewhere(reader, restored)
    await publish(restored, "a", stream="prices", again=True)  # unchanged
    assert await there.drain() == [2, 3]
    stream = await restored.fetchval("select id from headrace_internal.streams where name = 'prices'")
    assert (await restored.fetchrow("select * from headrace_internal.publish_scheduled($1, $2)", stream, due))[
        "moved"
    ] == 1
    assert await there.drain() == [4]


async def test_segments_are_added_and_dropped_as_before(
    database: store.Database, declare: Declare, restore: Restore
) -> None:
    reader = await declare()
    await publish(database, *("k" for _ in range(10)))
    restored = await restore(database)
    there = elsewhere(reader, restored)
    sweeper = Sweeper(restored)
    await sweeper.sweep()
    await publish(restored, "k")
    assert await there.drain() == list(range(1, 12))


async def test_a_mark_of_another_servers_transaction_is_resolved_at_once(
    database: store.Database, declare: Declare
) -> None:
    """The dump comes from a server with many more transaction ids, so no transaction of the new
    server can fill its holes."""
    reader = await declare()
    await publish(database, *"abc")
    await reader.drain()
    await database.fetch(
        "update headrace_internal.cursors set mark = 3, mark_stamp = (pg_current_xact_id()::text::bigint + 1000000000)::text::xid8"
    )
    await publish(database, "d")
    assert await reader.drain() == [4]
    cursor = await reader.cursor()
    assert cursor["settled"] >= 3
    assert cursor["mark_stamp"] is None or int(cursor["mark_stamp"]) < 1000000000


NEVER = {"begin", "end", "case", "atomic"}
"""The words that psql's lexer counts anywhere in `create function` to find the end of a body in SQL."""


async def test_no_name_of_headrace_is_a_keyword_that_psql_misreads_in_dumps(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    names = await database.fetch("""
        with ours as (select oid from pg_namespace where nspname ~ '^headrace(_internal|_streams|_staging)?$'),
        names as (
            select 'function' as kind, proname::text as name from pg_proc where pronamespace in (select oid from ours)
            union select 'argument', unnest(proargnames) from pg_proc where pronamespace in (select oid from ours)
            union select 'type', typname from pg_type where typnamespace in (select oid from ours)
            union select 'relation', relname from pg_class where relnamespace in (select oid from ours)
            union select 'column', attname from pg_attribute join pg_class on pg_class.oid = attrelid
                where relnamespace in (select oid from ours)
        )
        select kind, name, catcode::text from names left join pg_get_keywords() on word = name""")
    assert len(names) > 100
    reserved = sorted(f"{kind} {name}" for kind, name, code in names if code in ("R", "T") and kind != "argument")
    assert reserved == [], "they must be quoted everywhere: rename them"
    counted = sorted(f"{kind} {name}" for kind, name, _ in names if name.lower() in NEVER)
    assert counted == [], (
        "psql takes them for the beginning or the end of a body, and swallows what follows: rename them"
    )


async def test_grants_are_dumped_and_hold_in_the_restored_database(
    login: Login, database: store.Database, restore: Restore
) -> None:
    """With their rights, so they are no stale grants there."""
    app = await login("publish")
    restored = await restore(database)
    there = store.Database(as_role(restored.dsn, user(app)))
    await there.open()
    try:
        assert await store.publish(there, "orders", "a", "1") == 1
        with pytest.raises(NotGranted, match="grant publish"):
            await store.publish(there, "secrets", "a", "1")
        await store.migrate(restored, reinstall=True)
        assert await store.publish(there, "orders", "a", "1") == 2
        assert [(one.role, one.privilege, one.stream) for one in await store.grants(restored)] == [
            (user(app), "publish", "orders")
        ]
    finally:
        await there.close()
