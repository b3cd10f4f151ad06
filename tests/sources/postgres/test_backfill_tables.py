"""Backfills of tables of many kinds, and of tables that are altered during the backfill."""

from __future__ import annotations

import re
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from headrace import store
from headrace.sources.postgres.backfill import chunks
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog
from tests.sources.postgres.backfilling import Capture, chunks_of

pytestmark = pytest.mark.asyncio


opened = partial(Capture.opened, limits=chunks_of(10))


async def read(database: store.Database, table: str, **settings: Any) -> list[dict[str, Any]]:
    """Return the records of a backfill of the table, in order."""
    async with opened(database, tables=(table,), **settings) as capture:
        info = await capture.all_of(await capture.request_backfill(table))
        assert info.state == "done", info.reason
        return [one["record"] for one in await capture.messages()]


async def reason(database: store.Database, table: str, where: Any = None, **settings: Any) -> str:
    """Return the reason why a backfill of the table fails."""
    async with opened(database, tables=(table,), **settings) as capture:
        info = await capture.all_of(await capture.request_backfill(table, where))
        assert info.state == "failed"
        assert info.reason is not None
        return info.reason


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("smallint", "i"),
        ("bigint", "i * 5000000000"),
        ("numeric", "i / 7.0"),
        ("double precision", "i / 7.0"),
        ("text", "chr(33 + i) || '''\"\\%'"),
        ('text collate "C"', "chr(200 - i)"),
        ("char(5)", "i::text"),
        ("varchar(5)", "i::text"),
        ("uuid", "md5(i::text)::uuid"),
        ("timestamptz", "'2030-01-01T00:00:00Z'::timestamptz + i * '1 hour 1 microsecond'::interval"),
        ("date", "'0010-01-01 BC'::date + i * 10000"),
        ("bytea", "decode(md5(i::text), 'hex')"),
        ("inet", "'10.0.0.0'::inet + i"),
        ("bit(8)", "i::bit(8)"),
        ('"Odd ""Mood"""', '(enum_range(null::"Odd ""Mood"""))[i]'),
        ("int[]", "array[i % 3, i]"),
    ],
)
async def test_a_table_is_read_by_a_key_of_any_type(database: store.Database, kind: str, value: str) -> None:
    moods = ", ".join(f"'m{n % 7}{n}'" for n in range(60))
    await database.fetch(f'create type "Odd ""Mood""" as enum ({moods})')
    await database.fetch(f"create table items (n int not null, id {kind} primary key)")
    await database.fetch(f"insert into items select i, {value} from generate_series(1, 55) as i")
    rows = await database.fetch("select n from items order by id")
    assert [one["n"] for one in await read(database, "public.items")] == [row["n"] for row in rows]


async def test_a_table_is_read_by_a_key_of_several_columns(database: store.Database) -> None:
    await database.fetch('create table items ("B" int, a text, c int, primary key (a, "B"))')
    await database.fetch("insert into items select i % 7, 'a' || i % 5, i from generate_series(1, 35) as i")
    rows = await database.fetch('select c from items order by a, "B"')
    assert [one["c"] for one in await read(database, "public.items")] == [row["c"] for row in rows]


async def test_a_table_without_a_primary_key_is_read_by_a_unique_index(database: store.Database) -> None:
    await database.fetch("create table items (id int not null unique, n int)")
    await database.fetch("insert into items select i, i from generate_series(1, 25) as i")
    assert len(await read(database, "public.items")) == 25


async def test_a_partitioned_table_is_read_as_one(database: store.Database) -> None:
    await database.fetch("create table items (id int primary key) partition by range (id)")
    await database.fetch("create table few partition of items for values from (0) to (20)")
    await database.fetch("create table many partition of items default")
    await database.fetch("insert into items select generate_series(1, 45)")
    found = await read(database, "public.items")
    assert [one["id"] for one in found] == list(range(1, 46))


