"""The server refuses no write of the captured application because of a capture."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import asyncpg
import pytest

from headrace import store
from headrace.sources.postgres.database.checks import check
from headrace.sources.postgres.limits import CaptureLimits
from headrace.sources.postgres.spec import PostgresSpec
from tests.runtime.running import eventually
from tests.sources.postgres.captured import Shop

pytestmark = pytest.mark.asyncio

LIMITS = CaptureLimits(table_check_interval=0.05, stopped_retry_delay=0.2)

KEYED = "create table t (id int primary key, v int); insert into t values (1, 1)"
PARTITIONED = """create table t (id int, v int) partition by range (id); create table t1 partition of t for values from (0) to (9);
                 insert into t values (1, 1)"""
KEYED_PARTITIONS = PARTITIONED + "; alter table t add primary key (id)"


class Case(NamedTuple):
    """A table `t` of whose relations the server would refuse updates.

    Attributes:
        relations: those that are written to.
        made: creates the table.
        ruined: alters it, so that it can't be published. Empty if it can't be from the beginning.
        note: what the source says about it.
        mend: the statement that corrects it. None if the table can be published, without its children.
        since: the first version of PostgreSQL that has it.
    """

    relations: str
    made: str
    ruined: str
    note: str
    mend: str | None
    since: int = 14


CASES = {
    "no key": Case("t", "create table t (id int, v int); insert into t values (1, 1)", "", "no primary key", "alter table public.t replica identity full;"),
    "dropped key": Case("t", KEYED, "alter table t drop constraint t_pkey", "no primary key", "alter table public.t replica identity full;"),
    "nothing": Case("t", KEYED, "alter table t replica identity nothing", "identity nothing", "alter table public.t replica identity default;"),
    "dropped index": Case(
        "t", KEYED + "; alter table t add w int unique not null default 0; alter table t replica identity using index t_w_key",
        "alter table t drop constraint t_w_key", "lost the index", "alter table public.t replica identity default;"),
    "deferrable key": Case(
        "t", KEYED, "alter table t drop constraint t_pkey, add primary key (id) deferrable", "deferrable", "alter table public.t replica identity full;"),
    "another unique index": Case(
        "t", KEYED + '; create unique index "An Index" on t (id)', "alter table t drop constraint t_pkey, alter id set not null", "no primary key",
        'alter table public.t replica identity using index "An Index";'),
    "virtual column": Case(
        "t", KEYED + "; alter table t replica identity full", "alter table t add d int generated always as (v * 2)", "the virtual column d",
        "alter table public.t replica identity default;", 18),
    "virtual column without a key": Case(
        "t", "create table t (id int, v int); insert into t values (1, 1); alter table t replica identity full",
        "alter table t add d int generated always as (v * 2)", "the virtual column d",
        "alter table public.t add primary key (id), replica identity default;", 18),
    "full with a virtual column": Case(
        "t", KEYED + "; alter table t add d int generated always as (v * 2)", "alter table t replica identity full", "the virtual column d",
        "alter table public.t replica identity default;", 18),
    "partitions without a key": Case(
        "t t1", PARTITIONED + "; alter table t replica identity full", "", "is partitioned and has no primary key",
        "alter table public.t add primary key (id);"),
    "full partitions without a key": Case(
        "t t1", PARTITIONED + "; alter table t replica identity full; alter table t1 replica identity full", "",
        "so new partitions have no replica identity", "alter table public.t add primary key (id);"),
    "partitions that lose their key": Case(
        "t t1", KEYED_PARTITIONS, "alter table t drop constraint t_pkey", "is partitioned and has no primary key",
        "alter table public.t add primary key (id);"),
    "partition with nothing": Case(
        "t t1", KEYED_PARTITIONS, "alter table t1 replica identity nothing", "t1 has the replica identity nothing",
        "alter table public.t1 replica identity default;"),
    "attached partition with nothing": Case(
        "t t1 t2", KEYED_PARTITIONS + "; create table t2 (id int not null, v int); alter table t2 replica identity nothing",
        "alter table t attach partition t2 for values from (10) to (20)", "t2 has the replica identity nothing",
        "alter table public.t2 replica identity default;"),
    "partition of a partition": Case(
        "t t1 t2 t21", KEYED_PARTITIONS + """; create table t2 partition of t for values from (10) to (20) partition by list (id);
            create table t21 partition of t2 default""",
        "alter table t21 replica identity nothing", "t21 has the replica identity nothing", "alter table public.t21 replica identity default;"),
    "partitions by two columns": Case(
        "t t1 t11", """create table t (id int, v int, day int) partition by range (day);
            create table t1 partition of t for values from (0) to (9) partition by list (v); create table t11 partition of t1 default;
            insert into t values (1, 1, 1)""",
        "", "is partitioned and has no primary key", "alter table public.t add primary key (id, day, v);"),
    "full partition with a virtual column": Case(
        "t t1", KEYED_PARTITIONS + "; alter table t add d int generated always as (v * 2)", "alter table t1 replica identity full",
        "t1 has replica identity full, and the virtual column d", "alter table public.t1 replica identity default;", 18),
    "child": Case("t c", KEYED, "create table c () inherits (t)", "", None),
    "child with nothing": Case("t c", KEYED + "; create table c (primary key (id)) inherits (t)", "alter table c replica identity nothing", "", None),
}  # fmt: skip


@asynccontextmanager
async def table(shop: Shop, case: Case, *, ruined: bool) -> AsyncIterator[None]:
    if shop.sql.get_server_version().major < case.since:
        pytest.skip(f"from PostgreSQL {case.since} on")
    await shop.sql.execute(case.made)
    if ruined and case.ruined:
        await shop.sql.execute(case.ruined)
    yield


async def refused(shop: Shop, relations: str) -> list[str]:
    """Update and delete as the application does. Returns the errors."""
    errors = []
    for relation in relations.split():
        for write in (f"update {relation} set v = v + 1", f"delete from {relation} where v < 0"):
            try:
                await shop.sql.execute(write)
            except asyncpg.PostgresError as error:
                errors.append(f"{relation}: {error}")
    return errors


async def published(shop: Shop) -> set[str]:
    rows = await shop.sql.fetch(
        "select r.prrelid::regclass::text as name from pg_publication_rel as r join pg_publication as p on p.oid = r.prpubid where p.pubname ~ '^headrace_'"
    )
    return {row["name"] for row in rows}


async def until_note(shop: Shop, *parts: str, name: str = "shop") -> tuple[str, str]:
    async def has_it() -> tuple[str, str] | None:
        capture = (await store.source(shop.database, name)).capture
        assert capture is not None
        reason = capture.reason or ""
        return (reason, capture.mend or "") if all(part in reason for part in parts) and (parts or not reason) else None

    found: tuple[str, str] = await eventually(has_it)
    return found


async def until_published(shop: Shop, *tables: str) -> None:
    async def are_published() -> bool:
        return await published(shop) == set(tables)

    await eventually(are_published)


async def until_captured(shop: Shop, value: int) -> None:
    """Write to the table until that is in the stream."""
    await shop.sql.execute(f"update t set v = {value}")

    async def is_captured() -> bool:
        return any(
            one["metadata"]["table_name"] == "t" and one["record"]["v"] == value
            for one in await shop.stream()
            if one["record"]
        )

    await eventually(is_captured)


@pytest.mark.parametrize("name", CASES)
async def test_a_table_that_would_refuse_writes_is_not_published_until_it_is_corrected(shop: Shop, name: str) -> None:
    case = CASES[name]
    async with table(shop, case, ruined=True):
        await shop.source(tables=("public.orders", "public.t"))
        async with shop.captured(LIMITS):
            await shop.until_running()
            assert await refused(shop, case.relations) == []
            if case.mend is not None:
                _, mend = await until_note(shop, case.note, "is not published")
                assert mend == case.mend
                assert await published(shop) == {"orders"}
                await shop.sql.execute(mend)
            await until_published(shop, "orders", "t")
            await until_captured(shop, 42)
            assert await refused(shop, case.relations) == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.ruined])
async def test_a_table_that_begins_to_refuse_writes_is_taken_out_and_read_again_when_it_is_back(
    shop: Shop, name: str
) -> None:
    case = CASES[name]
    async with table(shop, case, ruined=False):
        await shop.source(tables=("public.orders", "public.t"))
        async with shop.captured(LIMITS):
            await shop.until_running()
            await until_captured(shop, 7)
            await shop.sql.execute(case.ruined)

            if case.mend is not None:
                await until_published(shop, "orders")
            assert await refused(shop, case.relations) == []
            await shop.sql.execute("insert into orders values (1)")  # others are still captured
            if case.mend is None:
                return
            await shop.sql.execute("update t set v = 1000")  # which the stream gets by the resync only
            _, mend = await until_note(shop, case.note, "read again")
            assert mend == case.mend
            await shop.sql.execute(mend)

            async def has_all() -> bool:
                found = [one for one in await shop.stream() if one["record"]]
                return {"orders", "t"} == {
                    one["metadata"]["table_name"] for one in found if one["record"].get("v") in (None, 1000)
                }

            if (
                "without a key" not in name and "no primary" not in case.note and "deferrable" not in case.note
            ):  # what a backfill needs
                await eventually(has_all)
            await until_published(shop, "orders", "t")
            await until_captured(shop, 42)
            assert await refused(shop, case.relations) == []


@pytest.mark.parametrize("name", CASES)
async def test_check_says_it_before_with_the_statement_that_corrects_it(shop: Shop, name: str) -> None:
    case = CASES[name]
    async with table(shop, case, ruined=True):
        spec = PostgresSpec(name="shop", stream="shop", tables=("public.t",), backfill=False, group=("id",))
        errors = [finding for finding in await check(shop.dsn, spec, "headrace_shop") if finding.level == "error"]
        if case.mend is None:
            assert errors == []
            return
        (error,) = errors
        assert case.note in error.message
        assert error.hint == case.mend
        await shop.sql.execute(error.hint)
        left = await check(shop.dsn, spec, "headrace_shop")
        assert [finding for finding in left if finding.level == "error"] == []
        # Its other recommendations refuse no write either.
        for finding in left:
            if finding.hint:
                await shop.sql.execute(finding.hint)
        await shop.source(tables=("public.t",))
        async with shop.captured(LIMITS):
            await shop.until_running()
            assert await refused(shop, case.relations) == []
            await until_captured(shop, 42)
