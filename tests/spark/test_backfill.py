"""The pipeline `backfill`: a table becomes the messages that change capture makes of a backfill, under one snapshot."""

from __future__ import annotations

import functools
import json
import threading
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import psycopg
import pyarrow as pa
import pytest

from headrace import store
from headrace.model.errors import ConfigurationError, InvalidInput, StoreUnavailable, UnknownStream
from headrace.sources import templates
from headrace_spark.pipelines import backfill as module
from headrace_spark.pipelines import rowkeys
from headrace_spark.pipelines.backfill import backfill
from headrace_spark.pipelines.rowkeys import KeyShape, shape_of
from headrace_spark.pipelines.running import Report
from headrace_spark.pipelines.tables import Table, UnknownTable, ranges
from tests.spark.filling import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NO_SESSION: Any = object()
"""For backfills whose rows a test reads itself."""

OF_READERS = """
    select relation::regclass::text from pg_locks where mode = 'AccessShareLock' and pid <> pg_backend_pid()
       and database = (select oid from pg_database where datname = current_database())
"""

WAITING = """
    select count(*) from pg_locks where relation = 'rows'::regclass and not granted
       and database = (select oid from pg_database where datname = current_database())
"""


@pytest.fixture
def run(spark: SparkSession, dsn: str) -> Any:
    """Read a table into the stream `orders`, outside of the event loop."""

    async def run(table: str, stream: str = "orders", **options: Any) -> Report:
        return await anyio.to_thread.run_sync(
            lambda: backfill(table, stream, spark=spark, database=dsn, **{"partitions": 2, **options})
        )

    return run


