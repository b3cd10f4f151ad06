"""Scheduled messages are listed in the order in which they are due, and cancelled before they are published."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headrace import store
from headrace.model.errors import UnknownStream
from headrace.model.messages.publish_options import PublishOptions
from headrace.runtime.maintenance.scheduler import Scheduler
from tests.store.test_scheduled import published, schedule
from tests.support.retained import HOUR, Stream
from tests.support.waiting import until_blocked

pytestmark = pytest.mark.asyncio


async def _keys(stream: Stream) -> list[str]:
    return [one.key for one in await store.scheduled_messages(stream.database, "orders")]


async def test_scheduled_messages_are_listed_in_pages_in_the_order_in_which_they_are_due(stream: Stream) -> None:
    await stream.create()
    await schedule(stream, 30, "d", "e")
    await schedule(stream, 10, "a", "b", "c")
    whole = await store.scheduled_messages(stream.database, "orders")
    assert [one.key for one in whole] == ["a", "b", "c", "d", "e"]
    assert whole[0].data == "a 10"
    assert whole[0].deliver_at == stream.now + timedelta(hours=1, seconds=10)
    first = await store.scheduled_messages(stream.database, "orders", limit=2)
    assert first.more
    after = await store.scheduled_messages(stream.database, "orders", limit=2, after=first[-1].place)
    before = await store.scheduled_messages(stream.database, "orders", limit=2, before=after[-1].place)
    assert ["".join(one.key for one in page) for page in (first, after, before)] == ["ab", "cd", "bc"]


async def test_a_page_of_scheduled_messages_ends_with_its_size(stream: Stream) -> None:
    await stream.create()
    await schedule(stream, 10, *"abcd")
    page = await store.scheduled_messages(stream.database, "orders", contents=store.Contents(max_bytes=10))
    assert ([one.key for one in page], page.more) == (["a", "b"], True)


async def test_a_cancelled_message_is_never_published_and_no_other_is_lost(stream: Stream) -> None:
    await stream.create()
    await schedule(stream, 10, *"abcd")
    ids = {one.key: one.id for one in await store.scheduled_messages(stream.database, "orders")}
    assert await store.unschedule(stream.database, "orders", [ids["b"], ids["d"], 2**62]) == 2
    assert await store.unschedule(stream.database, "orders", [ids["b"]]) == 0
    assert await _keys(stream) == ["a", "c"]
    await Scheduler(stream.database).deliver(stream.now + timedelta(hours=2))
    assert await published(stream) == ["a 10", "c 10"]


async def test_messages_of_another_stream_are_not_cancelled(stream: Stream) -> None:
    await stream.create()
    await schedule(stream, 10, "a")
    await stream.database.fetch("select headrace.create_stream('others')")
    ids = [one.id for one in await store.scheduled_messages(stream.database, "orders")]
    assert await store.unschedule(stream.database, "others", ids) == 0
    assert await store.unschedule(stream.database, "others", None) == 0
    assert await _keys(stream) == ["a"]
    for call in (store.unschedule(stream.database, "nope", None), store.scheduled_messages(stream.database, "nope")):
        with pytest.raises(UnknownStream):
            await call


async def test_a_unique_key_is_free_once_its_scheduled_message_is_cancelled(stream: Stream) -> None:
    await stream.create()
    later = PublishOptions(unique_key="u", deliver_at=stream.now + timedelta(days=1))
    at_once = PublishOptions(unique_key="u")
    await store.publish(stream.database, "orders", "a", "1", options=later)
    assert await store.publish(stream.database, "orders", "a", "2", options=at_once) is None
    assert await store.unschedule(stream.database, "orders", None) == 1
    assert await store.publish(stream.database, "orders", "a", "3", options=at_once) == 1


async def test_a_message_that_is_being_published_is_published_or_cancelled_and_not_both(stream: Stream) -> None:
    await stream.create()
    await schedule(stream, 0, *["a"] * 500)
    ids = [one.id for one in await store.scheduled_messages(stream.database, "orders", limit=1000)]
    async with stream.database.transaction() as connection:
        stream_id = await connection.fetchval("select id from headrace_internal.streams where name = 'orders'")
        await store.publish_scheduled(connection, stream_id, None, now=stream.now + timedelta(seconds=HOUR))
        cancelling = asyncio.create_task(store.unschedule(stream.database, "orders", ids))
        await until_blocked(stream.database, connection, statement="unschedule")
    assert await cancelling == 0
    assert len(await published(stream)) == 500