async def test_only_its_own_rows_are_read_from_a_table_with_children(database: store.Database) -> None:
    await database.fetch("create table items (id int primary key); ")
    await database.fetch("create table children () inherits (items)")
    await database.fetch("insert into items select generate_series(1, 15)")
    await database.fetch("insert into children select generate_series(1, 15)")
    async with opened(database, tables=("public.items",)) as capture:
        info = await capture.all_of(await capture.request_backfill())
    assert (info.state, info.read) == ("done", 15)


async def test_names_may_be_odd(database: store.Database) -> None:
    await database.fetch('create schema "S p.c"')
    await database.fetch('create table "S p.c"."Ta""ble" ("select" int primary key, "two words" text)')
    await database.fetch('insert into "S p.c"."Ta""ble" select generate_series(1, 15), \'x\'')
    found = await read(database, '"S p.c"."Ta""ble"')
    assert found[14] == {"select": 15, "two words": "x"}


async def test_rows_come_in_the_order_of_the_sort_column(database: store.Database) -> None:
    await database.fetch("create table items (id int primary key, updated_at timestamptz not null)")
    await database.fetch(
        "insert into items select i, '2030-01-01'::timestamptz - (i / 4) * '1 s'::interval from generate_series(1, 45) as i"
    )
    rows = await database.fetch("select id from items order by updated_at, id")
    assert [one["id"] for one in await read(database, "public.items", mode="rows", sort="updated_at")] == [
        row["id"] for row in rows
    ]


async def test_only_columns_that_are_wanted_leave_the_server(database: store.Database) -> None:
    await database.fetch(
        "create table items (id int primary key, a text, b text, n int generated always as (id * 2) stored)"
    )
    await database.fetch("insert into items select i, 'a', 'b' from generate_series(1, 5) as i")
    async with (
        opened(database, columns={"public.items": ("a",)}) as capture,
        await capture.connect() as connection,
    ):
        table = capture.tables["public.items"]
        plan = await chunks.plan(connection, table, table, capture.spec, None)
        assert plan.names == ["id", "a"]
        await capture.all_of(await capture.request_backfill())
        assert [one["record"] for one in await capture.messages()] == [{"a": "a"}] * 5


async def test_a_role_that_may_not_read_the_table_is_reported(database: store.Database) -> None:
    await database.fetch("create table items (id int primary key)")
    info = await as_role(database, "select 1")
    assert info.state == "failed"
    assert "grant select on public.items" in info.reason


async def test_a_chunk_of_large_rows_ends_early(database: store.Database) -> None:
    limits = msgspec.structs.replace(chunks_of(10), max_chunk_bytes=100_000)
    await database.fetch("create table items (id int primary key, large text)")
    await database.fetch("insert into items select i, repeat('x', 20000) from generate_series(1, 40) as i")
    async with opened(database, limits=limits) as capture, await capture.connect() as connection:
        table = capture.tables["public.items"]
        plan = await chunks.plan(connection, table, table, capture.spec, None)
        reading = await chunks.read(connection, plan, None, None, 1000, 100_000, lambda: 0.0)
        assert (len(reading.rows), reading.done) == (
            10,
            False,
        )  # the first step, before the size of rows is known
        info = await capture.all_of(await capture.request_backfill())
    assert (info.state, info.read) == ("done", 40)


async def test_a_chunk_that_takes_long_ends_early(database: store.Database) -> None:
    await database.fetch("create table items (id int primary key)")
    await database.fetch("insert into items select generate_series(1, 40)")
    async with opened(database) as capture, await capture.connect() as connection:
        table = capture.tables["public.items"]
        plan = await chunks.plan(connection, table, table, capture.spec, None)
        times = iter([0.0, 0.05, 0.2])
        reading = await chunks.read(connection, plan, ["5"], ["39"], 1000, 100_000, lambda: next(times))
        assert [int(row[0] or 0) for row in reading.rows] == list(range(6, 40))
        assert reading.done


