"""The table watch and the publication guard lose nothing if their process ends between any two of their steps."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog, coverage, publications, row_filters
from headrace.sources.postgres.database.digests import digest
from headrace.sources.postgres.errors import SourceUnavailable
from headrace.sources.postgres.limits import CaptureLimits
from headrace.sources.postgres.spec import PostgresSpec
from tests.runtime.running import eventually
from tests.sources.postgres.captured import Shop
from tests.sources.postgres.connections import connected

pytestmark = pytest.mark.asyncio

LIMITS = CaptureLimits(
    table_check_interval=0.02, first_retry_delay=0.01, longest_retry_delay=0.02, stopped_retry_delay=0.1,
    sources_interval=0.1,
)  # fmt: skip
STEPS = 36
"""Number of statements after a change within which all that follows from it is done."""


class Crashes:
    """Ends the capture after a number of statements on its connections to the captured database. The next capturer knows
    only what is stored, as another process would.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        query = SourceConnection.query

        async def counted(connection: SourceConnection, sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
            rows = await query(connection, sql, *params)
            if self.left is not None:
                self.left -= 1
                if self.left == 0:
                    self.left = None
                    raise SourceUnavailable("The process has ended.")
            return rows

        monkeypatch.setattr(SourceConnection, "query", counted)


def steps() -> list[Any]:
    """All steps, of which `make test` runs each ninth, `make test-long` one of nine more, and `make torture` the rest."""
    marks = {5: [], 8: [pytest.mark.long]}
    return [pytest.param(step, marks=marks.get(step % 9, [pytest.mark.torture])) for step in range(1, STEPS)]


@asynccontextmanager
async def captured(shop: Shop, mode: str) -> AsyncIterator[None]:
    await shop.sql.execute(
        "create table t (id int primary key, v int); insert into t select g, 0 from generate_series(1, 5) as g"
    )
    await shop.source(tables=("public.orders", "public.t"), mode=mode, backfill=True, **_deletes(mode))
    async with shop.captured(LIMITS):
        await shop.until_running()
        await until_equal(shop)
        yield


def _deletes(mode: str) -> dict[str, str]:
    return {"deletes": "tombstone"} if mode == "rows" else {}


async def until_equal(shop: Shop) -> None:
    """Wait until a copy made of the stream is equal to the table, and no table is left to be read."""

    async def is_equal() -> bool:
        copy: dict[int, Any] = {}
        for one in await shop.stream():
            record = one["record"]
            if record is None:
                copy.pop(one["metadata"]["key"]["id"], None)
            elif one.get("action") == "delete":
                copy.pop(record["id"], None)
            else:
                copy[record["id"]] = record["v"]
        rows = {row["id"]: row["v"] for row in await shop.sql.fetch("select id, v from t")}
        queued = "select count(*) from headrace_internal.backfills where state in ('queued', 'running')"
        return copy == rows and await shop.sql.fetchval(queued) == 0

    await eventually(is_equal)


async def write(shop: Shop, statement: str) -> None:
    """Write to the table as soon as the server takes it."""

    async def is_written() -> bool:
        try:
            await shop.sql.execute(statement)
        except asyncpg.ObjectNotInPrerequisiteStateError:
            return False
        return True

    await eventually(is_written)


@pytest.mark.parametrize("step", steps())
async def test_a_table_that_refuses_writes_is_taken_out_and_read_again_whatever_step_is_the_last(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    crashes = Crashes(monkeypatch)
    async with captured(shop, random.Random(step).choice(("changes", "rows"))):
        crashes.left = step
        await shop.sql.execute("alter table t drop constraint t_pkey")
        await write(shop, "update t set v = v + 1; delete from t where id = 5")
        crashes.left = step
        await shop.sql.execute("alter table t add primary key (id)")
        await until_equal(shop)
        await shop.sql.execute("update t set v = v + 1; insert into t values (9, 9)")
        await until_equal(shop)


@pytest.mark.parametrize("step", steps())
async def test_changes_that_the_publication_left_out_are_made_up_for_whatever_step_is_the_last(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    crashes = Crashes(monkeypatch)
    async with captured(shop, random.Random(step).choice(("changes", "rows"))):
        name = await shop.sql.fetchval("select quote_ident(pubname) from pg_publication where pubname ~ '^headrace_'")
        for lapse in ("drop table t", "set (publish = 'insert')"):
            crashes.left = step
            await shop.sql.execute(
                f"alter publication {name} {lapse}; update t set v = v + 1; delete from t where id = 1"
            )
            await until_equal(shop)
            await shop.sql.execute("update t set v = v + 1; insert into t values (1, 9)")
            await until_equal(shop)


@pytest.mark.parametrize("step", steps())
async def test_rows_that_changed_without_a_message_come_whatever_step_is_the_last(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    crashes = Crashes(monkeypatch)
    async with captured(shop, random.Random(step).choice(("changes", "rows"))):
        crashes.left = step
        await shop.sql.execute("alter table t alter v type int using v + 7")
        await until_equal(shop)
        crashes.left = step
        await shop.sql.execute(
            "begin; create table s (like t including all); insert into s values (2, 2); alter table t rename to u;"
            " alter table s rename to t; commit"
        )
        await until_equal(shop)


async def test_an_idle_source_asks_the_captured_server_one_query_for_each_look(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with captured(shop, "rows"):
        await shop.sql.execute("create publication of_others for table headrace_internal.sources")
        asked: list[str] = []
        query = SourceConnection.query

        async def noted(connection: SourceConnection, sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
            asked.append(sql)
            return await query(connection, sql, *params)

        monkeypatch.setattr(SourceConnection, "query", noted)

        async def is_quiet() -> bool:
            """Whether the last looks were a query each. The slot is looked at less often."""
            last = asked[-20:]
            return len(last) == 20 and sum("pg_replication_slots" not in sql for sql in last) == sum(
                "md5(concat(" in sql for sql in last
            )

        await eventually(is_quiet)


HARMS = [
    "alter table t replica identity full",
    "alter table t replica identity nothing",
    "alter table t replica identity default",
    "alter table t drop constraint t_pkey",
    "alter table t add primary key (id) deferrable",
    "create table heir () inherits (t)",
    "alter table leaf replica identity nothing",
    "alter table leaf replica identity full",
    "create table other partition of root for values from (10) to (20)",
    "alter table root drop constraint root_pkey",
    "create publication of_others for table heir",
    "alter publication of_others set table heir, t",
    "alter publication of_others set (publish = 'insert')",
    "alter publication of_others set (publish = 'update')",
    "create table above (id int not null) partition by range (id)",
    "alter table above attach partition root for values from (0) to (100)",
    "alter publication of_others set table above",
    "alter table leaf set schema elsewhere",
    "comment on publication p is 'Headrace has not captured all changes of the tables with these oids: 1'",
    "alter publication p drop table only t",
    "alter publication p add table only t",
    "alter publication p set (publish = 'insert')",
    "drop publication p",
    "create publication p for all tables",
]
HARMS_15 = [
    "alter publication of_others set table t (id)",
    "alter publication of_others set table t where (id > 5)",
    "drop publication p",
    "create publication p for tables in schema public",
    "alter publication p add tables in schema elsewhere",
    "alter publication p set table t where (id > 5)",
    "alter publication p set table leaf_of_none",
]


async def test_all_that_the_guard_looks_at_is_in_the_digest(empty_dsn: str) -> None:
    spec = PostgresSpec(name="s", stream="s", tables=("public.t", "public.root"), publication="p")
    async with connected(empty_dsn) as connection:
        await connection.query(
            "create table t (id int primary key, v int); create table root (id int primary key) partition by range (id);"
            "create table leaf partition of root for values from (0) to (10); create table leaf_of_none (id int);"
            "create schema elsewhere; create publication p for table t, root with (publish_via_partition_root)"
        )
        tables = list((await catalog.load_tables(connection, spec.tables)).values())
        oids = [table.oid for table in tables]

        async def looked() -> tuple[str, object]:
            facts = (
                await publications.find_publication(connection, "p"),
                await coverage.refusals(connection, spec, oids, None),
                await coverage.refusals(connection, spec, oids, "p"),
                await row_filters.find_row_filters(connection, "p", tables),
                [table.oid for table in await publications.tables_missing_from(connection, "p", tables)]
                if await publications.find_publication(connection, "p")
                else None,
            )
            return await digest(connection, oids, spec.tables, "p"), facts

        before, seen = await looked(), 0
        for statement in [*HARMS, *(HARMS_15 if connection.version >= 150000 else [])]:
            await connection.query(statement)
            now = await looked()
            assert now[0] != before[0] or now[1] == before[1], statement
            seen += now[1] != before[1]
            before = now
        assert seen > 15
