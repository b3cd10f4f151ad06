"""Retention by interest: a message goes once every consumer is done with it."""

from __future__ import annotations

import pytest

from headrace.model.errors import StreamFull
from headrace.model.specs import Backoff
from tests.conftest import Connect
from tests.support.readers import publish
from tests.support.retained import HOUR, Stream

pytestmark = pytest.mark.asyncio


async def test_by_interest_a_segment_goes_once_every_consumer_is_done_with_it(stream: Stream) -> None:
    await stream.create(retention="interest")
    await stream.fill(35)
    assert (await stream.sweep()).segments_dropped == 0, "nobody reads it yet"
    one, other = await stream.consumer("one"), await stream.consumer("other")
    await one.drain()
    assert (await stream.sweep()).segments_dropped == 0
    await other.drain(limit=15, calls=1)
    assert (await stream.sweep()).segments_dropped == 1
    await other.drain()
    swept = await stream.sweep(1000 * HOUR)
    assert (swept.segments_dropped, swept.messages_trimmed, swept.missed) == (2, 0, 0)
    assert await stream.seqs() == [31, 32, 33, 34, 35]
    assert await stream.gap(one) is await stream.gap(other) is None


@pytest.mark.parametrize("way", ["lease", "nack", "block", "replay"])
async def test_by_interest_a_message_that_is_not_done_keeps_its_segment(stream: Stream, way: str) -> None:
    await stream.create(retention="interest")
    await stream.fill(35)
    reader = await stream.consumer(
        max_deliver=1 if way == "block" else 10, on_exhausted="block", backoff=Backoff(delays=(HOUR,))
    )
    first = await reader.lease(limit=15)
    if way == "nack":
        await reader.nack(first, 12, delay=HOUR)
    elif way == "block":
        await reader.nack(first, 12)
    if way != "lease":
        await reader.ack_all(first)
    await reader.drain()
    if way == "replay":
        await stream.database.fetch(
            "insert into headrace_internal.replays values ($1, 12, hashtextextended('k.1', 0))", reader.id
        )
        await stream.database.fetch(
            "update headrace_internal.cursors set replay_floor = 12 where consumer_id = $1", reader.id
        )
    swept = await stream.sweep(1000 * HOUR)
    assert swept.missed == 0
    assert (await stream.seqs())[0] == (1 if way == "lease" else 11)
    if way == "lease":
        await reader.ack_all(first)
    elif way == "block":
        assert await reader.discard() == 1
        await reader.drain()
    else:
        reader.clock.advance(2 * HOUR)
        assert (await reader.drain())[0] == 12
    await stream.sweep()
    assert (await stream.seqs())[0] == 31


async def test_by_interest_late_commits_are_waited_for(stream: Stream, connect: Connect) -> None:
    await stream.create(retention="interest")
    reader = await stream.consumer()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late")
    await stream.fill(35)
    assert len(await reader.drain()) == 35
    assert (await stream.sweep()).busy == ["orders"]
    await transaction.commit()
    assert (await stream.sweep()).segments_dropped == 0, "it is there now, and not yet delivered"
    assert await reader.drain() == [1]
    assert (await stream.sweep()).segments_dropped == 3


async def test_by_interest_rolled_back_numbers_keep_nothing(stream: Stream) -> None:
    await stream.create(retention="interest")
    reader = await stream.consumer()
    await stream.fill(15)
    await stream.database.fetch("select nextval('headrace_streams.\"orders.seq\"') from generate_series(1, 20)")
    await reader.drain()
    await stream.sweep()
    assert await stream.seqs() == []
    await stream.fill(2)
    assert await reader.drain() == [36, 37]
    assert await stream.gap(reader) is None


async def test_by_interest_size_removes_nothing_that_is_needed_and_publishing_is_refused(stream: Stream) -> None:
    await stream.create(retention="interest", max_storage=1_000_000)
    reader = await stream.consumer()
    await stream.fill(105, size=20_000)
    swept = await stream.sweep()
    assert (swept.segments_dropped, swept.full) == (0, ["orders"])
    with pytest.raises(StreamFull):
        await stream.fill(1)
    assert len(await reader.drain()) == 105
    swept = await stream.sweep()
    assert (swept.segments_dropped, swept.missed, swept.full) == (10, 0, [])
    await stream.fill(1)


async def test_by_interest_settled_messages_may_be_kept_for_a_while(stream: Stream) -> None:
    await stream.create(retention="interest", retain_at_least=HOUR)
    reader = await stream.consumer()
    await stream.fill(35)
    await reader.drain()
    assert (await stream.sweep()).segments_dropped == 0
    assert (await stream.sweep(2 * HOUR)).segments_dropped == 3