async def test_the_plan_of_a_chunk_uses_the_key_however_large_the_table_is(database: store.Database) -> None:
    await database.fetch("create table items (a int, b int, c text, primary key (a, b))")
    await database.fetch("insert into items select (i * 7919) % 50000, i, 'x' from generate_series(1, 50000) as i")
    await database.fetch("analyze items")
    async with opened(database) as capture, await capture.connect() as connection:
        await connection.query(chunks.SETTINGS)
        table = capture.tables["public.items"]
        plan = await chunks.plan(connection, table, table, capture.spec, None)
        sql = plan.chunk_sql(after=True, up_to=True, limit=10000)
        plan_rows = await connection.query(f"explain {sql}", "20000", "5", "49999", "49999")
    assert any("Index Scan using items_pkey" in str(line) for (line,) in plan_rows), plan_rows
    assert any(re.search(r"Index Cond: .*ROW\(a, b\) > ROW\(20000, 5\)", str(line)) for (line,) in plan_rows), plan_rows


# --- impossible backfills


async def test_a_table_without_a_key_can_not_be_read_in_pieces(database: store.Database) -> None:
    await database.fetch("create table items (id int)")
    text = await reason(database, "public.items")
    assert "neither a primary key nor a unique index" in text
    assert "alter table public.items add column id bigint generated always as identity primary key" in text


async def test_a_sort_column_that_may_be_null_has_no_order(database: store.Database) -> None:
    await database.fetch("create table items (id int primary key, at timestamptz)")
    text = await reason(database, "public.items", mode="rows", sort="at")
    assert "alter table public.items alter column at set not null" in text


async def test_without_the_old_key_of_deleted_rows_nothing_is_read(database: store.Database) -> None:
    await database.fetch("create table items (id int primary key, other int not null unique)")
    await database.fetch("alter table items replica identity using index items_other_key")
    assert "alter table public.items replica identity default" in await reason(database, "public.items")


async def test_a_value_that_the_server_refuses_says_so(database: store.Database) -> None:
    await database.fetch("create table items (id int primary key, at date)")
    text = await reason(database, "public.items", {"field": "data.record.at", "op": ">", "value": "someday"})
    assert "someday" in text


async def test_a_condition_on_no_column_says_so(database: store.Database) -> None:
    await database.fetch("create table items (id int primary key, at date)")
    text = await reason(database, "public.items", {"field": "data.record.total", "op": ">", "value": 1})
    assert "no column 'total'. It has id, at" in text


async def as_role(database: store.Database, granted: str) -> Any:
    """Return how a backfill of `items` ends for a role that has only the granted rights."""
    role = f"reader_{uuid4().hex}"
    await database.fetch(f"create role {role}")
    try:
        await database.fetch(granted.format(role=role))
        async with opened(database) as capture:
            connect = capture.connect

            async def as_reader() -> SourceConnection:
                connection = await connect()
                await connection.query(f"set role {role}")
                return connection

            capture.backfiller._connect = as_reader
            return await capture.all_of(await capture.request_backfill())
    finally:
        await database.fetch(f"drop owned by {role}")
        await database.fetch(f"drop role {role}")


async def test_rows_that_a_policy_hides_are_not_passed_over_silently(database: store.Database) -> None:
    await database.fetch("create table items (id int primary key)")
    await database.fetch("insert into items values (1), (2)")
    await database.fetch("alter table items enable row level security")
    info = await as_role(database, "grant select on items to {role}")
    assert info.state == "failed"
    assert "row-level security" in info.reason


