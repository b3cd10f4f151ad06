"""The tables of Headrace itself are never captured, since they hold secrets that no answer shows."""

from __future__ import annotations

import pytest

from headrace import store
from headrace.admin import Admin
from headrace.model.errors import InvalidInput
from headrace.sources.postgres.database.checks import check
from headrace.sources.postgres.limits import CaptureLimits
from headrace.sources.postgres.spec import PostgresSpec
from tests.sources.postgres.captured import Shop

pytestmark = pytest.mark.asyncio

LIMITS = CaptureLimits(table_check_interval=0.05)

SECRET = "insert into headrace_internal.secrets (name, value) values ('another', 'do not read')"


def spec(*tables: str, name: str = "leak", stream: str = "leak") -> PostgresSpec:
    return PostgresSpec(name=name, stream=stream, tables=tables)


@pytest.mark.parametrize(
    "table",
    [
        "headrace_internal.secrets", '"headrace_internal"."secrets"', "headrace_internal.sources", "headrace_internal.tokens",
        "headrace_streams.orders", "headrace_staging.x", "headrace_granted.x", "headrace.streams",
    ],
)  # fmt: skip
async def test_a_source_of_an_own_table_is_refused(shop: Shop, table: str) -> None:
    admin = Admin(shop.database)
    with pytest.raises(InvalidInput, match="belongs to Headrace"):
        await admin.create_source(spec("public.orders", table))
    assert await admin.create_source(spec("public.orders"))
    with pytest.raises(InvalidInput, match="belongs to Headrace"):
        await admin.edit_source("leak", tables=["public.orders", table])
    findings = await check(shop.dsn, spec("public.orders", table), "slot")
    assert any("belongs to Headrace" in one.message for one in findings if one.level == "error")


async def test_a_source_that_an_older_version_let_in_stops(shop: Shop) -> None:
    """It is removed as any other."""
    await shop.source(tables=("public.orders", "headrace_internal.secrets"), backfill=True)
    await shop.sql.execute(SECRET)
    async with shop.captured(LIMITS):
        info = await shop.until_state("stopped")
        assert info.capture is not None
        assert "belongs to Headrace" in (info.capture.reason or "")
    assert await shop.stream() == []
    await Admin(shop.database).delete_source("shop")


async def test_a_publication_of_all_tables_brings_none_of_them(shop: Shop) -> None:
    await shop.sql.execute("create publication everything for all tables")
    await shop.source(publication="everything")
    async with shop.captured(LIMITS):
        await shop.until_running()
        await shop.sql.execute(SECRET)
        await shop.sql.execute("update headrace_internal.secrets set value = 'other'")
        await shop.sql.execute("insert into orders values (1, 'new', 1)")
        (message,) = await shop.until(1)
    assert message["metadata"]["table_name"] == "orders"


PARTS = "create table parts (id int primary key, v text) partition by range (id)"
OWN_PART = "create table headrace_internal.part (id int primary key, v text)"
ATTACH = "alter table parts attach partition headrace_internal.part for values from (0) to (100)"


@pytest.mark.parametrize("backfill", [False, True])
async def test_a_table_with_a_partition_in_an_own_schema_is_not_captured(shop: Shop, backfill: bool) -> None:
    for statement in (PARTS, OWN_PART, ATTACH, "insert into parts values (1, 'do not read')"):
        await shop.sql.execute(statement)
    await shop.source(tables=("public.orders", "public.parts"), backfill=backfill)
    async with shop.captured(LIMITS):
        info = await shop.until_state("stopped")
        assert info.capture is not None
        assert "headrace_internal.part" in (info.capture.reason or "")
    assert await shop.stream() == []


@pytest.mark.parametrize("via_root", [False, True])
@pytest.mark.parametrize("interval", [0.05, 3600.0])
async def test_a_partition_of_an_own_schema_that_is_attached_later_stops_the_capture(
    shop: Shop, via_root: bool, interval: float
) -> None:
    """By its first change, or before it by looking."""
    for statement in (PARTS, "create table other_part partition of parts for values from (100) to (200)", OWN_PART):
        await shop.sql.execute(statement)
    await shop.sql.execute(
        f"create publication given for table orders, parts with (publish_via_partition_root = {via_root})"
    )
    await shop.source(tables=("public.orders", "public.parts"), publication="given")
    async with shop.captured(CaptureLimits(table_check_interval=interval)):
        await shop.until_running()
        await shop.sql.execute(ATTACH)
        await shop.sql.execute("insert into parts values (1, 'do not read')")
        info = await shop.until_state("stopped")
        assert info.capture is not None
        assert "belongs to Headrace" in (info.capture.reason or "")
    assert await shop.stream() == []


async def test_a_table_that_inherits_in_an_own_schema_is_not_read_by_a_backfill(shop: Shop) -> None:
    await shop.sql.execute("create table headrace_internal.child () inherits (orders)")
    await shop.sql.execute("insert into headrace_internal.child values (1, 'do not read', 1)")
    await shop.source(backfill=True)
    async with shop.captured(LIMITS):
        await shop.until_state("stopped")
    assert await shop.stream() == []


async def test_changes_that_were_made_in_an_own_schema_are_not_captured_after_a_move(shop: Shop) -> None:
    """The catalog shows where a table is now, and a change where it was then."""
    await shop.sql.execute("create table moved (id int primary key, v text)")
    await shop.source(tables=("public.orders", "public.moved"))
    async with shop.captured(LIMITS):
        await shop.until_running()
    await shop.sql.execute("alter table moved set schema headrace_internal")
    await shop.sql.execute("insert into headrace_internal.moved values (1, 'do not read')")
    await shop.sql.execute("alter table headrace_internal.moved set schema public")
    async with shop.captured(LIMITS):
        info = await shop.until_state("stopped")
        assert info.capture is not None
        assert "headrace_internal.moved belongs to Headrace" in (info.capture.reason or "")
    assert await shop.stream() == []


async def test_a_captured_table_that_moves_into_an_own_schema_stops_the_capture(shop: Shop) -> None:
    await shop.source()
    async with shop.captured(CaptureLimits(table_check_interval=3600.0)):
        await shop.until_running()
        await shop.sql.execute("alter table orders set schema headrace_internal")
        await shop.sql.execute("insert into headrace_internal.orders values (1, 'do not read', 1)")
        await shop.until_state("stopped")
    assert await shop.stream() == []
    assert await store.source(shop.database, "shop")
