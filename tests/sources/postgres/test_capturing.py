"""Committed changes of a table become messages, exactly once and in order, whichever process captures it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import store
from headrace.model.errors import StoreUnavailable
from headrace.sources.postgres.capture import capturing
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.limits import CaptureLimits
from tests.runtime.running import eventually
from tests.sources.postgres.captured import Shop
from tests.support.logs import logged

pytestmark = pytest.mark.asyncio


async def test_committed_changes_become_messages_in_order(shop: Shop) -> None:
    await shop.sql.execute("alter table orders replica identity full")
    await shop.source()
    async with shop.captured():
        await shop.until_running()
        await shop.sql.execute("insert into orders values (1, 'new', 10.50), (2, 'new', 20)")
        async with shop.sql.transaction():
            await shop.sql.execute("update orders set status = 'paid' where id = 1")
            await shop.sql.execute("delete from orders where id = 2")
        found = await shop.until(4)
    assert [(one["action"], one["record"], one["changes"]) for one in found] == [
        ("insert", {"id": 1, "status": "new", "total": "10.50"}, None),
        ("insert", {"id": 2, "status": "new", "total": "20"}, None),
        ("update", {"id": 1, "status": "paid", "total": "10.50"}, {"status": "new"}),
        ("delete", {"id": 2, "status": "new", "total": "20"}, None),
    ]
    assert await shop.keys() == ["public.orders.1", "public.orders.2", "public.orders.1", "public.orders.2"]
    places = [(one["metadata"]["commit_lsn"], one["metadata"]["commit_idx"]) for one in found]
    assert places == sorted(places)
    assert [idx for _, idx in places] == [0, 1, 0, 1]
    assert len({lsn for lsn, _ in places}) == 2
    assert {(one["metadata"]["table_schema"], one["metadata"]["table_name"]) for one in found} == {("public", "orders")}


async def test_changes_made_while_no_process_captures_are_captured_later_and_none_twice(shop: Shop) -> None:
    await shop.source()
    async with shop.captured():
        await shop.until_running()
        await shop.sql.execute("insert into orders values (1)")
        await shop.until(1)
    await shop.sql.execute("insert into orders values (2)")
    async with shop.captured():
        await shop.until_running()
        await shop.sql.execute("insert into orders values (3)")
        found = await shop.until(3)
    assert [one["record"]["id"] for one in found] == [1, 2, 3]


async def test_a_large_transaction_appears_whole_in_parts_that_are_streamed_while_it_is_open(shop: Shop) -> None:
    name = await shop.sql.fetchval("select current_database()")
    await shop.sql.execute(f"alter database {name} set logical_decoding_work_mem = '64kB'")
    await shop.source()
    async with shop.captured(CaptureLimits(outbox_messages=100)):
        await shop.until_running()
        async with shop.sql.transaction():
            await shop.sql.execute("insert into orders select n, 'kept' from generate_series(1, 3000) as n")
            await shop.sql.execute("savepoint s")
            await shop.sql.execute("insert into orders select n, 'gone' from generate_series(3001, 6000) as n")
            await shop.sql.execute("rollback to savepoint s")
            await shop.sql.execute("insert into orders values (9999, 'last')")

            async def is_streamed() -> bool:
                return await shop.database.fetchval(  # statistics do not change within a transaction
                    "select sum(stream_txns) > 0 from pg_stat_replication_slots join pg_replication_slots using (slot_name)"
                    " where database = current_database()"
                )

            await eventually(is_streamed)
            assert await shop.stream() == []
        found = await shop.until(3001)
    assert [one["record"]["id"] for one in found] == [*range(1, 3001), 9999]
    assert [one["metadata"]["commit_idx"] for one in found] == list(range(3001))


async def test_one_of_two_processes_captures_and_the_other_continues_when_it_ends(shop: Shop) -> None:
    await shop.source()
    async with shop.captured():
        first = await shop.until_running()
        async with shop.captured():
            await shop.sql.execute("insert into orders values (1)")
            await shop.until(1)
            assert first.capture is not None
    async with shop.captured():
        await shop.until_running()
        await shop.sql.execute("insert into orders values (2)")
        found = await shop.until(2)
    assert [one["record"]["id"] for one in found] == [1, 2]


async def test_a_paused_source_is_not_captured_until_it_is_resumed(shop: Shop) -> None:
    info = await shop.source()
    async with shop.captured():
        await shop.until_running()
        await store.pause_capture(shop.database, info.id, paused=True)
        await shop.until_state("paused")

        async def is_left() -> bool:
            return not await shop.sql.fetchval(
                "select bool_or(active) from pg_replication_slots where database = current_database()"
            )

        await eventually(is_left)
        await shop.sql.execute("insert into orders values (1)")
        await store.pause_capture(shop.database, info.id, paused=False)
        await shop.until(1)


async def test_rows_are_kept_in_their_latest_version(shop: Shop) -> None:
    await shop.source(mode="rows", deletes="tombstone")
    async with shop.captured():
        await shop.until_running()
        await shop.sql.execute("insert into orders values (1, 'new'), (2, 'new'), (3, 'new')")
        await shop.sql.execute("update orders set status = 'paid' where id = 1")
        await shop.sql.execute("update orders set id = 4 where id = 2")
        await shop.sql.execute("delete from orders where id = 3")

        async def latest() -> dict[str, str | None] | None:
            found = {key: one["record"] and one["record"]["status"] for key, one in (await shop.rows()).items()}
            return found if found.get("public.orders.3", "") is None else None

        found = await eventually(latest)
    assert found == {
        "public.orders.1": "paid",
        "public.orders.2": None,
        "public.orders.3": None,
        "public.orders.4": "new",
    }


async def test_values_that_are_stored_out_of_line_and_did_not_change_are_there_in_rows(shop: Shop) -> None:
    await shop.sql.execute(
        "alter table orders add column doc text; alter table orders alter column doc set storage external"
    )
    await shop.source(mode="rows")
    doc = "x" * 10_000
    async with shop.captured():
        await shop.until_running()
        await shop.sql.execute("insert into orders values (1, 'new', 1, $1)", doc)
        await shop.until(1)
        await shop.sql.execute("update orders set status = 'paid'")

        async def is_paid() -> dict[str, object] | None:
            (one,) = await shop.stream()
            return one["record"] if one["record"]["status"] == "paid" else None

        assert await eventually(is_paid) == {"id": 1, "status": "paid", "total": "1", "doc": doc}


async def test_an_idle_database_still_moves_the_slot_on(shop: Shop) -> None:
    await shop.source()
    async with shop.captured(CaptureLimits(idle_position_interval=0.0)):
        await shop.until_running()
        await shop.sql.execute("create table other (id int)")

        async def slot() -> str:
            found: str = await shop.sql.fetchval(
                "select confirmed_flush_lsn::text from pg_replication_slots where database = current_database()"
            )
            return found

        before = await slot()
        await shop.sql.execute("insert into other select generate_series(1, 1000)")

        async def has_moved() -> bool:
            return await shop.sql.fetchval("select $1::text::pg_lsn > $2::text::pg_lsn", await slot(), before)

        await eventually(has_moved)
        assert await shop.stream() == []


async def test_a_source_with_a_missing_transform_is_retried_and_logged_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def is_missing(name: str) -> Any:
        asked.append(name)
        raise SourceStopped(f"The transform {name!r} can't be imported.")

    monkeypatch.setattr(capturing.transforms, "load", is_missing)
    await shop.source(transform="nowhere:nothing")
    async with shop.captured(CaptureLimits(stopped_retry_delay=0.0)):

        async def is_looked_at_again() -> bool:
            return len(asked) >= 3

        await eventually(is_looked_at_again)
    assert len(logged(caplog, "capture stopped", source="shop")) == 1


async def test_a_source_whose_lease_is_refused_is_not_tried_again_at_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    looked: list[int] = []
    find = store.captures_to_do

    async def refuse(*_: Any) -> None:
        tried.append(1)
        raise StoreUnavailable("The database is read-only.")

    async def count(database: store.Database) -> Any:
        looked.append(1)
        return await find(database)

    monkeypatch.setattr(capturing.CaptureLease, "take", refuse)
    monkeypatch.setattr(store, "captures_to_do", count)
    await shop.source()
    async with shop.captured(CaptureLimits(sources_interval=0.05, first_retry_delay=3600)):

        async def is_looked_at_again() -> bool:
            return len(looked) >= 5

        await eventually(is_looked_at_again)
    assert len(tried) == 1
