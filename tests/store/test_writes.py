"""Staged writes: whichever task attempts stage rows, and however often, a committed write is
published once, as a whole, and in order."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from headrace import store, sweep
from headrace.model.errors import InvalidInput, StagedRowsGone, StreamFull, UnknownStream
from headrace.model.specs import StreamSpec
from tests.conftest import Connect, Declare
from tests.support import notifications
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio

Part = dict[str, Any]


@pytest_asyncio.fixture(autouse=True)
async def _orders(database: store.Database) -> None:
    await store.create_stream(database, "orders")


async def table_for(
    executor: Any, write: str = "w", batch: int = 0, *, streaming: bool = False, stream: str = "orders"
) -> str | None:
    """Return the staging table that a task uses."""
    found: str | None = await executor.fetchval(
        "select headrace_internal.stage_write($1, $2, $3, $4)", stream, write, batch, streaming
    )
    return found


async def stage(
    executor: Any, keys: Sequence[str], partition: int = 0, data: Sequence[str] | None = None, **which: Any
) -> Part:
    """Stage rows as a task attempt does. The default data are numbers."""
    table = await table_for(executor, **which)
    attempt = uuid4()
    await executor.fetch(
        f"""insert into {table} (attempt, place, key, data)
            select $1, place, key, data from unnest($2::text[], $3::json[]) with ordinality as t(key, data, place)""",
        attempt,
        list(keys),
        list(data) if data else [json.dumps({"n": n}) for n in range(len(keys))],
    )
    return {"partition": partition, "attempt": str(attempt), "rows": len(keys)}


async def commit(executor: Any, parts: Sequence[Part], write: str = "w", batch: int = 0, stream: str = "orders") -> int:
    """Commit as the driver does."""
    count: int = await executor.fetchval(
        "select headrace_internal.commit_write($1, $2, $3, $4)", stream, write, batch, json.dumps(list(parts))
    )
    return count


async def published(executor: Any, stream: str = "orders") -> list[str]:
    return [row["key"] for row in await executor.fetch(f'select key from headrace_streams."{stream}" order by seq')]


async def staging_tables(executor: Any) -> list[str]:
    return [
        row[0] for row in await executor.fetch("select tablename from pg_tables where schemaname = 'headrace_staging'")
    ]


async def test_parts_are_published_in_the_order_of_their_partitions_and_rows(database: store.Database) -> None:
    third = await stage(database, ["e", "a"], partition=10)
    first = await stage(database, ["z", "b", "z"], partition=0)
    second = await stage(database, ["c"], partition=2)
    assert await published(database) == []
    assert await commit(database, [third, second, first]) == 6
    assert await published(database) == ["z", "b", "z", "c", "e", "a"]
    assert await staging_tables(database) == []


async def test_the_published_messages_are_the_staged_rows(database: store.Database) -> None:
    table = await table_for(database)
    attempt = uuid4()
    await database.fetch(f"""insert into {table} values ($1, 0, 'a', '{{"x":  1.50}}', '{{"h": "1"}}')""", attempt)
    await commit(database, [{"partition": 0, "attempt": str(attempt), "rows": 1}])
    row = await database.fetchrow("select key, data::text, headers::text from headrace_streams.orders")
    assert tuple(row) == ("a", '{"x":  1.50}', '{"h": "1"}')


async def test_only_the_attempts_that_are_named_are_published(database: store.Database) -> None:
    """Tasks were retried, and some attempts ran at the same time."""
    await stage(database, ["a", "b"], partition=0)
    again = await stage(database, ["a", "b"], partition=0)
    await stage(database, ["a", "b"], partition=0)
    other = await stage(database, ["c"], partition=1)
    assert await commit(database, [again, other]) == 3
    assert await published(database) == ["a", "b", "c"]


async def test_a_batch_that_is_committed_again_changes_nothing(database: store.Database) -> None:
    parts = [await stage(database, ["a", "b"])]
    assert await commit(database, parts) == 2
    assert await commit(database, parts) == 0
    assert await table_for(database) is None, "nothing is to be staged again"
    assert await published(database) == ["a", "b"]


async def test_a_micro_batch_runs_again_with_other_partitions_and_is_published_once(database: store.Database) -> None:
    parts = [await stage(database, ["a"], 0, streaming=True), await stage(database, ["b"], 1, streaming=True)]
    rerun = [await stage(database, [key], n, streaming=True) for n, key in enumerate("ab")]
    rerun = [await stage(database, ["b", "a"], 0, streaming=True)]
    assert await commit(database, rerun) == 2
    assert await commit(database, parts) == 0
    assert await published(database) == ["b", "a"]
    following = [await stage(database, ["c"], batch=1, streaming=True)]
    assert await commit(database, following, batch=1) == 1
    assert await commit(database, parts, batch=0) == 0, "a batch of long ago"
    assert await published(database) == ["b", "a", "c"]


async def test_two_commits_at_once_publish_once(database: store.Database, connect: Connect) -> None:
    parts = [await stage(database, ["a", "b"])]
    first, second = await connect(), await connect()
    transaction = first.transaction()
    await transaction.start()
    assert await commit(first, parts) == 2
    late = await start(commit(second, parts))
    await until_blocked(database, first)
    await transaction.commit()
    assert await late == 0
    assert await published(database) == ["a", "b"]


async def test_commits_of_a_write_to_other_streams_at_once_publish_once(
    database: store.Database, connect: Connect
) -> None:
    """A query that was started twice, whose rows name other streams the second time."""
    await store.create_stream(database, "payments")
    parts = {stream: await stage(database, ["a"], stream=stream) for stream in ("orders", "payments")}
    sql = "select headrace_internal.commit_writes('w', 0, $1)"
    first, second = await connect(), await connect()
    transaction = first.transaction()
    await transaction.start()
    assert await first.fetchval(sql, json.dumps([{**parts["orders"], "stream": "orders"}])) == 1
    late = await start(second.fetchval(sql, json.dumps([{**parts["payments"], "stream": "payments"}])))
    await until_blocked(database, first)
    await transaction.commit()
    assert await late == 0
    assert (await published(database), await published(database, "payments")) == (["a"], [])
    assert await staging_tables(database) == []


async def test_a_commit_that_is_rolled_back_can_be_done_again(database: store.Database, connect: Connect) -> None:
    parts = [await stage(database, ["a", "b"])]
    first, second = await connect(), await connect()
    transaction = first.transaction()
    await transaction.start()
    assert await commit(first, parts) == 2
    late = await start(commit(second, parts))
    await until_blocked(database, first)
    await transaction.rollback()
    assert await late == 2
    assert await published(database) == ["a", "b"]


async def test_many_tasks_that_begin_at_once_get_one_table(dsn: str, database: store.Database) -> None:
    connections = await asyncio.gather(*[asyncpg.connect(dsn) for _ in range(12)])
    try:
        parts = await asyncio.gather(*[stage(each, [f"k{n:02}"], n) for n, each in enumerate(connections)])
        assert len(await staging_tables(database)) == 1
        assert await commit(database, parts) == 12
    finally:
        await asyncio.gather(*[each.close() for each in connections])
    assert await published(database) == [f"k{n:02}" for n in range(12)]


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_write_that_lost_its_rows_is_refused_as_a_whole(database: store.Database, compacted: bool) -> None:
    """An unlogged table is empty after a crash of the server. It has only the rows that were staged
    afterwards."""
    await store.create_stream(database, StreamSpec(name="s", one_message_per_key=compacted))
    lost = await stage(database, ["a", "b"], 1, stream="s", streaming=True)
    (table,) = await staging_tables(database)
    await database.fetch(f'truncate headrace_staging."{table}"')
    there = await stage(database, ["c"], 0, stream="s", streaming=True)
    with pytest.raises(StagedRowsGone, match=r"Of the 2 rows .* 0 are there, perhaps since the .* crashed"):
        await commit(database, [there, lost], stream="s")
    assert await published(database, "s") == []
    again = await stage(database, ["a", "b"], 1, stream="s", streaming=True)
    assert await commit(database, [there, again], stream="s") == 3, "what is there still counts"


async def test_a_write_that_staged_nothing_is_refused_if_it_says_otherwise(database: store.Database) -> None:
    assert await commit(database, []) == 0
    assert await commit(database, [{"partition": 0, "attempt": str(uuid4()), "rows": 0}]) == 0
    with pytest.raises(StagedRowsGone, match="Of the 5 rows"):
        await commit(database, [{"partition": 0, "attempt": str(uuid4()), "rows": 5}])


async def test_with_one_message_per_key_the_last_row_of_a_key_counts(database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="s", one_message_per_key=True))
    await store.publish(database, "s", "b", '"old"')
    late = await stage(database, ["a", "b"], 1, ['"a1"', '"b1"'], stream="s")
    early = await stage(database, ["b", "c", "a", "a"], 0, ['"b0"', '"c0"', '"a00"', '"a01"'], stream="s")
    assert await commit(database, [late, early], stream="s") == 3
    rows = await database.fetch("select key, data #>> '{}' as data from headrace_streams.s order by seq")
    assert [tuple(row) for row in rows] == [("a", "a1"), ("b", "b1"), ("c", "c0")]


async def test_with_dedupe_an_unchanged_payload_is_not_published_again(database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="s", one_message_per_key=True, dedupe=True))
    await store.publish(database, "s", "a", "1")
    part = await stage(database, ["a", "b"], 0, ["1", "2"], stream="s")
    assert await commit(database, [part], stream="s") == 1
    assert await published(database, "s") == ["a", "b"]


async def test_many_keys_are_written_in_chunks(database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="s", one_message_per_key=True))
    keys = [f"k{n % 12_000}" for n in range(13_000)]
    part = await stage(database, keys, stream="s")
    assert await commit(database, [part], stream="s") == 12_000
    assert await database.fetchval("select sum((data ->> 'n')::int) from headrace_streams.s") == sum(
        range(1_000, 13_000)
    )


async def test_two_writes_of_the_same_keys_do_not_deadlock(database: store.Database, connect: Connect) -> None:
    await store.create_stream(database, StreamSpec(name="s", one_message_per_key=True))
    up = await stage(database, ["a", "b", "c"], stream="s", write="up")
    down = await stage(database, ["c", "b", "a"], stream="s", write="down")
    first, second = await connect(), await connect()
    transaction = first.transaction()
    await transaction.start()
    assert await commit(first, [up], "up", stream="s") == 3
    late = await start(commit(second, [down], "down", stream="s"))
    await until_blocked(database, first)
    await transaction.commit()
    assert await late == 3
    data = await database.fetch("select key, data ->> 'n' as n from headrace_streams.s order by key")
    assert [tuple(row) for row in data] == [("a", "2"), ("b", "1"), ("c", "0")]


async def test_a_full_stream_refuses_a_write_and_a_committed_write_is_not_checked_again(
    database: store.Database,
) -> None:
    done = [await stage(database, ["a"], write="done")]
    waiting = [await stage(database, ["b"], write="waiting")]
    assert await commit(database, done, "done") == 1
    await database.fetch("update headrace_internal.streams set full_until = now() + interval '1 hour', max_storage = 1")
    with pytest.raises(StreamFull):
        await table_for(database, "new")
    with pytest.raises(StreamFull):
        await commit(database, waiting, "waiting")
    assert await commit(database, done, "done") == 0
    await database.fetch("update headrace_internal.streams set full_until = null")
    assert await commit(database, waiting, "waiting") == 1


async def test_rows_that_the_stream_would_refuse_are_refused_by_the_staging_table(database: store.Database) -> None:
    for bad, constraint in [
        ("'a..b', '1', null", "valid_key"),
        ("'a', '\"\\u0000\"', null", "no_nul"),
        ("'a', '1', '[]'", "headers_are_objects"),
    ]:
        table = await table_for(database)
        with pytest.raises(Exception) as refusal:  # noqa: PT011
            async with database.transaction() as connection:
                await connection.execute(f"insert into {table} values (gen_random_uuid(), 0, {bad})")
        cause = refusal.value if isinstance(refusal.value, asyncpg.PostgresError) else refusal.value.__cause__
        assert getattr(cause, "constraint_name", None) == constraint


async def test_an_aborted_write_is_removed(database: store.Database) -> None:
    parts = [await stage(database, ["a"])]
    await database.fetch("select headrace_internal.abort_write('orders', 'w', 0)")
    assert await staging_tables(database) == []
    assert await database.fetchval("select count(*) from headrace_internal.writes") == 0
    with pytest.raises(StagedRowsGone, match="Of the 1 rows"):
        await commit(database, parts)
    await database.fetch("select headrace_internal.abort_write('orders', 'never begun', 0)")
    await database.fetch("select headrace_internal.abort_write('no-stream', 'w', 0)")


async def test_a_committed_write_is_not_aborted(database: store.Database) -> None:
    """The answer to a commit was lost, so Spark treats the commit as failed."""
    parts = [await stage(database, ["a"])]
    assert await commit(database, parts) == 1
    await database.fetch("select headrace_internal.abort_write('orders', 'w', 0)")
    assert await commit(database, parts) == 0
    assert await published(database) == ["a"]


async def test_staging_stays_small_over_many_batches(database: store.Database) -> None:
    for batch in range(3):
        part = await stage(database, ["a", "b"], batch=batch, streaming=True)
        await stage(database, ["a"], batch=batch, streaming=True)  # rows of an attempt that does not count
        assert await commit(database, [part], batch=batch) == 2
        (table,) = await staging_tables(database)
        assert await database.fetchval(f'select count(*) from headrace_staging."{table}"') == 0
    # The table is truncated if nothing else has a lock on it, and autovacuum would be something else.
    await database.fetch(f'alter table headrace_staging."{table}" set (autovacuum_enabled = off)')
    chance = random.Random(3)  # data that no server can compress
    texts = [json.dumps(chance.randbytes(1000).hex()) for _ in range(5000)]
    large = await stage(database, [f"k{n}" for n in range(5000)], 0, texts, batch=3, streaming=True)
    assert await commit(database, [large], batch=3) == 5000
    assert await database.fetchval(f"""select pg_relation_size('headrace_staging."{table}"')""") == 0, "truncated"


async def test_staging_stays_small_while_an_old_snapshot_is_open(database: store.Database, connect: Connect) -> None:
    """Vacuum can't free deleted rows then. Only truncating makes room."""
    old = await connect()
    async with old.transaction(isolation="repeatable_read"):
        await old.fetchval("select count(*) from headrace_internal.streams")
        largest = 0
        for batch in range(30):
            keys, data = [f"k{n}" for n in range(500)], [json.dumps("x" * 1000)] * 500
            part = await stage(database, keys, 0, data, batch=batch, streaming=True)
            assert await commit(database, [part], batch=batch) == 500
            (table,) = await staging_tables(database)
            size = await database.fetchval(f"""select pg_total_relation_size('headrace_staging."{table}"')""")
            largest = max(largest, size)
    assert 4_000_000 < largest < 10_000_000
    assert await database.fetchval("select count(*) from headrace_streams.orders") == 15_000