class Standby:
    """A fake connection with just enough of a standby's behaviour."""

    async def query(self, sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
        return [("t",)] if "pg_is_in_recovery" in sql else []

    async def close(self) -> None: ...


async def test_a_standby_can_not_be_read(database: store.Database) -> None:
    await database.fetch("create table items (id int primary key)")
    async with opened(database) as capture:

        async def connect() -> Any:
            return Standby()

        capture.backfiller._connect = connect
        info = await capture.all_of(await capture.request_backfill())
    assert info.state == "failed"
    assert info.reason is not None
    assert "standby" in info.reason
    assert "Capture the primary" in info.reason


# --- tables that are altered during a backfill


async def altered(database: store.Database, *statements: str) -> Any:
    """Alter the table when the backfill has read 20 of 60 rows. Returns how it ended and what it read by then."""
    await database.fetch("create table items (id int primary key, name text, gone text)")
    await database.fetch("insert into items select i, 'name', 'gone' from generate_series(1, 60) as i")
    async with opened(database) as capture:
        backfill_id = await capture.request_backfill()
        async with capture.working():

            async def some() -> bool:
                return (await capture.info(backfill_id)).read >= 20

            await capture.pump_until(some)
            for statement in statements:
                await database.fetch(statement)
            info = await capture.pump_until(lambda: capture.over(backfill_id))
        return info, [one["record"] for one in await capture.messages("read")]


@pytest.mark.parametrize(
    ("statement", "last"),
    [
        ("alter table items rename column name to title", {"id": 60, "title": "name", "gone": "gone"}),
        ("alter table items drop column gone", {"id": 60, "name": "name"}),
        ("alter table items alter column name type varchar(10)", {"id": 60, "name": "name", "gone": "gone"}),
        ("alter table items alter column id type bigint", {"id": 60, "name": "name", "gone": "gone"}),
        ("alter table items drop constraint items_pkey", {"id": 60, "name": "name", "gone": "gone"}),
        ("alter table items rename to things", {"id": 60, "name": "name", "gone": "gone"}),
        ("alter table items set schema elsewhere", {"id": 60, "name": "name", "gone": "gone"}),
    ],
)
async def test_an_altered_table_is_read_on(database: store.Database, statement: str, last: dict[str, Any]) -> None:
    await database.fetch("create schema elsewhere")
    info, found = await altered(database, statement)
    assert (info.state, info.read) == ("done", 60), info.reason
    assert found[-1] == last
    assert [one["id"] for one in found] == list(range(1, 61))


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (["drop table items"], "public.items does not exist"),
        (["drop table items", "create table items (id int primary key)"], "public.items does not exist"),
        (["alter table items rename column id to number"], "Start a new backfill"),
    ],
)
async def test_a_table_that_is_no_more_what_it_was_says_so(
    database: store.Database, statements: list[str], expected: str
) -> None:
    info, _ = await altered(database, *statements)
    assert info.state == "failed"
    assert expected in info.reason


@pytest.mark.parametrize(("before", "now"), [("id", "id, part"), ("id, part", "id"), ("id", "part"), ("id", "")])
async def test_a_row_that_was_read_under_an_earlier_key_never_follows_its_change(
    database: store.Database, connect: Any, monkeypatch: pytest.MonkeyPatch, before: str, now: str
) -> None:
    await database.fetch(f"create table items (id int not null, part int not null, n int, primary key ({before}))")
    await database.fetch("alter table items replica identity full")
    await database.fetch("insert into items select i, 100 + i, 0 from generate_series(1, 30) as i")
    writer, write_watermark = await connect(), chunks.write_watermark

    async def altered_first(connection: SourceConnection, watermark: str) -> None:
        if watermark.endswith("-2"):  # of the last chunk
            key = f", add primary key ({now})" if now else ""
            await writer.execute(f"alter table items drop constraint items_pkey{key}")
            capture.tables = await catalog.load_tables(connection, capture.spec.tables)
            await writer.execute("update items set n = 1 where id = 22; delete from items where id = 23")
        await write_watermark(connection, watermark)

    monkeypatch.setattr(chunks, "write_watermark", altered_first)
    async with opened(database) as capture:
        info = await capture.all_of(await capture.request_backfill())
        assert info.state == "failed"  # a resync follows, see `table_watch`
        captured = {id_: row for id_, row in (await capture.table()).items() if id_ <= 20 or id_ == 22}
        assert await capture.replayed() == captured
