"""Retention: a stream keeps the messages that its limits of age and size require."""

from __future__ import annotations

import pytest

from headrace import store
from headrace.model.errors import StreamFull
from tests.support.retained import HOUR, Stream, size

pytestmark = pytest.mark.asyncio


async def test_a_stream_without_limits_keeps_everything(stream: Stream) -> None:
    await stream.create()
    await stream.fill(55)
    assert (await stream.sweep(1000 * HOUR)).segments_dropped == 0
    assert await stream.seqs() == list(range(1, 56))


async def test_by_age_whole_segments_are_dropped_and_the_open_one_is_trimmed(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.fill(55)
    assert not (await stream.sweep()).segments_dropped
    await stream.age(2 * HOUR, below=36)
    assert (await stream.sweep()).segments_dropped == 3
    assert await stream.seqs() == list(range(31, 56)), "a segment goes when its newest message is too old"
    swept = await stream.sweep(2 * HOUR)
    assert (swept.segments_dropped, swept.messages_trimmed) == (2, 5)
    assert await stream.seqs() == []
    await stream.fill(1)
    assert await stream.seqs() == [56]


async def test_the_last_open_segment_is_trimmed_only_up_to_the_first_that_is_young(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.fill(8)
    await stream.age(2 * HOUR, below=4)
    assert (await stream.sweep()).messages_trimmed == 3
    assert await stream.seqs() == [4, 5, 6, 7, 8]


async def test_by_size_the_oldest_segments_are_dropped_until_the_rest_fits(stream: Stream) -> None:
    await stream.create(max_storage=1_000_000)
    await stream.fill(105, size=20_000)
    assert (await size(stream)) > 2_000_000
    swept = await stream.sweep()
    left = await stream.seqs()
    assert left == list(range(left[0], 106))
    assert left[0] % 10 == 1
    assert await size(stream) <= 1_000_000
    assert swept.segments_dropped == (left[0] - 1) / 10
    assert len(left) >= 25, "no more went than had to"


async def test_age_and_size_limits_both_apply(stream: Stream) -> None:
    await stream.create(max_storage=1_000_000, retain_up_to=HOUR)
    await stream.fill(105, size=10_000)
    await stream.age(2 * HOUR, below=81)
    assert (await stream.sweep()).segments_dropped == 8
    assert await stream.seqs() == list(range(81, 106))


async def test_young_messages_stay_whatever_the_size_and_publishing_is_refused_until_they_are_old(
    stream: Stream,
) -> None:
    await stream.create(max_storage=1_000_000, retain_at_least=HOUR)
    await stream.fill(105, size=20_000)
    swept = await stream.sweep()
    assert (swept.segments_dropped, swept.full) == (0, ["orders"])
    with pytest.raises(StreamFull, match="max_storage"):
        await stream.fill(1)
    with pytest.raises(StreamFull):
        await store.publish(stream.database, "orders", "a", "1")
    swept = await stream.sweep(2 * HOUR)
    assert swept.segments_dropped > 0
    assert swept.full == []
    await stream.fill(1)
    assert (await stream.seqs())[-1] == 106


async def test_the_refusal_of_publishing_ends_unless_it_is_renewed(stream: Stream) -> None:
    await stream.create(max_storage=1_000_000, retain_at_least=HOUR)
    await stream.fill(105, size=20_000)
    await stream.sweep(-3600)  # the mark was set an hour ago
    await stream.fill(1)


async def test_the_refusal_of_publishing_is_renewed_only_when_it_is_about_to_end(stream: Stream) -> None:
    await stream.create(max_storage=1_000_000, retain_at_least=HOUR)
    await stream.fill(105, size=20_000)
    until = []
    for second in range(0, 12, 2):
        await stream.sweep(second)
        until.append(await stream.database.fetchval("select full_until from headrace_internal.streams"))
    assert [(time - stream.now).total_seconds() for time in dict.fromkeys(until)] == [15, 21]


async def test_a_larger_max_storage_lets_publishing_go_on(stream: Stream) -> None:
    await stream.create(max_storage=1_000_000, retain_at_least=HOUR)
    await stream.fill(105, size=20_000)
    await stream.sweep()
    await stream.edit(max_storage=100_000_000, retain_at_least=HOUR)
    await stream.fill(1)
    assert (await stream.sweep()).full == []


async def test_at_least_wins_over_at_most(stream: Stream) -> None:
    """Specs can't have both, but SQL can."""
    await stream.create(retain_up_to=HOUR)
    await stream.database.fetch("update headrace_internal.streams set retain_at_least = '1 day'")
    await stream.fill(55)
    swept = await stream.sweep(2 * HOUR)
    assert (swept.segments_dropped, swept.messages_trimmed) == (0, 0)
    await stream.sweep(25 * HOUR)
    assert await stream.seqs() == []


async def test_a_segment_is_dropped_after_all_its_publishers_rolled_back(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.database.fetch("select nextval('headrace_streams.\"orders.seq\"') from generate_series(1, 20)")
    await stream.fill(1)
    assert (await stream.sweep()).segments_dropped == 2
    assert await stream.seqs() == [21]
