"""Regression tests of defects that a review of the capture engine found."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID, uuid4

import anyio
import asyncpg
import pytest

from headrace import store
from headrace.model.errors import SchemaError, StoreUnavailable
from headrace.sources.postgres.limits import CaptureLimits
from headrace.sources.postgres.rules.transforms import transform
from tests.runtime.running import eventually
from tests.sources.postgres.captured import Shop

pytestmark = pytest.mark.asyncio


async def test_a_large_transaction_that_was_replicated_from_elsewhere_is_captured(shop: Shop) -> None:
    # A streamed piece begins with its origin, the only message of a piece without an xid. Four bytes of
    # the origin's name were taken for an xid.
    database = await shop.sql.fetchval("select current_database()")
    await shop.sql.execute(f"alter database {database} set logical_decoding_work_mem = '64kB'")
    origin = uuid4().hex[:3]
    await shop.sql.execute("select pg_replication_origin_create($1)", origin)
    try:
        await shop.source()
        async with shop.captured():
            await shop.until_running()
            await shop.sql.execute("select pg_replication_origin_session_setup($1)", origin)
            await shop.sql.execute("insert into orders select g, 'new', g from generate_series(1, 3000) as g")
            await shop.sql.execute("select pg_replication_origin_session_reset()")
            found = await shop.until(3000)
        assert [one["record"]["id"] for one in found] == list(range(1, 3001))
    finally:
        await shop.sql.execute("select pg_replication_origin_drop($1)", origin)


async def test_transactions_without_changes_append_nothing(shop: Shop) -> None:
    # PostgreSQL 14 sends them, too. Each append to Headrace's own database was one, which was appended in turn,
    # without an end.
    await shop.source()
    await shop.sql.execute("create table aside (id int)")
    async with shop.captured(CaptureLimits(idle_position_interval=3600.0)):
        await shop.until_running()
        for count in range(1, 4):
            for _ in range(20):
                await shop.sql.execute("insert into aside values (1)")
            await shop.sql.execute("insert into orders values ($1)", count)
            await shop.until(count)
    appends = await shop.sql.fetchval(
        "select last_value from pg_sequences where sequencename like 'capture_positions%'"
    )
    assert appends == 1 + 3, "the beginning, and each change"


async def test_an_append_that_commits_after_its_connection_was_lost_is_not_made_twice(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The capture lease continues, so the epoch alone fenced nothing. The position was read again before
    # that append had committed.
    append = store.append_captured
    other = await asyncpg.connect(shop.dsn)
    under_way = other.transaction()
    lost = anyio.Event()

    async def losing(executor: Any, number: int, epoch: int, stream: str, what: Any) -> None:
        if not what.keys or lost.is_set():
            await append(executor, number, epoch, stream, what)
            return
        await under_way.start()
        await append(other, number, epoch, stream, what)
        lost.set()
        raise StoreUnavailable("The connection is lost.")

    monkeypatch.setattr(store, "append_captured", losing)
    waited_for = """select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')
                    or exists (select from headrace_streams.shop)"""

    async def is_waited_for_or_made_again() -> bool:
        return bool(await shop.sql.fetchval(waited_for))

    try:
        await shop.source()
        async with shop.captured():
            await shop.until_running()
            await shop.sql.execute("insert into orders values (1)")
            await lost.wait()
            await eventually(is_waited_for_or_made_again)
            await under_way.commit()
            await shop.sql.execute("insert into orders values (2)")
            found = await shop.until(2)
        assert [one["record"]["id"] for one in found] == [1, 2]
    finally:
        await other.close()


async def test_an_unexpected_failure_ends_the_capture_lease_of_its_source_only(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.source()
    bad = await shop.source("bad")
    take, failed = store.take_capture, anyio.Event()
    number = await shop.sql.fetchval("select id from headrace_internal.sources where uid = $1", UUID(bad.id))

    async def failing(executor: Any, of: int, *args: Any, **options: Any) -> int | None:
        if of == number and not failed.is_set():
            failed.set()
            raise SchemaError("The database has no Headrace schema.")
        return await take(executor, of, *args, **options)

    monkeypatch.setattr(store, "take_capture", failing)
    async with shop.captured(CaptureLimits(stopped_retry_delay=0.2)):
        await failed.wait()
        await shop.until_running()
        await shop.until_running("bad")


async def documents(shop: Shop, **settings: Any) -> None:
    """A table with a column `doc` that is stored out of line, captured in mode `rows`."""
    await shop.sql.execute("create table papers (id int primary key, state text, doc text)")
    await shop.sql.execute("alter table papers alter column doc set storage external")
    await shop.source("papers", tables=("public.papers",), mode="rows", **settings)


async def test_a_row_is_not_completed_from_a_version_that_is_older_than_one_that_the_condition_passed_over(
    shop: Shop,
) -> None:
    await documents(shop, where="data.record.state = 'paid'", deletes="ignore")
    async with shop.captured():
        await shop.until_running("papers")
        await shop.sql.execute("insert into papers values (1, 'paid', repeat('a', 9000))")
        await shop.until(1, "papers")
        await shop.sql.execute("update papers set state = 'open', doc = repeat('b', 9000)")
        await shop.sql.execute("update papers set state = 'paid'")
        await shop.sql.execute("insert into papers values (2, 'paid', 'last')")
        first, _ = await shop.until(2, "papers")
    assert first["record"] == {"id": 1, "state": "paid", "doc": "b" * 9000}


async def test_a_row_of_a_new_key_is_not_completed_from_the_row_that_had_it_before(shop: Shop) -> None:
    await documents(shop, deletes="ignore")
    async with shop.captured():
        await shop.until_running("papers")
        await shop.sql.execute("insert into papers values (1, 'new', repeat('a', 9000)), (2, 'old', repeat('b', 9000))")
        await shop.until(2, "papers")
        await shop.sql.execute("delete from papers where id = 2")
        await shop.sql.execute("update papers set id = 2")
        await shop.sql.execute("insert into papers values (3, 'new', 'last')")
        await shop.until(3, "papers")
    assert (await shop.rows("papers"))["public.papers.2"]["record"] == {"id": 2, "state": "new", "doc": "a" * 9000}


@transform
def slow(data: dict[str, Any]) -> dict[str, Any]:
    """A slow transform."""
    time.sleep(0.004)
    return data


async def test_a_large_transaction_is_appended_though_the_next_part_of_it_takes_long(shop: Shop) -> None:
    # like a transform that takes a millisecond, with chunks of 5,000
    limits = CaptureLimits(append_idle_timeout=0.3, append_keepalive_interval=0.05, outbox_messages=200)
    await shop.source(transform=f"{__name__}:slow")
    async with shop.captured(limits):
        await shop.until_running()
        await shop.sql.execute("insert into orders select g, 'new', g from generate_series(1, 500) as g")
        await shop.until(500)
    assert (await store.source(shop.database, "shop")).capture.reason is None  # type: ignore[union-attr]


_refused = True


@transform
def refusing(data: dict[str, Any]) -> dict[str, Any]:
    """A transform that refuses new orders until the test changes that."""
    if _refused and data["record"]["status"] == "new":
        raise ValueError("it is new")
    return data["record"]  # type: ignore[no-any-return]


async def test_the_newer_version_of_a_row_stays_if_one_of_two_versions_in_an_append_failed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = await shop.source(mode="rows", transform=f"{__name__}:refusing")
    async with shop.captured():
        await shop.until_running()
        async with shop.sql.transaction():
            await shop.sql.execute("insert into orders values (1, 'new'), (2, 'paid')")
            await shop.sql.execute("update orders set status = 'paid' where id = 1")
            await shop.sql.execute("update orders set status = 'new' where id = 2")
        await shop.until(2)
        monkeypatch.setattr(f"{__name__}._refused", False)
        assert await store.retry_capture_failures(shop.database, info.id) == 2

        async def are_settled() -> bool:
            return not await store.capture_failures(shop.database, info.id)

        await eventually(are_settled)
        rows = await shop.rows()
    assert {key: row["status"] for key, row in rows.items()} == {"public.orders.1": "paid", "public.orders.2": "new"}


async def test_a_table_that_was_recreated_while_no_process_captured_is_captured_from_its_first_row(shop: Shop) -> None:
    info = await shop.source(backfill=True)

    async def is_read() -> bool:
        return [one.state for one in await store.backfills(shop.database, info.id)] == ["done"]

    async with shop.captured():
        await shop.until_running()
        await eventually(is_read)
        await shop.sql.execute("insert into orders values (1)")
        await shop.until(1)
    await shop.sql.execute("drop table orders")
    await shop.sql.execute("create table orders (id int primary key)")
    await shop.sql.execute("insert into orders values (2)")
    async with shop.captured():
        found = await shop.until(2)
    assert [one["record"]["id"] for one in found] == [1, 2]