async def test_a_commit_does_not_wait_for_an_abandoned_task(database: store.Database, connect: Connect) -> None:
    parts = [await stage(database, ["a"])]
    zombie = await connect()
    transaction = zombie.transaction()
    await transaction.start()
    await stage(zombie, ["b"])
    assert await commit(database, parts) == 1
    await transaction.commit()
    assert len(await staging_tables(database)) == 1
    assert (await sweep(database)).writes_tidied == 1, "the janitor drops what was left"
    assert await staging_tables(database) == []
    assert await published(database) == ["a"]


async def test_the_janitor_removes_abandoned_writes(database: store.Database) -> None:
    now: datetime = await database.fetchval("select clock_timestamp()")
    done = [await stage(database, ["a"], write="done")]
    assert await commit(database, done, "done") == 1
    await stage(database, ["b"], write="abandoned")
    batch = [await stage(database, ["c"], write="query", streaming=True)]
    assert await commit(database, batch, "query") == 1
    await stage(database, ["d"], write="query", batch=1, streaming=True)

    assert (await sweep(database, now=now + timedelta(hours=23))).writes_tidied == 0
    assert len(await staging_tables(database)) == 2
    assert (await sweep(database, now=now + timedelta(hours=25))).writes_tidied == 3  # two tables, and a row
    assert await staging_tables(database) == []
    assert await commit(database, done, "done") == 0
    assert (await sweep(database, now=now + timedelta(days=8))).writes_tidied == 1
    left = await database.fetch("select write_id, batch from headrace_internal.writes")
    assert [tuple(row) for row in left] == [("query", 0)], "a query may go on after years"
    again = [await stage(database, ["d"], write="query", batch=1, streaming=True)]
    assert await commit(database, again, "query", batch=1) == 1


