"""Streams with `one_message_per_key`: the stream holds the newest message of each key, and
consumers receive that one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace import store
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.model.specs import ConsumerSpec, StreamSpec
from tests.conftest import Connect
from tests.support.readers import Clock, Reader
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio

STREAM = 'headrace_streams."latest"'

Compacted = Callable[..., Awaitable[Reader]]


@pytest.fixture
def compacted(database: store.Database, clock: Clock) -> Compacted:
    """Make the compacted stream `latest` and a consumer of it."""

    async def compacted(*, dedupe: bool = False, tombstones: bool = False, **settings: Any) -> Reader:
        spec = StreamSpec(name="latest", one_message_per_key=True, dedupe=dedupe, tombstones=tombstones)
        await store.create_stream(database, spec)
        consumer = ConsumerSpec(stream="latest", name="ship", **settings)
        return Reader(database, consumer, (await store.declare_consumer(database, consumer)).id, clock)

    return compacted


async def put(executor: store.Executor, **values: Any) -> int:
    return await store.publish_many(executor, "latest", list(values), [json.dumps(value) for value in values.values()])


async def test_the_newest_message_of_a_key_takes_the_place_of_the_one_before(
    database: store.Database, compacted: Compacted
) -> None:
    reader = await compacted()
    await put(database, a=1, b=1)
    await put(database, a=2)
    batch = await reader.lease()
    assert list(zip(batch.keys, batch.data, strict=True)) == [("b", "1"), ("a", "2")]
    assert await database.fetchval(f"select count(*) from {STREAM}") == 2


async def test_the_last_message_of_a_key_in_one_call_counts(database: store.Database, compacted: Compacted) -> None:
    reader = await compacted()
    assert await store.publish_many(database, "latest", ["a", "b", "a"], ["1", "2", "3"]) == 2
    batch = await reader.lease()
    assert list(zip(batch.keys, batch.data, strict=True)) == [("b", "2"), ("a", "3")]


@pytest.mark.parametrize("second", ["ann", "bob"])
async def test_while_a_message_is_in_flight_the_next_is_withheld_and_then_the_latest_comes(
    database: store.Database, compacted: Compacted, second: str
) -> None:
    reader = await compacted()
    await put(database, a=1)
    first = await reader.lease("ann")
    for value in (2, 3):
        await put(database, a=value, b=value)
        batch = await reader.lease(second)
        assert (batch.keys, batch.data) == (["b"], [str(value)])
        await reader.ack_all(batch)
    await put(database, a=4)
    assert await reader.ack_all(first) == []
    assert (await reader.lease(second)).data == ["4"]


@pytest.mark.parametrize("delay", [None, 60.0])
async def test_a_nacked_message_that_was_replaced_is_not_delivered_again(
    database: store.Database, compacted: Compacted, delay: float | None
) -> None:
    reader = await compacted()
    await put(database, a=1)
    first = await reader.lease()
    await put(database, a=2)
    await reader.nack(first, delay=delay)
    batch = await reader.lease()
    assert (batch.keys, batch.data, batch.attempts) in [(["a"], ["2"], None), (["a"], ["2"], [1])]
    await reader.ack_all(batch)
    reader.clock.advance(100)
    assert await reader.drain() == []
    assert await reader.count("parked") == 0


async def test_a_delay_is_not_the_delay_of_a_newer_message_that_was_withheld(
    database: store.Database, compacted: Compacted
) -> None:
    reader = await compacted()
    await put(database, a=1)
    first = await reader.lease("ann")
    await put(database, a=2)
    assert (await reader.lease("bob")).lease_id is None
    await reader.nack(first, delay=60.0)
    assert (await reader.lease("bob")).data == ["2"]


async def test_an_update_that_commits_late_does_not_wait_for_the_message_that_it_replaced(
    database: store.Database, compacted: Compacted, connect: Connect
) -> None:
    reader = await compacted()
    await put(database, a=1)
    first = await reader.lease()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await put(late, a=2)
    await put(database, b=1)
    await reader.nack(first, delay=60.0)
    assert (await reader.lease()).keys == ["b"]
    await transaction.commit()
    assert (await reader.lease()).data == ["2"]


async def test_after_an_expired_lease_the_latest_message_is_delivered(
    database: store.Database, compacted: Compacted
) -> None:
    reader = await compacted()
    await put(database, a=1)
    await reader.lease("ann")
    await put(database, a=2)
    reader.clock.advance(40)
    assert (await reader.lease("bob")).data == ["2"]


async def test_a_blocked_key_goes_on_with_the_latest(database: store.Database, compacted: Compacted) -> None:
    reader = await compacted(on_exhausted="block", max_deliver=1)
    await put(database, a=1)
    await reader.nack(await reader.lease())
    await put(database, a=2)
    assert (await reader.lease()).lease_id is None
    await put(database, a=3)
    assert (await reader.lease()).lease_id is None
    await reader.redrive()
    assert (await reader.lease()).data == ["3"]


async def test_only_the_newest_message_of_a_key_is_parked(database: store.Database, compacted: Compacted) -> None:
    reader = await compacted()
    await put(database, a=0)
    held = await reader.lease("ann")
    for value in range(20):
        await put(database, a=value)
        await reader.lease("bob")
    assert await reader.count("parked") <= 1
    await reader.ack_all(held)
    assert (await reader.lease("bob")).data == ["19"]


async def test_a_seek_back_delivers_the_newest_message_of_each_key_once(
    database: store.Database, compacted: Compacted
) -> None:
    reader = await compacted()
    for value in range(5):
        await put(database, a=value, b=value)
        await reader.drain()
    await reader.seek(0)
    batch = await reader.lease()
    assert dict(zip(batch.keys, batch.data, strict=True)) == {"a": "4", "b": "4"}


async def test_an_unchanged_payload_is_not_published_again(database: store.Database, compacted: Compacted) -> None:
    reader = await compacted(dedupe=True)
    assert await put(database, a=1, b=1) == 2
    seq = await store.publish(database, "latest", "a", "1")
    assert (seq, await put(database, a=1, b=2)) == (1, 1)
    assert await put(database, a=[1]) == 1
    assert (await reader.lease()).data == ["2", "[1]"]


async def test_without_dedupe_an_unchanged_payload_is_published_again(
    database: store.Database, compacted: Compacted
) -> None:
    reader = await compacted()
    await put(database, a=1)
    assert await put(database, a=1) == 1
    assert (await reader.lease()).seqs != [1]


async def test_concurrent_publishers_of_the_same_keys_neither_lose_messages_nor_deadlock(
    database: store.Database, compacted: Compacted
) -> None:
    reader = await compacted(dedupe=True)

    async def publisher(number: int) -> None:
        keys = ["a", "b", "c", "d"] if number % 2 else ["d", "c", "b", "a"]
        for value in range(25):
            await store.publish_many(database, "latest", keys, [json.dumps([number, value])] * 4)

    await asyncio.gather(*(publisher(number) for number in range(8)))
    batch = await reader.lease()
    stored = await database.fetch(f"select key, data, seq from {STREAM} order by seq")
    assert [(row["key"], row["data"], row["seq"]) for row in stored] == list(
        zip(batch.keys, batch.data, batch.seqs, strict=True)
    )
    assert sorted(batch.keys) == ["a", "b", "c", "d"]


async def test_the_publisher_that_waited_for_the_row_gets_the_later_seq(
    database: store.Database, compacted: Compacted, connect: Connect
) -> None:
    """The seq is drawn after the publisher has locked the row. Otherwise an older message would
    replace a newer one."""
    reader = await compacted()
    await put(database, a=0)
    first, second = await connect(), await connect()
    transaction = first.transaction()
    await transaction.start()
    await put(first, a=1)
    waiting = await start(put(second, a=2, b=2))
    await until_blocked(database, by=first)
    await put(database, c=1)
    await transaction.commit()
    await waiting
    rows = await database.fetch(f"select key, data from {STREAM} order by seq")
    assert [tuple(row) for row in rows] == [("c", "1"), ("a", "2"), ("b", "2")]
    assert len(await reader.drain()) == 3


async def test_an_update_that_commits_late_is_delivered(
    database: store.Database, compacted: Compacted, connect: Connect
) -> None:
    reader = await compacted()
    await put(database, a=1, b=1)
    await reader.drain()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await put(late, a=2)
    await put(database, b=2)
    assert (await reader.lease()).data == ["2"]
    await transaction.commit()
    assert (await reader.lease()).keys == ["a"]


async def test_a_history_of_many_updates_leaves_no_holes_behind(database: store.Database, compacted: Compacted) -> None:
    reader = await compacted()
    for value in range(30):
        await put(database, **{f"k{key}": value for key in range(0, 30, 1 + value % 7)})
    await reader.drain(limit=3)
    assert list((await reader.cursor())["holes"]) == []


async def test_a_null_is_an_ordinary_payload_unless_the_stream_has_tombstones(
    database: store.Database, compacted: Compacted
) -> None:
    reader = await compacted()
    await put(database, a=None)
    assert (await reader.lease()).data == ["null"]


@pytest.mark.parametrize("setting", ["dedupe", "tombstones"])
async def test_settings_that_compare_with_the_previous_message_need_a_compacted_stream(setting: str) -> None:
    with pytest.raises(ConfigurationError, match="one_message_per_key"):
        StreamSpec(name="a", **{setting: True})  # type: ignore[arg-type]


async def test_a_stream_can_not_become_compacted(database: store.Database) -> None:
    await store.create_stream(database, "plain")
    with pytest.raises(InvalidInput, match="create another stream"):
        await store.edit_stream(database, StreamSpec(name="plain", one_message_per_key=True))
