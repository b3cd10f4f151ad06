"""Segments are made ahead of the sequence, as wide as a stream needs them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.conftest import Connect
from tests.support.readers import publish
from tests.support.retained import HOUR, Stream

pytestmark = pytest.mark.asyncio


async def test_segments_are_made_ahead_of_the_sequence_and_nothing_that_it_has_reached_is_touched(
    stream: Stream,
) -> None:
    await stream.create(width=100, count=2)
    await stream.fill(150)
    before = await stream.segments()
    swept = await stream.sweep()
    assert swept.segments_made > 0
    after = await stream.segments()
    assert after[:2] == before[:2] == [(1, 101), (101, 201)]
    assert after[-1][1] is None
    assert all(one[1] == other[0] for one, other in pairwise(after)), "no gap between them"
    assert (await stream.sweep()).segments_made == 0
    await stream.fill(3000)
    assert len(await stream.seqs()) == 3150


async def test_without_a_janitor_for_a_day_nothing_fails_and_then_all_is_well_again(stream: Stream) -> None:
    await stream.create(width=10, count=1, retain_up_to=HOUR)
    reader = await stream.consumer()
    await stream.fill(3000)
    assert await stream.database.fetchval('select count(*) from headrace_streams."orders.2741"') == 260
    swept = await stream.sweep()
    assert swept.segments_made > 0
    assert (2741, 3001) in await stream.segments()
    assert await reader.drain() == list(range(1, 3001))
    await stream.fill(50)
    assert await reader.drain() == list(range(3001, 3051))
    await stream.sweep(2 * HOUR)
    assert await stream.seqs() == []
    assert (await stream.segments())[0][0] == 3001


async def test_the_width_of_segments_follows_the_size_of_messages(stream: Stream) -> None:
    await stream.create(width=1000, count=1, max_storage=160_000_000)
    await stream.fill(1000, size=2000)
    await stream.sweep(1000)
    assert (await stream.segments())[1] == (1001, 2001)
    lower, upper = (await stream.segments())[2]
    assert upper is not None
    assert 3_000 < upper - lower < 5_000


async def test_the_width_of_segments_follows_the_rate_of_messages(stream: Stream) -> None:
    await stream.create(width=1000, count=1, retain_up_to=8_000)
    await stream.fill(1000)
    await stream.sweep(100)  # ten messages a second, over five hundred seconds
    assert (await stream.segments())[1] == (1001, 2001)
    lower, upper = (await stream.segments())[2]
    assert upper is not None
    assert 4_000 < upper - lower < 6_000


async def test_an_open_segment_that_is_too_large_is_closed_early(stream: Stream) -> None:
    await stream.create(width=1000, count=3, max_storage=1_000_000)
    reader = await stream.consumer()
    await stream.fill(60, size=20_000)
    swept = await stream.sweep()
    assert swept.numbers_drawn == 940
    await stream.fill(10, size=20_000)
    assert (await stream.sweep()).segments_dropped == 1
    assert await stream.seqs() == list(range(1001, 1011))
    assert await stream.gap(reader) == (60, 1, 61)
    assert await reader.drain() == list(range(1001, 1011))


async def test_an_open_publisher_continues_while_segments_are_replaced(stream: Stream, connect: Connect) -> None:
    await stream.create(width=100, count=1)
    await stream.fill(100)
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late")
    assert (await stream.sweep()).busy == ["orders"]
    await transaction.commit()
    await stream.sweep()
    await stream.fill(100)
    assert await stream.seqs() == list(range(1, 202))