async def test_a_stream_that_is_deleted_takes_its_staging_tables_along(
    database: store.Database, connect: Connect
) -> None:
    await stage(database, ["a"])
    await store.create_stream(database, "bills")
    await stage(database, ["a"], stream="bills")
    await store.delete_stream(database, "orders")
    assert len(await staging_tables(database)) == 1
    assert await database.fetchval("select count(*) from headrace_internal.writes") == 1
    with pytest.raises(UnknownStream, match="There is no stream 'orders'"):
        await table_for(database)
    with pytest.raises(UnknownStream):
        await commit(database, [])
    held = await connect()
    transaction = held.transaction()
    await transaction.start()
    await stage(held, ["b"], stream="bills")
    deleting = await start(store.delete_stream(database, "bills"))
    await until_blocked(database, held)
    await transaction.rollback()
    await deleting
    assert await staging_tables(database) == []


async def test_committing_a_write_publishes_like_any_publisher(database: store.Database, declare: Declare) -> None:
    """A consumer that reads during the commit finds its messages later, and none twice."""
    reader = await declare()
    parts = [await stage(database, ["a", "b", "c"])]
    async with database.transaction() as connection:
        assert await commit(connection, parts) == 3
        await store.publish(database, "orders", "d", "1")
        assert (await reader.lease()).keys == ["d"]
    assert (await reader.lease()).keys == ["a", "b", "c"]