@pytest.mark.asyncio
async def test_rows_become_messages_as_change_capture_makes_them(run: Any, database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await database.fetch("create type place as (town text, at timestamptz, price numeric)")
    await database.fetch("create domain cents as numeric check (value >= 0)")
    await database.fetch(
        """create table "Odd.Name" (id bigint, region text, ok boolean, small smallint, ratio float8, total numeric(12, 2), owed cents, at timestamptz,
               local timestamp, day date, hour time, zoned timetz, span interval, raw bytea, doc jsonb, who uuid, list int[], lists numeric[],
               times timestamptz[], one place, places place[], range int8range, ranges nummultirange, nothing text, gone int, v oidvector,
               primary key (region, id))"""
    )
    await database.fetch('alter table "Odd.Name" drop column gone')
    await database.fetch(
        """insert into "Odd.Name" values (1, 'e.u', true, 2, 'NaN', 20.90, 1.50, '2030-01-31 12:00:00.25+02', '2030-01-31 12:00:00', '2030-01-31',
               '12:30', '12:30+02', '1 day 2 hours', '\\x6869', '{"a": 1}', '00000000-0000-0000-0000-000000000001', '{{1,2},{3,null}}', '{1.50,null}',
               '{2030-01-31 12:00:00+00}', row('x', '2030-01-31 12:00+00', 1.50), array[row('y', null, null)::place], '[1,5)', '{[1.5,2.5]}', null, '1 2')"""
    )
    report = await run('public."Odd.Name"')
    assert (report.rows, report.written) == (1, 1)
    ((_, key, data),) = await read(database, "orders")
    assert key == "public.Odd_Name.e_u.1"
    message = json.loads(data)
    assert message.keys() == {"record", "changes", "action", "metadata"}
    assert (message["action"], message["changes"]) == ("read", None)
    assert message["record"] == {
        "id": 1, "region": "e.u", "ok": True, "small": 2, "ratio": "NaN", "total": "20.90", "owed": "1.50", "at": "2030-01-31T10:00:00.25Z",
        "local": "2030-01-31T12:00:00", "day": "2030-01-31", "hour": "12:30:00", "zoned": "12:30:00+02:00", "span": "P1DT2H",
        "raw": "\\x6869", "doc": {"a": 1}, "who": "00000000-0000-0000-0000-000000000001", "list": [[1, 2], [3, None]], "lists": ["1.50", None],
        "times": ["2030-01-31T12:00:00Z"], "one": {"town": "x", "at": "2030-01-31T12:00:00Z", "price": "1.50"},
        "places": [{"town": "y", "at": None, "price": None}], "range": {"lower": 1, "upper": 5, "bounds": "[)"},
        "ranges": [{"lower": "1.5", "upper": "2.5", "bounds": "[]"}], "nothing": None, "v": [1, 2],
    }  # fmt: skip
    metadata = message["metadata"]
    assert (metadata["table_schema"], metadata["table_name"], metadata["commit_idx"]) == ("public", "Odd.Name", 0)
    assert metadata["commit_lsn"] > 0
    assert metadata["commit_timestamp"].endswith("Z")


@pytest.mark.asyncio
async def test_a_table_is_read_once_whatever_is_written_meanwhile_and_a_named_backfill_is_done_once(
    run: Any, database: store.Database
) -> None:
    await store.create_stream(database, "orders")
    await database.fetch("create table parts (id int, kind text, pad text) partition by list (kind)")
    await database.fetch("create table parts_a partition of parts for values in ('a')")
    await database.fetch("create table parts_b partition of parts for values in ('b')")
    await database.fetch(
        "insert into parts select g, case when g % 3 = 0 then 'a' else 'b' end, repeat('x', 100) from generate_series(1, 900) as g"
    )
    report = await run(
        "parts",
        partitions=5,
        write_id="once",
        columns=["id"],
        where="t.id > 100 -- all but a few",
        key="{table}.{record.kind}.{record.id}",
    )
    assert (report.rows, report.written) == (800, None)
    messages = await read(database, "orders")
    found = {json.loads(data)["record"]["id"]: key for _, key, data in messages}
    assert found == {n: f"parts.{'a' if n % 3 == 0 else 'b'}.{n}" for n in range(101, 901)}
    numbers = [json.loads(data)["metadata"]["commit_idx"] for _, _, data in messages]
    assert len(set(numbers)) == len(numbers) == 800
    await run("parts", write_id="once", columns=["id"], where="t.id > 100")
    assert len(await read(database, "orders")) == 800


@pytest.mark.asyncio
async def test_what_cannot_be_read_is_reported_in_a_sentence(run: Any, database: store.Database) -> None:
    await database.fetch("create table rows (id int)")
    with pytest.raises(UnknownStream, match="orders"):
        await run("rows")
    await store.create_stream(database, "orders")
    with pytest.raises(UnknownTable, match="The table 'nothing' does not exist"):
        await run("nothing")
    with pytest.raises(InvalidInput, match=r"Write schema\.table"):
        await run("a.b.c.d")
    with pytest.raises(InvalidInput, match=r"no column 'gone'\. Its columns are id"):
        await run("rows", columns=["gone"])
    with pytest.raises(InvalidInput, match="no column 'gone'"):
        await run("rows", key="a.{record.gone}")
    with pytest.raises(ConfigurationError, match=r"the unknown field \{name\}"):
        await run("rows", key="a.{name}")
    with pytest.raises(InvalidInput, match=r"The condition 't\.nothing = 1' is invalid"):
        await run("rows", where="t.nothing = 1")
    assert await read(database, "orders") == []


@pytest.mark.asyncio
async def test_no_row_moves_between_the_ranges_of_tasks(
    database: store.Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewrite of the table waits for the end of the backfill. It would move rows from one range to another."""
    await store.create_stream(database, "orders")
    await database.fetch("create table rows (id int primary key, pad text) with (autovacuum_enabled = off)")
    await database.fetch("insert into rows select g, repeat('x', 1000) from generate_series(1, 400) as g")
    await database.fetch("delete from rows where id <= 200")
    rewrites = ["vacuum full rows"]
    if await database.fetchval("select current_setting('server_version_num')::int >= 190000"):
        rewrites.append("repack (concurrently) rows")
    read: list[int] = []

    def publish(_: Any, reader: Any, *_arguments: Any) -> int:
        with psycopg.connect(dsn, autocommit=True) as other:
            other.execute("set lock_timeout = '100ms'")
            for number in range(len(reader.queries)):
                for batch in reader(iter([pa.RecordBatch.from_pydict({"id": [number]})])):
                    read.extend(json.loads(data)["record"]["id"] for data in batch.column(1).to_pylist())
                for rewrite in rewrites:
                    with pytest.raises(psycopg.errors.LockNotAvailable):
                        other.execute(rewrite)
        return len(read)

    monkeypatch.setattr(module, "_publish", publish)
    await anyio.to_thread.run_sync(lambda: backfill("rows", "orders", spark=NO_SESSION, database=dsn, partitions=4))
    assert sorted(read) == list(range(201, 401))


@pytest.mark.asyncio
async def test_a_task_does_not_wait_behind_a_rewrite_that_waits_for_the_backfill(
    database: store.Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither would end: a lock is given in the order of requests."""
    await store.create_stream(database, "orders")
    await database.fetch("create table rows (id int primary key)")

    def publish(_: Any, reader: Any, *_arguments: Any) -> int:
        rewrite.start()
        with psycopg.connect(dsn, autocommit=True) as other:
            while not other.execute(WAITING).fetchone()[0]:  # type: ignore[index]
                pass
        return len(list(reader(iter([pa.RecordBatch.from_pydict({"id": [0]})]))))

    monkeypatch.setattr(module, "_publish", publish)
    monkeypatch.setattr(module, "LOCK_TIMEOUT", "100ms")
    with psycopg.connect(dsn, autocommit=True) as rewriting:
        rewrite = threading.Thread(target=lambda: rewriting.execute("vacuum full rows"))
        with pytest.raises(StoreUnavailable, match="Another transaction holds or awaits a lock"):
            await anyio.to_thread.run_sync(
                lambda: backfill("rows", "orders", spark=NO_SESSION, database=dsn, partitions=1)
            )
        await anyio.to_thread.run_sync(rewrite.join)


@pytest.mark.asyncio
async def test_what_has_rows_of_other_relations_is_locked_with_them(
    database: store.Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create_stream(database, "orders")
    await database.fetch("create table whole (id int) partition by range (id)")
    await database.fetch("create table part partition of whole default")
    await database.fetch("create table parent (id int)")
    await database.fetch("create table child () inherits (parent)")
    await database.fetch("create view seen as select * from whole")
    await database.fetch("create materialized view kept as select * from whole")
    locked: list[set[str]] = []

    def publish(*_: Any) -> int:
        with psycopg.connect(dsn) as other:
            rows = other.execute(OF_READERS)
            locked.append({name for (name,) in rows})
        return 0

    monkeypatch.setattr(module, "_publish", publish)
    for name, wanted in {
        "whole": {"whole", "part"},
        "parent": {"parent", "child"},
        "seen": {"seen", "whole", "part"},
        "kept": {"kept"},
    }.items():
        await anyio.to_thread.run_sync(
            functools.partial(backfill, name, "orders", spark=NO_SESSION, database=dsn, partitions=1)
        )
        assert wanted <= locked.pop()


def test_ranges_cover_every_block_once_and_the_last_has_no_end() -> None:
    table = Table(schema="s", name="t", columns=(), key=(), leaves=(("s.a", 10 * 8192), ("s.b", 0), ("s.f", -1)))
    assert ranges(table, 3) == [
        "from only s.a as t where t.ctid >= '(0,0)'::tid and t.ctid < '(4,0)'::tid",
        "from only s.a as t where t.ctid >= '(4,0)'::tid and t.ctid < '(8,0)'::tid",
        "from only s.a as t where t.ctid >= '(8,0)'::tid",
        "from only s.b as t where t.ctid >= '(0,0)'::tid",
        "from s.f as t where true",
    ]


@pytest.mark.parametrize(
    "text", ["plain", "", "a.b c", "*>", "é", "\u00a0\n", "x" * 200, "é" * 60, "日本" * 12, "-1.5"]
)
def test_a_token_is_the_same_as_in_change_capture(text: str) -> None:
    assert rowkeys.token(text) == templates.token(text)
    assert KeyShape(("a.", ""), ("c",)).keys([pa.array([text])]).to_pylist() == [f"a.{templates.token(text)}"]


def test_a_template_defines_the_keys() -> None:
    shape = shape_of('{schema}.{table}-{record.a}.{record."odd ""name"}', "pub.lic", "t")
    assert shape == KeyShape(("pub_lic.t-", ".", ""), ("a", 'odd "name'))
    assert shape.keys([pa.array(["1", None]), pa.array(["x.y", "z"])]).to_pylist() == [
        "pub_lic.t-1.x_y",
        "pub_lic.t-_.z",
    ]
    with pytest.raises(ConfigurationError, match="an unmatched brace"):
        shape_of("{record.a}.}", "s", "t")
