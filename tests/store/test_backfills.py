"""Backfills in the store: queueing, progress, cancelling and failing."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
import pytest_asyncio

from headrace import store
from headrace.model.errors import LeaseLost
from headrace.store.capture.captures import CaptureBatch, ChunkDone

pytestmark = pytest.mark.asyncio

TABLE = "public.orders"


class Source:
    def __init__(self, id_: str, number: int, epoch: int) -> None:
        self.id = id_
        self.number = number
        self.epoch = epoch


@pytest_asyncio.fixture
async def source(database: store.Database) -> Source:
    """A source with a capture lease."""
    await store.create_stream(database, "orders")
    await store.create_source(database, "orders", "postgres", "orders", {"tables": [TABLE]})
    [todo] = await store.captures_to_do(database)
    epoch = await store.take_capture(database, todo.number, uuid4(), 3600)
    assert epoch is not None
    return Source(todo.id, todo.number, epoch)


def chunk(id_: int, place: int | None, read: int = 10, *, published: int = 10, done: bool = False) -> ChunkDone:
    return ChunkDone(
        id=id_, place=None if place is None else [["id", 23, str(place)]], read=read, published=published, done=done
    )


async def append(database: store.Database, source: Source, *chunks: ChunkDone) -> None:
    await store.append_captured(database, source.number, source.epoch, "orders", CaptureBatch(chunks=list(chunks)))


async def running(database: store.Database, source: Source) -> int:
    """Start a backfill and return its number."""
    await store.start_backfill(database, source.id, TABLE)
    todo = await store.next_backfill(database, source.number)
    assert todo is not None
    assert await store.begin_backfill(database, source.number, source.epoch, todo.number, 100)
    return todo.number


async def test_a_table_has_one_backfill_at_a_time(database: store.Database, source: Source) -> None:
    asked = await store.start_backfill(database, source.id, TABLE)
    assert asked is not None
    assert await store.start_backfill(database, source.id, TABLE) is None
    assert await store.start_backfill(database, source.id, "public.others") is not None
    assert await store.cancel_backfills(database, source.id, asked) == 1
    assert await store.start_backfill(database, source.id, TABLE) is not None


async def test_the_next_backfill_is_the_one_that_was_requested(database: store.Database, source: Source) -> None:
    where = {"field": "data.record.total", "op": ">", "value": 5}
    await store.start_backfill(database, source.id, TABLE, json.dumps(where), 500)
    todo = await store.next_backfill(database, source.number)
    assert todo is not None
    assert (todo.table, todo.where, todo.rate, todo.fresh, todo.place, todo.read) == (TABLE, where, 500, True, None, 0)


async def test_a_running_backfill_comes_before_one_that_waits_longer(database: store.Database, source: Source) -> None:
    await store.start_backfill(database, source.id, "public.first")
    await store.start_backfill(database, source.id, "public.second")
    first = await store.next_backfill(database, source.number)
    assert first is not None
    assert first.table == "public.first"
    second = await database.fetchval("select id from headrace_internal.backfills where relation = 'public.second'")
    assert await store.begin_backfill(database, source.number, source.epoch, second, None)
    todo = await store.next_backfill(database, source.number)
    assert todo is not None
    assert (todo.table, todo.fresh) == ("public.second", False)


async def test_the_position_advances_with_each_appended_chunk(database: store.Database, source: Source) -> None:
    number = await running(database, source)
    await append(database, source, chunk(number, 10), chunk(number, 20, published=7))
    todo = await store.next_backfill(database, source.number)
    assert todo is not None
    assert (todo.place, todo.read, todo.total) == ([["id", 23, "20"]], 20, 100)
    [info] = await store.backfills(database, source.id)
    assert (info.state, info.read, info.published, info.share) == ("running", 20, 17, 0.2)


async def test_the_last_chunk_ends_a_backfill_and_its_position_stays(database: store.Database, source: Source) -> None:
    number = await running(database, source)
    await append(database, source, chunk(number, 10), chunk(number, None, 0, published=0, done=True))
    [info] = await store.backfills(database, source.id)
    assert (info.state, info.read) == ("done", 10)
    assert info.finished_at is not None
    assert await database.fetchval("select place ->> 0 from headrace_internal.backfills") == '["id",23,"10"]'
    assert await store.next_backfill(database, source.number) is None


async def test_a_refused_chunk_does_not_advance_the_position(database: store.Database, source: Source) -> None:
    number = await running(database, source)
    with pytest.raises(LeaseLost):
        await append(database, Source(source.id, source.number, source.epoch - 1), chunk(number, 10))
    [info] = await store.backfills(database, source.id)
    assert info.read == 0


async def test_a_process_that_lost_the_capture_lease_begins_no_backfill(
    database: store.Database, source: Source
) -> None:
    await store.start_backfill(database, source.id, TABLE)
    todo = await store.next_backfill(database, source.number)
    assert todo is not None
    with pytest.raises(LeaseLost):
        await store.begin_backfill(database, source.number, source.epoch - 1, todo.number, 100)


async def test_a_cancelled_backfill_is_not_continued_and_a_late_chunk_only_counts_as_read(
    database: store.Database, source: Source
) -> None:
    number = await running(database, source)
    assert await store.backfill_wanted(database, number)
    assert await store.cancel_backfills(database, source.id) == 1
    assert not await store.backfill_wanted(database, number)
    assert not await store.begin_backfill(database, source.number, source.epoch, number, 100)
    await append(database, source, chunk(number, 10, done=True))
    [info] = await store.backfills(database, source.id)
    assert (info.state, info.read) == ("cancelled", 10)
    assert await store.cancel_backfills(database, source.id) == 0


async def test_a_failed_backfill_reports_its_error_and_has_ended(database: store.Database, source: Source) -> None:
    number = await running(database, source)
    with pytest.raises(LeaseLost):
        await store.fail_backfill(database, source.number, source.epoch - 1, number, "an older process's reason")
    for reason in ("the table was dropped", "something else"):
        await store.fail_backfill(database, source.number, source.epoch, number, reason)
    [info] = await store.backfills(database, source.id)
    assert (info.state, info.reason) == ("failed", "the table was dropped")
    assert not await store.backfill_wanted(database, number)


async def test_deleting_a_source_deletes_its_backfills(database: store.Database, source: Source) -> None:
    number = await running(database, source)
    await store.delete_source(database, source.id)
    assert not await store.backfill_wanted(database, number)
    assert await store.backfills(database) == []
