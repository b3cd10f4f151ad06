"""Tables that are dropped, renamed, replaced or changed without a message. The capture of other tables continues, and
the rows come.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from headrace import store
from headrace.model.sources import SourceInfo
from headrace.sources.postgres.limits import CaptureLimits
from tests.runtime.running import eventually
from tests.sources.postgres.captured import Shop

pytestmark = pytest.mark.asyncio

QUICK = CaptureLimits(table_check_interval=0.05, first_retry_delay=0.05, stopped_retry_delay=0.5, sources_interval=0.2)
BOTH = ("public.orders", "public.parts")
MODES = pytest.mark.parametrize("mode", ["changes", "rows"])


@pytest_asyncio.fixture
async def shop(dsn: str) -> AsyncIterator[Shop]:
    async with Shop.opened(dsn) as shop:
        await shop.sql.execute(
            """create table parts (id int primary key, v text) partition by range (id);
               create table parts_1 partition of parts for values from (0) to (10);
               create table parts_2 partition of parts for values from (10) to (20);
               insert into orders values (1, 'a', 1), (2, 'b', 2); insert into parts values (1, 'a'), (11, 'b')"""
        )
        yield shop


@asynccontextmanager
async def mirrored(shop: Shop, mode: str, limits: CaptureLimits = QUICK, **settings: Any) -> AsyncIterator[None]:
    """Capture both tables, and wait until all of their rows are in the stream."""
    settings = {"tables": BOTH, "mode": mode, "backfill": True, **settings}
    if mode == "rows":
        settings["deletes"] = "tombstone"
    if not await store.sources(shop.database):
        await shop.source(**settings)
    async with shop.captured(limits):
        await shop.until_running()
        await until_rows(shop, "parts", lambda rows: set(rows) >= {1, 11})
        await until_settled(shop)
        yield


async def copy(shop: Shop, table: str) -> dict[int, dict[str, Any]]:
    """Return the table as a copy made of the stream has it."""
    rows: dict[int, dict[str, Any]] = {}
    for one in await shop.stream():
        if one["metadata"]["table_name"] != table:
            continue
        if one["record"] is None:
            if one.get("action") == "truncate":
                rows.clear()
            else:
                rows.pop(one["metadata"]["key"]["id"], None)
        elif one.get("action") == "delete":
            rows.pop(one["record"]["id"], None)
        else:
            rows[one["record"]["id"]] = one["record"]
    return rows


async def until_rows(shop: Shop, table: str, answer: Callable[[dict[int, dict[str, Any]]], bool]) -> None:
    async def look() -> bool:
        return answer(await copy(shop, table))

    await eventually(look)


async def until_settled(shop: Shop) -> None:
    """Wait until no table is being read."""

    async def look() -> bool:
        left = await shop.sql.fetchval(
            "select count(*) from headrace_internal.backfills where state in ('queued', 'running')"
        )
        known = await shop.sql.fetchval("select count(*) from headrace_internal.captured_tables")
        return left == 0 and known > 0

    await eventually(look)


async def until_noted(shop: Shop, text: str | None) -> SourceInfo:
    """Wait until the source is running and says this, or nothing if it is None."""

    async def look() -> SourceInfo | None:
        info = await store.source(shop.database, "shop")
        if info.capture is None or info.capture.state != "running":
            return None
        reason = info.capture.reason
        return info if (reason is None if text is None else text in (reason or "")) else None

    found: SourceInfo = await eventually(look)
    return found


async def resyncs(shop: Shop, table: str) -> int:
    """Return how many times the table was read, or is to be."""
    found: int = await shop.sql.fetchval(
        "select count(*) from headrace_internal.backfills where relation = $1", f"public.{table}"
    )
    return found


@MODES
@pytest.mark.parametrize("given", [False, True])
async def test_a_dropped_table_stops_no_other_one_and_is_reported_also_after_a_restart(
    shop: Shop, mode: str, given: bool
) -> None:
    settings: dict[str, Any] = {"backfill": True}
    if given:
        await shop.sql.execute("create publication given for table orders, parts with (publish_via_partition_root)")
        settings["publication"] = "given"
    async with mirrored(shop, mode, **settings):
        await shop.sql.execute("drop table orders")
        await until_noted(shop, "no table public.orders")
        await shop.sql.execute("insert into parts values (2, 'new')")
        await until_rows(shop, "parts", lambda rows: 2 in rows)
    async with mirrored(shop, mode, **settings):
        await until_noted(shop, "no table public.orders")
        await shop.sql.execute("insert into parts values (3, 'newer')")
        await until_rows(shop, "parts", lambda rows: 3 in rows)
        await shop.sql.execute(
            "create table orders (id int primary key, status text); insert into orders values (7, 'x')"
        )
        if given:
            await until_state_stopped(shop, "lacks public.orders")
            await shop.sql.execute("alter publication given add table orders")
        await until_rows(shop, "orders", lambda rows: 7 in rows)
        await until_noted(shop, None)


async def until_state_stopped(shop: Shop, text: str) -> None:
    async def look() -> bool:
        info = (await store.source(shop.database, "shop")).capture
        return info is not None and info.state == "stopped" and text in (info.reason or "")

    await eventually(look)


@MODES
async def test_a_renamed_table_keeps_its_name_in_messages_also_after_a_restart_and_a_lost_publication(
    shop: Shop, mode: str
) -> None:
    async with mirrored(shop, mode):
        await shop.sql.execute("alter table orders rename to sold; insert into sold values (3, 'c', 3)")
        await until_rows(shop, "orders", lambda rows: 3 in rows)
    name = await shop.sql.fetchval("select pubname from pg_publication")
    await shop.sql.execute("insert into sold values (4, 'd', 4)")
    async with mirrored(shop, mode):
        await until_rows(shop, "orders", lambda rows: 4 in rows)
        await shop.sql.execute(f"alter publication {name} drop table sold; insert into sold values (5, 'e', 5)")
        await until_rows(shop, "orders", lambda rows: 5 in rows)
        await until_noted(shop, None)
        assert set(await shop.keys()) >= {"public.orders.5"}
        assert not [key for key in await shop.keys() if "sold" in key]


async def test_partitions_of_a_renamed_table_are_captured_from_a_publication_of_partitions(shop: Shop) -> None:
    await shop.sql.execute("create publication given for table orders, parts")
    async with mirrored(shop, "rows", publication="given"):
        await shop.sql.execute("alter table parts rename to pieces; insert into pieces values (2, 'new')")
        await until_rows(shop, "parts", lambda rows: 2 in rows)
    await shop.sql.execute("insert into pieces values (3, 'newer')")
    async with mirrored(shop, "rows", publication="given"):
        await until_rows(shop, "parts", lambda rows: 3 in rows)


@MODES
async def test_a_table_that_left_our_publication_is_put_back_and_read(shop: Shop, mode: str) -> None:
    async with mirrored(shop, mode):
        name = await shop.sql.fetchval("select pubname from pg_publication")
        await shop.sql.execute(f"alter publication {name} drop table orders; update orders set status = 'missed'")
        await until_rows(shop, "orders", lambda rows: all(row["status"] == "missed" for row in rows.values()))
        assert await shop.sql.fetchval("select count(*) from pg_publication_tables") == 2
        await until_settled(shop)
        await shop.sql.execute("update orders set status = 'captured'")
        await until_rows(shop, "orders", lambda rows: all(row["status"] == "captured" for row in rows.values()))
    # It leaves and is put back while no process captures.
    await shop.sql.execute(f"alter publication {name} drop table orders; update orders set status = 'unseen'")
    await shop.sql.execute(f"alter publication {name} add table orders")
    async with mirrored(shop, mode):
        await until_rows(shop, "orders", lambda rows: all(row["status"] == "unseen" for row in rows.values()))


@MODES
async def test_changes_that_our_publication_left_out_for_a_while_are_made_up_for(shop: Shop, mode: str) -> None:
    async with mirrored(shop, mode):
        name = await shop.sql.fetchval("select pubname from pg_publication")
    await shop.sql.execute(f"alter publication {name} set (publish = 'insert')")
    await shop.sql.execute("update orders set status = 'missed'")
    async with mirrored(shop, mode):
        await until_rows(shop, "orders", lambda rows: all(row["status"] == "missed" for row in rows.values()))
        await shop.sql.execute(f"alter publication {name} set (publish = 'insert'); update orders set status = 'lost'")
        await until_rows(shop, "orders", lambda rows: all(row["status"] == "lost" for row in rows.values()))


@MODES
async def test_changes_that_a_given_publication_left_out_for_a_while_are_made_up_for(shop: Shop, mode: str) -> None:
    await shop.sql.execute("create publication given for table orders, parts with (publish_via_partition_root)")
    async with mirrored(shop, mode, publication="given"):
        await shop.sql.execute("alter publication given set (publish = 'insert'); update orders set status = 'missed'")
        await until_state_stopped(shop, "does not publish")
        await shop.sql.execute("alter publication given set (publish = 'insert, update, delete, truncate')")
        await until_rows(shop, "orders", lambda rows: all(row["status"] == "missed" for row in rows.values()))


SWAPS = {
    "two renames": "alter table orders rename to orders_old; alter table staged rename to orders",
    "drop and rename": "drop table orders; alter table staged rename to orders",
    "another schema": "create schema old; alter table orders set schema old; alter table staged rename to orders",
}


@MODES
@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_swapped_table_is_read_and_captured(shop: Shop, mode: str, swap: str, restarted: bool) -> None:
    staged = "create table staged (like orders including all); insert into staged values (2, 'B', 2), (3, 'C', 3)"
    async with mirrored(shop, mode):
        await shop.sql.execute(staged)
        if not restarted:
            await shop.sql.execute(f"begin; {SWAPS[swap]}; commit")
            await until_rows(shop, "orders", lambda rows: 3 in rows and rows[2]["status"] == "B")
    if restarted:
        await shop.sql.execute(f"begin; {SWAPS[swap]}; commit")
    async with mirrored(shop, mode):
        await until_rows(shop, "orders", lambda rows: 3 in rows and rows[2]["status"] == "B")
        await shop.sql.execute("update orders set status = 'D' where id = 3")
        await until_rows(shop, "orders", lambda rows: rows[3]["status"] == "D")
        await until_noted(shop, None)


@MODES
async def test_rows_that_only_the_replaced_table_had_are_removed(shop: Shop, mode: str) -> None:
    async with mirrored(shop, mode):
        await shop.sql.execute("create table staged (like orders including all); insert into staged values (2, 'B', 2)")
        await shop.sql.execute(f"begin; {SWAPS['two renames']}; commit")
        await until_rows(shop, "orders", lambda rows: rows[2]["status"] == "B")
        await until_settled(shop)
        assert 1 not in await copy(shop, "orders")


async def test_changes_from_before_a_swap_are_those_of_the_table_and_later_ones_are_not(shop: Shop) -> None:
    async with mirrored(shop, "changes"):
        pass
    await shop.sql.execute("create table staged (like orders including all)")
    await shop.sql.execute("update orders set status = 'last'")
    await shop.sql.execute(f"begin; {SWAPS['two renames']}; commit")
    await shop.sql.execute("update orders_old set status = 'not of orders'")
    async with mirrored(shop, "changes"):
        await shop.sql.execute("insert into parts values (4, 'end')")
        await until_rows(shop, "parts", lambda rows: 4 in rows)
        statuses = [one["record"]["status"] for one in await shop.stream() if one["metadata"]["table_name"] == "orders"]
        assert statuses.count("last") == 2
        assert "not of orders" not in statuses


@MODES
@pytest.mark.parametrize("restarted", [False, True])
async def test_rows_of_an_attached_partition_come(shop: Shop, mode: str, restarted: bool) -> None:
    attach = """create table parts_3 (like parts including all); insert into parts_3 values (21, 'attached');
                alter table parts attach partition parts_3 for values from (20) to (30)"""
    async with mirrored(shop, mode):
        if not restarted:
            await shop.sql.execute(attach)
            await until_rows(shop, "parts", lambda rows: 21 in rows)
            await shop.sql.execute("insert into parts values (22, 'live')")
            await until_rows(shop, "parts", lambda rows: 22 in rows)
    if restarted:
        await shop.sql.execute(attach)
    async with mirrored(shop, mode):
        await until_rows(shop, "parts", lambda rows: 21 in rows)
        await shop.sql.execute("update parts set v = 'live' where id = 21")
        await until_rows(shop, "parts", lambda rows: rows[21]["v"] == "live")


async def test_changes_of_a_detached_partition_are_not_of_the_table(shop: Shop) -> None:
    async with mirrored(shop, "changes"):
        before = await resyncs(shop, "parts")
        await shop.sql.execute("update parts set v = 'attached' where id = 11")
        await shop.sql.execute("alter table parts detach partition parts_2")

        async def is_seen() -> bool:
            return await resyncs(shop, "parts") > before

        await eventually(is_seen)
        await shop.sql.execute("update parts_2 set v = 'apart'; insert into parts values (2, 'end')")
        await until_rows(shop, "parts", lambda rows: 2 in rows)
        assert "apart" not in [one["record"].get("v") for one in await shop.stream()]


async def test_an_empty_new_partition_is_no_reason_to_read_the_table(shop: Shop) -> None:
    async with mirrored(shop, "rows"):
        before = await resyncs(shop, "parts")
        await shop.sql.execute("create table parts_3 partition of parts for values from (20) to (30)")
        await until_stored(shop, "parts", lambda fingerprint: len(fingerprint["leaves"]) == 3)
        await shop.sql.execute("insert into parts values (21, 'live')")
        await until_rows(shop, "parts", lambda rows: 21 in rows)
        assert await resyncs(shop, "parts") == before


async def until_stored(shop: Shop, table: str, answer: Callable[[dict[str, Any]], bool]) -> None:
    async def look() -> bool:
        text = await shop.sql.fetchval(
            "select fingerprint::text from headrace_internal.captured_tables where relation = $1", f"public.{table}"
        )
        return answer(json.loads(text))

    await eventually(look)


@MODES
@pytest.mark.parametrize("restarted", [False, True])
async def test_rows_of_a_partition_that_was_away_for_a_moment_come(shop: Shop, mode: str, restarted: bool) -> None:
    moment = """alter table parts detach partition parts_1; update parts_1 set v = 'apart';
                alter table parts attach partition parts_1 for values from (0) to (10)"""
    async with mirrored(shop, mode):
        if not restarted:
            await shop.sql.execute(moment)
            await until_rows(shop, "parts", lambda rows: rows[1]["v"] == "apart")
    if restarted:
        await shop.sql.execute(moment)
    async with mirrored(shop, mode):
        await until_rows(shop, "parts", lambda rows: rows[1]["v"] == "apart")


@MODES
@pytest.mark.parametrize(
    "statement", ["alter table parts detach partition parts_2", "drop table parts_2", "truncate parts_2"]
)
async def test_rows_of_a_partition_that_is_gone_are_removed(shop: Shop, mode: str, statement: str) -> None:
    async with mirrored(shop, mode):
        before = await resyncs(shop, "parts")
        await shop.sql.execute(statement)

        async def asked() -> bool:
            return await resyncs(shop, "parts") > before

        await eventually(asked)
        await until_settled(shop)
        assert set(await copy(shop, "parts")) == {1}


@MODES
@pytest.mark.parametrize(
    ("statement", "column", "value"),
    [
        ("alter table orders alter status type int using 5", "status", 5),
        ("alter table orders alter status type text using upper(status)", "status", "A"),
        ("alter table orders add note text default 'new'", "note", "new"),
        ("alter table orders add note text default clock_timestamp()::text not null", "note", None),
        ("alter table orders add g int generated always as (id * 2) stored", "g", 2),
    ],
)
async def test_values_that_changed_without_a_message_come(
    shop: Shop, mode: str, statement: str, column: str, value: Any
) -> None:
    if " stored" in statement and shop.sql.get_server_version().major < 18:
        pytest.skip("stored generated columns are published from PostgreSQL 18 on")
    async with mirrored(shop, mode):
        await shop.sql.execute(statement)
        await until_rows(
            shop, "orders", lambda rows: column in rows[1] and rows[1][column] == (value or rows[1][column])
        )


async def test_a_difference_during_a_backfill_that_may_have_passed_it_is_repaired_after_it(shop: Shop) -> None:
    async with mirrored(shop, "rows"):
        pass
    source = await store.source(shop.database, "shop")
    other = await store.start_backfill(shop.database, source.id, "public.orders", None, 1)
    await shop.sql.execute("insert into orders select g, 'x', 1 from generate_series(10, 200) as g")
    async with shop.captured(QUICK):

        async def is_running() -> bool:
            return any(one.state == "running" for one in await store.backfills(shop.database, source.id))

        await eventually(is_running)
        await shop.sql.execute("alter table orders alter status type text using upper(status)")
    async with shop.captured(QUICK):  # it is found again, if it was not requested yet
        await store.cancel_backfills(shop.database, source.id, other)
        await until_rows(shop, "orders", lambda rows: rows[1]["status"] == "A" and rows[200]["status"] == "X")
        await until_noted(shop, None)


async def test_a_resync_that_fails_is_noted_until_the_table_was_read(shop: Shop) -> None:
    async with mirrored(shop, "changes"):
        await shop.sql.execute("alter table parts drop constraint parts_pkey; alter table parts replica identity full")
        await shop.sql.execute("alter table parts_1 replica identity full; alter table parts_2 replica identity full")
        await until_noted(shop, "could not be read")
        await shop.sql.execute("alter table parts add primary key (id)")
        source = await store.source(shop.database, "shop")
        await store.start_backfill(shop.database, source.id, "public.parts")
        await until_noted(shop, None)


async def test_a_source_without_backfill_logs_what_it_does_not_read(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    await shop.source(tables=BOTH, backfill=False)
    async with shop.captured(QUICK):
        await shop.until_running()
        await shop.sql.execute("alter table orders alter status type text using upper(status)")

        async def logged() -> bool:
            return "rows changed without messages" in caplog.text

        await eventually(logged)
        assert "backfill start shop --table public.orders" in caplog.text
        assert await resyncs(shop, "orders") == 0


async def test_a_missing_value_of_a_table_that_was_dropped_since_stops_nothing(shop: Shop) -> None:
    await shop.sql.execute(
        "alter table orders alter status set storage external; alter table parts alter v set storage external"
    )
    async with mirrored(shop, "rows", transform=None):
        pass
    await shop.sql.execute(
        "insert into orders values (5, repeat('x', 9000), 1); update orders set total = 2 where id = 5"
    )
    await shop.sql.execute("drop table orders")
    async with mirrored(shop, "rows"):
        await shop.sql.execute("insert into parts values (4, 'end')")
        await until_rows(shop, "parts", lambda rows: 4 in rows)


async def test_a_source_of_before_this_version_is_not_read_again(shop: Shop) -> None:
    async with mirrored(shop, "changes"):
        pass
    await shop.sql.execute("update headrace_internal.captured_tables set fingerprint = null, resync = null")
    before = await resyncs(shop, "orders")
    async with shop.captured(QUICK):
        await until_stored_any(shop)
        await shop.sql.execute("insert into parts values (4, 'end')")
        await until_rows(shop, "parts", lambda rows: 4 in rows)
        assert await resyncs(shop, "orders") == before


async def until_stored_any(shop: Shop) -> None:
    async def look() -> bool:
        return bool(
            await shop.sql.fetchval("select bool_and(fingerprint is not null) from headrace_internal.captured_tables")
        )

    await eventually(look)


async def test_foreign_and_unlogged_partitions_are_noted(shop: Shop) -> None:
    await shop.sql.execute("create unlogged table parts_u partition of parts for values from (90) to (99)")
    async with mirrored(shop, "rows"):
        await until_noted(shop, "parts_u")
