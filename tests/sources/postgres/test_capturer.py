"""The capturer survives changes of what it depends on, and changes that can't be published do not stop it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace import store
from headrace.model.capture import CaptureInfo
from headrace.sources.postgres.limits import CaptureLimits
from headrace.sources.postgres.rules.transforms import transform
from headrace.sources.postgres.shaping import message_builder
from tests.runtime.running import eventually
from tests.sources.postgres.captured import Shop

pytestmark = pytest.mark.asyncio

_refused = True


@transform
def refusing(data: dict[str, Any]) -> dict[str, Any]:
    """A transform that refuses unpaid orders until the test changes that."""
    if _refused and data["record"]["status"] != "paid":
        raise ValueError("it is not paid")
    return data["record"]  # type: ignore[no-any-return]


async def capture(shop: Shop) -> CaptureInfo:
    found = (await store.source(shop.database, "shop")).capture
    assert found is not None
    return found


async def test_a_change_on_which_a_transform_fails_becomes_a_failure_and_can_be_tried_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = await shop.source(transform=f"{__name__}:refusing")
    async with shop.captured():
        await shop.until_running()
        await shop.sql.execute("insert into orders values (1, 'new'), (2, 'paid')")
        assert [one["id"] for one in await shop.until(1)] == [2]
        (failed,) = await store.capture_failures(shop.database, info.id)
        assert failed.key == "public.orders.1"
        assert "it is not paid" in failed.error
        assert failed.data["record"]["status"] == "new"

        await store.retry_capture_failures(shop.database, info.id)

        async def has_failed_again() -> bool:
            (again,) = await store.capture_failures(shop.database, info.id)
            return not again.retry and again.attempts == 2

        await eventually(has_failed_again)
        monkeypatch.setattr(f"{__name__}._refused", False)
        await store.retry_capture_failures(shop.database, info.id)
        assert [one["id"] for one in await shop.until(2)] == [2, 1]
        assert await store.capture_failures(shop.database, info.id) == []


async def test_a_row_that_is_tried_again_does_not_take_the_place_of_a_newer_version(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = await shop.source(mode="rows", transform=f"{__name__}:refusing")
    async with shop.captured():
        await shop.until_running()
        await shop.sql.execute("insert into orders values (1, 'new'), (2, 'new')")

        async def have_failed() -> bool:
            return len(await store.capture_failures(shop.database, info.id)) == 2

        await eventually(have_failed)
        await shop.sql.execute("update orders set status = 'paid' where id = 1")
        await shop.until(1)
        monkeypatch.setattr(f"{__name__}._refused", False)
        await store.retry_capture_failures(shop.database, info.id)
        await shop.until(2)
    assert {key: one["status"] for key, one in (await shop.rows()).items()} == {
        "public.orders.1": "paid",
        "public.orders.2": "new",
    }
    assert await store.capture_failures(shop.database, info.id) == []


async def test_messages_that_the_stream_refuses_are_sorted_out_and_all_others_are_published(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Shaping prevents this. If it overlooks a case, capture must continue nevertheless.
    append = message_builder.MessageBuilder.append

    def overlooking(self: Any, key: str, data: bytes, into: Any, *args: Any) -> int:
        if b'"bad"' not in data:
            return append(self, key, data, into, *args)
        into.keys.append(key)
        into.data.append('{"record": "\\u0000"}')
        return 1

    monkeypatch.setattr(message_builder.MessageBuilder, "append", overlooking)
    info = await shop.source()
    async with shop.captured():
        await shop.until_running()
        await shop.sql.execute(
            "insert into orders select n, case when n in (3, 7) then 'bad' else 'good' end from generate_series(1, 9) as n"
        )
        found = await shop.until(7)
    assert [one["record"]["id"] for one in found] == [1, 2, 4, 5, 6, 8, 9]
    failures = await store.capture_failures(shop.database, info.id)
    assert len(failures) == 2
    assert all("NUL" in one.error for one in failures)


async def test_a_table_that_was_dropped_and_made_anew_is_captured_from_its_first_row_on(shop: Shop) -> None:
    await shop.sql.execute("create table other (id int primary key)")
    await shop.source(tables=("public.orders", "public.other"), backfill=True)
    async with shop.captured(CaptureLimits(table_check_interval=0.2)):
        await shop.until_running()
        await shop.sql.execute("insert into orders values (1)")
        await shop.until(1)
        await shop.sql.execute("drop table orders")
        await shop.sql.execute("create table orders (id int primary key)")
        await shop.sql.execute("insert into orders values (2)")
        await shop.sql.execute("insert into other values (3)")

        async def has_all() -> bool:
            return {one["record"]["id"] for one in await shop.stream()} == {1, 2, 3}

        await eventually(has_all)


async def test_a_table_is_known_under_another_name_too(shop: Shop) -> None:
    await shop.source()
    async with shop.captured():
        await shop.until_running()
        await shop.sql.execute("insert into orders values (1)")
        await shop.sql.execute("alter table orders rename to sales")
        await shop.sql.execute("insert into sales values (2)")
        found = await shop.until(2)
    assert await shop.keys() == ["public.orders.1", "public.orders.2"]
    assert [one["metadata"]["table_name"] for one in found] == ["orders", "orders"]


async def test_another_server_than_the_captured_one_is_not_taken_for_it(shop: Shop) -> None:
    await shop.source()
    async with shop.captured():
        await shop.until_running()
    await shop.database.fetchval("update headrace_internal.captures set system_id = '1' returning 1")
    async with shop.captured():
        await shop.until_state("stopped")
        found = await capture(shop)
    assert found.reason is not None
    assert "another server" in found.reason
    assert found.mend == "headrace source postgres resume shop --anew"


async def test_a_source_that_stops_stops_no_other_and_goes_on_when_it_is_mended(shop: Shop) -> None:
    await shop.source()
    await shop.source("late", tables=("public.late",))
    async with shop.captured(CaptureLimits(stopped_retry_delay=0.2)) as app:
        await shop.until_running()
        stopped = await shop.until_state("stopped", "late")
        assert stopped.capture is not None
        assert "public.late" in (stopped.capture.reason or "")
        await shop.sql.execute("insert into orders values (1)")
        await shop.until(1)
        assert app.statistics()["sources"]["late"]["state"] == "stopped"
        await shop.sql.execute("create table late (id int primary key)")
        await shop.until_running("late")
        await shop.sql.execute("insert into late values (1)")
        await shop.until(1, "late")


async def test_settings_that_are_edited_count_from_the_next_change_on(shop: Shop) -> None:
    info = await shop.source()
    async with shop.captured():
        await shop.until_running()
        await shop.sql.execute("insert into orders values (1, 'new')")
        await shop.until(1)
        settings = {**info.settings, "columns": {"public.orders": ["id"]}}
        await store.edit_source(shop.database, info.id, settings)

        async def is_heeded() -> bool:
            await shop.sql.execute("update orders set status = status || '!'")
            found = await shop.stream()
            return found[-1]["record"] == {"id": 1}

        await eventually(is_heeded)
    known = await shop.sql.fetchval("select count(*) from headrace_streams.shop")
    assert len({json.dumps(one["metadata"], sort_keys=True) for one in await shop.stream()}) == known, "nothing twice"


async def test_a_backfill_of_rows_so_large_that_a_chunk_is_appended_in_parts_goes_on_to_its_end(shop: Shop) -> None:
    limits = CaptureLimits(outbox_bytes=1000, min_chunk_rows=10, first_chunk_rows=10, max_chunk_rows=10)
    await shop.sql.execute("insert into orders select g, repeat('x', 200), 1 from generate_series(1, 100) as g")
    source = await shop.source(backfill=True)
    async with shop.captured(limits):
        found = await shop.until(100)
        assert [one["record"]["id"] for one in found] == list(range(1, 101))

        async def is_done() -> bool:
            return [one.state for one in await store.backfills(shop.database, source.id)] == ["done"]

        await eventually(is_done)


async def test_a_partition_that_logs_only_keys_of_old_rows_reports_no_value_as_null(shop: Shop) -> None:
    await shop.sql.execute("create table parted (k int primary key, v text, doc text) partition by list (k)")
    await shop.sql.execute("create table parted_1 partition of parted default")  # its identity stays the key
    await shop.sql.execute("alter table parted_1 alter column doc set storage external")
    await shop.sql.execute("alter table parted replica identity full")
    await shop.source(tables=("public.parted",))
    async with shop.captured():
        await shop.until_running()
        await shop.sql.execute("insert into parted values (1, 'v', repeat('x', 9000))")
        await shop.sql.execute("update parted set k = 2")
        await shop.sql.execute("delete from parted")
        _, updated, deleted = await shop.until(3)
    assert (updated["record"], updated["changes"]) == ({"k": 2, "v": "v"}, {"k": 1})
    assert updated["metadata"]["unchanged"] == ["doc"]
    assert deleted["record"] == {"k": 2}
