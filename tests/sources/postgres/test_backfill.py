"""Backfills against a real server, with the capturer's side controlled by the test."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec
import pytest
import pytest_asyncio

from headrace import store
from headrace.sources.postgres.backfill import backfiller as backfill
from headrace.sources.postgres.backfill import chunks, resyncing
from tests.sources.postgres.backfilling import Capture, chunks_of, until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def items(database: store.Database) -> store.Database:
    """A database with a table `items` of 1,000 rows."""
    await database.fetch("create table items (id int primary key, n int not null, name text)")
    await database.fetch("insert into items select i, i * 10, 'item ' || i from generate_series(1, 1000) as i")
    await database.fetch("analyze items")
    return database


@pytest_asyncio.fixture
async def capture(items: store.Database) -> AsyncIterator[Capture]:
    async with Capture.opened(items) as capture:
        yield capture


@pytest.fixture
def small_chunks(capture: Capture) -> None:
    """Make chunks of 100 rows, whatever the measured speed suggests."""
    capture.limits = chunks_of(100)
    capture.restart()


async def test_a_table_is_read_from_its_first_row_to_its_last(capture: Capture) -> None:
    info = await capture.all_of(await capture.request_backfill())
    assert (info.state, info.read, info.published, info.share) == ("done", 1000, 1000, 1.0)
    assert info.total == 1000
    found = await capture.messages()
    assert [one["record"]["id"] for one in found] == list(range(1, 1001))
    assert found[0]["action"] == "read"
    assert found[0]["record"] == {"id": 1, "n": 10, "name": "item 1"}
    assert not capture.backfiller.tracking


async def test_an_empty_table_is_done_at_once(capture: Capture) -> None:
    await capture.sql.execute("delete from items")
    info = await capture.all_of(await capture.request_backfill())
    assert (info.state, info.read, info.published) == ("done", 0, 0)


async def test_the_place_is_kept_with_what_is_appended_and_another_process_goes_on(
    small_chunks: None, capture: Capture
) -> None:
    backfill_id = await capture.request_backfill()
    async with capture.working():

        async def some() -> bool:
            return (await capture.info(backfill_id)).read >= 300

        await capture.pump_until(some)
    left = (await capture.info(backfill_id)).read
    assert 300 <= left < 1000
    capture.restart()
    info = await capture.all_of(backfill_id)
    assert (info.state, info.read, info.published) == ("done", 1000, 1000)
    assert [one["record"]["id"] for one in await capture.messages("read")] == list(range(1, 1001))


@pytest.mark.parametrize("seed", range(3))
async def test_the_stream_replayed_equals_the_table_while_others_write(
    small_chunks: None, capture: Capture, connect: Any, seed: int
) -> None:
    writer, chance = await connect(), random.Random(seed)
    backfill_id = await capture.request_backfill()
    async with capture.working():
        while await capture.over(backfill_id) is None:
            for _ in range(chance.randrange(1, 5)):
                await _something(writer, chance)
            if chance.random() < 0.7:
                await capture.pump()
    assert (await capture.info(backfill_id)).state == "done"
    await capture.pump()
    assert await capture.replayed() == await capture.table()


async def _something(sql: Any, chance: random.Random) -> None:
    """A transaction of several changes. Some change keys, and some transactions are rolled back."""
    transaction = sql.transaction()
    await transaction.start()
    for _ in range(chance.randrange(1, 6)):
        row = chance.randrange(1, 1500)
        match chance.randrange(5):
            case 0:
                await sql.execute("insert into items values ($1, 0, 'new') on conflict do nothing", row)
            case 1:
                await sql.execute("delete from items where id = $1", row)
            case 2:
                await sql.execute(
                    "update items set id = $2 where id = $1 and not exists (select from items where id = $2)",
                    row,
                    row + 200,
                )
            case _:
                await sql.execute(
                    "update items set n = n + 1, name = $2 where id = $1", row, f"changed {chance.random()}"
                )
    await (transaction.rollback() if chance.random() < 0.2 else transaction.commit())


async def test_a_change_that_the_chunk_does_not_see_and_that_comes_before_it_is_not_overwritten(
    capture: Capture, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, mark = await connect(), chunks.write_watermark
    changing = writer.transaction()
    await changing.start()
    await writer.execute("update items set name = 'newer' where id = 5")
    await writer.execute("delete from items where id = 6")
    await writer.execute("update items set id = 2000 where id = 7")

    async def committed_first(connection: Any, token: str) -> None:
        if token != "settling":
            await changing.commit()
            monkeypatch.setattr(chunks, "write_watermark", mark)
        await mark(connection, token)

    monkeypatch.setattr(chunks, "write_watermark", committed_first)
    info = await capture.all_of(await capture.request_backfill())
    assert (info.read, info.published) == (1000, 997)
    assert await capture.replayed() == await capture.table()
    assert (await capture.replayed())[5]["name"] == "newer"


async def test_a_table_that_is_emptied_after_a_chunk_was_read_stays_empty(
    capture: Capture, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, mark = await connect(), chunks.write_watermark

    async def emptied_first(connection: Any, token: str) -> None:
        if token != "settling":
            await writer.execute("truncate items")
            monkeypatch.setattr(chunks, "write_watermark", mark)
        await mark(connection, token)

    monkeypatch.setattr(chunks, "write_watermark", emptied_first)
    info = await capture.all_of(await capture.request_backfill())
    assert (info.state, info.read, info.published) == ("done", 1000, 0)
    assert await capture.replayed() == {}


async def test_a_table_that_is_rewritten_while_a_chunk_waits_for_it_does_not_look_empty(
    capture: Capture, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, watcher, read = await connect(), await connect(), chunks.read
    waiting = """select exists (select from pg_locks where not granted and relation = 'items'::regclass
                 and database = (select oid from pg_database where datname = current_database()))"""

    async def read_meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(chunks, "read", read)
        altering = writer.transaction()
        await altering.start()
        await writer.execute("alter table items alter column n type bigint")

        async def commit() -> None:
            await until(lambda: watcher.fetchval(waiting))
            await altering.commit()

        async with anyio.create_task_group() as group:
            group.start_soon(commit)
            return await read(*args)

    monkeypatch.setattr(chunks, "read", read_meanwhile)
    info = await capture.all_of(await capture.request_backfill())
    assert (info.state, info.read) == ("done", 1000)


async def test_rows_that_come_while_it_reads_are_left_to_the_changes(small_chunks: None, capture: Capture) -> None:
    backfill_id = await capture.request_backfill()
    async with capture.working():

        async def begun() -> bool:
            return (await capture.info(backfill_id)).read > 0

        await capture.pump_until(begun)
        while await capture.over(backfill_id) is None:  # changes faster than the backfill reads
            await capture.sql.execute(
                "insert into items select i, 0, 'new' from (select max(id) as top from items) as m, generate_series(top + 1, top + 150) as i"
            )
            await capture.pump()
    assert (await capture.info(backfill_id)).read == 1000
    await capture.pump()
    assert await capture.replayed() == await capture.table()


async def test_cancelled_it_ends_with_the_chunks_that_are_on_their_way(small_chunks: None, capture: Capture) -> None:
    backfill_id = await capture.request_backfill()
    async with capture.working():

        async def some() -> bool:
            return (await capture.info(backfill_id)).read >= 200

        await capture.pump_until(some)
        assert await store.cancel_backfills(capture.database, capture.source, backfill_id) == 1
        await capture.pump_until(lambda: not capture.backfiller.tracking)
        info = await capture.info(backfill_id)
        assert info.state == "cancelled"
        assert info.read <= 500
        assert len(await capture.messages()) == info.published


async def test_queued_backfills_run_in_the_order_of_their_requests(items: store.Database) -> None:
    await items.fetch("create table others (id int primary key)")
    await items.fetch("insert into others select generate_series(1, 10)")
    async with Capture.opened(items, tables=("public.items", "public.others")) as capture:
        first, second = await capture.request_backfill("public.others"), await capture.request_backfill("public.items")
        info = await capture.all_of(second)
        assert (await capture.info(first)).state == info.state == "done"
        names = [one["metadata"]["table_name"] for one in await capture.messages()]
        assert names == ["others"] * 10 + ["items"] * 1000


async def test_a_resync_is_one_run_unless_another_one_may_have_passed_the_change(items: store.Database) -> None:
    async with Capture.opened(items) as capture:

        async def resync(*, is_new: bool = False) -> str | None:
            return await resyncing.request_resync(items, capture.source, capture.spec, "public.items", is_new=is_new)

        asked = await resync()
        assert asked is not None
        assert await resync() == asked  # it is queued
        assert await store.begin_backfill(items, capture.number, capture.epoch, 1, None)
        assert await resync() not in (None, asked)  # it is running, and the next one is queued behind it
        read = await resync(is_new=True)
        assert read is not None
        assert await resync(is_new=True) == read
        number = await items.fetchval("select id from headrace_internal.backfills where uid = $1::text::uuid", read)
        assert await store.begin_backfill(items, capture.number, capture.epoch, number, None)
        assert await resync(is_new=True) is None  # it is running
        await store.cancel_backfills(items, capture.source)
        await capture.request_backfill(where={"eq": [["data", "record", "id"], 1]})
        assert await resync(is_new=True) is None  # it reads some rows only


async def test_no_faster_than_the_rate(capture: Capture) -> None:
    backfill_id = await capture.request_backfill(rate=400)
    began = anyio.current_time()
    info = await capture.all_of(backfill_id)
    assert info.read == 1000
    assert anyio.current_time() - began > 2.0  # 10 chunks of 100 rows, the first one without a delay


async def test_a_pace_is_kept_by_a_clock() -> None:
    now = 100.0
    pace = backfill.RateLimit(1000, lambda: now)
    assert (pace.chunk_rows(5000), pace.seconds_left()) == (250, 0)
    pace.count(250)
    assert pace.seconds_left() == pytest.approx(0.25)
    now += 10
    pace.count(250)  # unused rate is not made up for later
    assert pace.seconds_left() == pytest.approx(0.25)
    assert backfill.RateLimit(None, lambda: now).chunk_rows(5000) == 5000
    assert backfill.RateLimit(3, lambda: now).chunk_rows(5000) == 10


async def test_too_many_changes_at_once_have_chunks_read_again(
    capture: Capture, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture.limits = msgspec.structs.replace(chunks_of(100), max_changed_rows=50)
    capture.restart()
    writer, mark = await connect(), chunks.write_watermark

    async def changed_first(connection: Any, token: str) -> None:
        if token.endswith("-3"):  # the chunk of the rows 301 to 400
            await writer.execute("update items set name = 'newer' where id > 300")
        await mark(connection, token)

    monkeypatch.setattr(chunks, "write_watermark", changed_first)
    info = await capture.all_of(await capture.request_backfill())
    assert (info.state, info.read) == ("done", 1000)
    assert await capture.replayed() == await capture.table()


async def test_chunks_are_read_again_after_they_could_not_be_appended(small_chunks: None, capture: Capture) -> None:
    backfill_id = await capture.request_backfill()
    async with capture.working():
        await capture.until_pending(backfill.MAX_PENDING_CHUNKS)
        capture.backfiller.failed()
        info = await capture.pump_until(lambda: capture.over(backfill_id))
    assert (info.read, info.published) == (1000, 1000)
    assert [one["record"]["id"] for one in await capture.messages()] == list(range(1, 1001))
