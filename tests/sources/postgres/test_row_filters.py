"""Publications with a row filter, which would leave outdated rows in the stream."""

from __future__ import annotations

import pytest

from headrace.admin import Admin
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog
from headrace.sources.postgres.database.checks import check
from headrace.sources.postgres.database.upkeep import PublicationUpkeep
from headrace.sources.postgres.limits import CaptureLimits
from headrace.sources.postgres.spec import PostgresSpec
from tests.runtime.running import eventually
from tests.sources.postgres.captured import Shop
from tests.sources.postgres.connections import connected, fresh

pytestmark = pytest.mark.asyncio

SOON = CaptureLimits(table_check_interval=0.05, stopped_retry_delay=0.1, sources_interval=0.05)


def spec(*tables: str, publication: str | None = "given") -> PostgresSpec:
    return PostgresSpec(name="shop", stream="shop", tables=tables or ("public.orders",), publication=publication)


async def _needs_filters(connection: SourceConnection) -> None:
    if connection.version < 150000:
        pytest.skip("publications have row filters from PostgreSQL 15 on")


async def _stop(connection: SourceConnection) -> tuple[str, str | None] | None:
    tables = list((await catalog.load_tables(connection, spec().tables)).values())
    stop = (await PublicationUpkeep(spec(), "given").ensure(connection, tables, captured_before=False)).stop
    return None if stop is None else (stop.reason, stop.mend)


@pytest.mark.parametrize("columns", ["", " (id, status)"])
async def test_a_given_publication_with_a_row_filter_is_refused_until_it_has_none(empty_dsn: str, columns: str) -> None:
    async with connected(empty_dsn) as connection:
        await _needs_filters(connection)
        await connection.query(
            "create table orders (id int, status text, note text, primary key (id, status));"
            f"create publication given for table orders{columns} where (status = 'paid')"
        )
        [finding] = [one for one in await check(empty_dsn, spec(), fresh()) if one.level == "error"]
        assert finding.what == "publication"
        assert "has a row filter for public.orders" in finding.message
        assert (await _stop(connection)) == (finding.message, finding.hint)
        await connection.query(finding.hint or "")
        assert not [one for one in await check(empty_dsn, spec(), fresh()) if one.level == "error"]
        assert await _stop(connection) is None
        [(attributes, row_filter)] = await connection.query(
            "select attnames::text, rowfilter from pg_publication_tables where pubname = 'given'"
        )
        assert (attributes, row_filter) == ("{id,status}" if columns else "{id,status,note}", None)


@pytest.mark.parametrize(
    ("published", "captured", "filtered"),
    [
        ("days where (day > 1)", "public.days", "public.days"),
        ('days_1 where (day > 1), "Days 2"', "public.days", "public.days_1"),
        ('days_1, "Days 2" where (day > 1)', "public.days", 'public."Days 2"'),
        ("days where (day > 1)", "public.days_1", "public.days"),
        ("days, other where (id > 1)", "public.days", None),
        ("days", "public.days", None),
    ],
)
async def test_filters_of_partitions_and_of_their_roots_count_and_those_of_other_tables_do_not(
    empty_dsn: str, published: str, captured: str, filtered: str | None
) -> None:
    async with connected(empty_dsn) as connection:
        await _needs_filters(connection)
        await connection.query(
            "create table other (id int primary key);"
            "create table days (id int, day int, primary key (id, day)) partition by range (day);"
            "create table days_1 partition of days for values from (0) to (10);"
            'create table "Days 2" partition of days for values from (10) to (20);'
            f"create publication given for table {published} with (publish_via_partition_root)"
        )
        findings = [one for one in await check(empty_dsn, spec(captured), fresh()) if "row filter" in one.message]
        assert len(findings) == (filtered is not None)
        if filtered is not None:
            assert f"has a row filter for {filtered}," in findings[0].message


async def _backfilled(shop: Shop) -> None:
    """Wait until the first backfill is done. It would read rows that a filter holds back."""

    async def is_done() -> bool:
        return [one.state for one in await Admin(shop.database).backfills("shop")] == ["done"]

    assert await eventually(is_done)


async def test_a_filter_that_is_added_later_stops_the_source_and_its_tables_are_read_again(shop: Shop) -> None:
    async with connected(shop.dsn) as connection:
        await _needs_filters(connection)
    await shop.sql.execute("create publication given for table orders")
    await shop.sql.execute("alter table orders replica identity full")
    await shop.source(publication="given", backfill=True)
    async with shop.captured(SOON):
        await shop.until_running()
        await _backfilled(shop)
        await shop.sql.execute("insert into orders values (1, 'new', 5)")
        await shop.until(1)
        await shop.sql.execute("alter publication given set table orders where (status = 'paid')")
        await shop.sql.execute("insert into orders values (2, 'new', 5)")  # never sent
        stopped = await shop.until_state("stopped")
        assert stopped.capture is not None
        assert "has a row filter for public.orders" in (stopped.capture.reason or "")
        await shop.sql.execute(stopped.capture.mend or "")
        await shop.until_running()

        async def has_the_row() -> bool:
            return 2 in {message["record"]["id"] for message in await shop.stream()}

        assert await eventually(has_the_row)


async def test_a_filter_of_the_source_s_own_publication_is_removed_and_its_tables_are_read_again(shop: Shop) -> None:
    async with connected(shop.dsn) as connection:
        await _needs_filters(connection)
    await shop.source(backfill=True)
    async with shop.captured(SOON):
        await shop.until_running()
        await _backfilled(shop)
        [name] = await shop.sql.fetchrow("select pubname from pg_publication")
        await shop.sql.execute(f"alter publication {name} set table orders where (id > 1)")
        await shop.sql.execute("insert into orders values (1, 'new', 5)")  # never sent

        async def has_the_row() -> bool:
            return 1 in {message["record"]["id"] for message in await shop.stream()}

        assert await eventually(has_the_row)
        assert await shop.sql.fetchval("select rowfilter from pg_publication_tables") is None