async def test_a_commit_notifies_waiting_consumers(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await connect()
    await notifications.listen(listener, lambda *args: heard.put_nowait(args[-1]))
    await database.fetch("select headrace_internal.subscribe_consumers(array[$1::int], interval '1 minute')", reader.id)
    await commit(database, [await stage(database, ["a"])])
    assert await asyncio.wait_for(heard.get(), 10) == str(
        await database.fetchval("select id from headrace_internal.streams where name = 'orders'")
    )


async def test_invalid_writes_are_refused_with_what_they_need(database: store.Database, connect: Connect) -> None:
    for bad in ("", "x" * 513):
        with pytest.raises(InvalidInput, match="1 to 512 bytes"):
            await table_for(database, bad)
    with pytest.raises(UnknownStream, match="There is no stream 'nowhere'"):
        await table_for(database, stream="nowhere")
    connection = await connect()
    async with connection.transaction(isolation="repeatable_read"):
        with pytest.raises(asyncpg.PostgresError, match="must run under read committed"):
            await table_for(connection)


async def test_a_missing_staging_table_is_created_again(database: store.Database) -> None:
    """As after a restore of a backup without that schema."""
    lost = await stage(database, ["a"], streaming=True)
    (table,) = await staging_tables(database)
    await database.fetch(f'drop table headrace_staging."{table}"')
    with pytest.raises(StagedRowsGone):
        await commit(database, [lost])
    assert await commit(database, [await stage(database, ["b"], streaming=True)]) == 1
    await database.fetch(f'drop table headrace_staging."{table}"')
    await database.fetch("select headrace_internal.clean_up_writes(clock_timestamp() + interval '2 days')")
    assert await staging_tables(database) == []


async def test_the_janitor_leaves_the_tables_of_another_user_to_that_user(database: store.Database) -> None:
    await stage(database, ["a"], write="mine")
    await stage(database, ["a"], write="theirs")
    role = f"janitor_{uuid4().hex}"
    await database.fetch(f"create role {role}")
    try:
        [table] = await database.fetchrow("select staging from headrace_internal.writes where write_id = 'mine'")
        for sql in (
            "grant usage on schema headrace, headrace_internal, headrace_staging to {role}",
            "grant select, update, delete on headrace_internal.writes to {role}",
            "alter table {table} owner to {role}",
        ):
            await database.fetch(sql.format(role=role, table=table))
        async with database.transaction() as connection:
            await connection.execute(f"set local role {role}")
            assert (
                await connection.fetchval(
                    "select headrace_internal.clean_up_writes(clock_timestamp() + interval '2 days')"
                )
                == 2
            )
        assert [row[0] for row in await database.fetch("select write_id from headrace_internal.writes")] == ["theirs"]
    finally:
        await database.fetch(f"drop owned by {role}")
        await database.fetch(f"drop role {role}")
