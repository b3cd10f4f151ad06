"""The preview of a seek says what the seek then does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace import store
from headrace.model import conditions
from headrace.model.errors import InvalidInput, UnknownConsumer
from tests.conftest import Connect, Declare
from tests.support.readers import Reader, publish

pytestmark = pytest.mark.asyncio


async def _preview(reader: Reader, **place: Any) -> tuple[int, int, int, int, int]:
    found = await store.seek_preview(reader.executor, reader.id, now=reader.clock.now, **place)
    assert found.again_exact
    assert found.skipped_exact
    return found.before, found.after, found.again, found.skipped, found.in_flight


async def test_going_back_delivers_again_what_matches(declare: Declare) -> None:
    reader = await declare(where=conditions.parse("data.n >= 2"))
    await publish(reader.executor, *"abcdefgh")
    await reader.drain()
    assert await _preview(reader, seq=0) == (8, 0, 6, 0, 0)
    assert await _preview(reader, seq=5) == (8, 4, 4, 0, 0)
    await reader.seek(4)
    assert len(await reader.drain()) == 4


async def test_going_forward_passes_over_what_waits(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a", "b", "a", "c", "d", "e")
    await reader.nack(await reader.lease(limit=1), delay=60.0)
    await reader.lease(limit=1)
    # 1 is parked, 2 is in flight, 3 is behind 1, and the others are new.
    await reader.lease("bob", limit=1)
    before = (await reader.cursor())["position"]
    assert await _preview(reader, seq=6) == (before, 5, 0, 2 + 5 - before, 2)
    assert await _preview(reader) == (before, 6, 0, 2 + 6 - before, 2)


async def test_a_message_parked_above_the_new_position_comes_again(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a", "b", "c")
    await reader.nack(await reader.lease(), 3, delay=60.0)
    assert await _preview(reader, seq=2) == (3, 1, 3, 0, 2)  # the lease of 1 and 2 ends


async def test_the_preview_of_a_time_is_that_of_its_first_message(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, *"abcd")
    await reader.drain()
    await reader.executor.fetch(
        "update headrace_streams.orders set created_at = $1::timestamptz + seq * interval '1 hour'", reader.clock.now
    )
    start = reader.clock.now
    reader.clock.advance(86400)
    assert await _preview(reader, time=start + timedelta(hours=3)) == (4, 2, 2, 0, 0)
    assert await _preview(reader, time=start + timedelta(hours=9)) == (4, 4, 0, 0, 0)


async def test_places_are_refused_as_the_seek_refuses_them(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    for place in ({"seq": 2}, {"time": reader.clock.now + timedelta(seconds=1)}):
        with pytest.raises(InvalidInput) as preview:
            await store.seek_preview(reader.executor, reader.id, now=reader.clock.now, **place)
        with pytest.raises(InvalidInput) as seek:
            await store.seek_to(reader.executor, reader.id, now=reader.clock.now, **place)
        assert str(preview.value) == str(seek.value)
    with pytest.raises(UnknownConsumer):
        await store.seek_preview(reader.executor, 99, seq=0)


async def test_an_empty_stream_has_nothing_to_preview(declare: Declare) -> None:
    reader = await declare()
    assert await _preview(reader, seq=0) == (0, 0, 0, 0, 0)
    assert await _preview(reader) == (0, 0, 0, 0, 0)


async def test_many_messages_are_estimated_from_those_examined(declare: Declare) -> None:
    reader = await declare(filters=("a",))
    await publish(reader.executor, *("a" if n % 2 else "b" for n in range(1000)))
    await reader.drain()
    found = await store.seek_preview(reader.executor, reader.id, seq=0, examine=100)
    assert (found.again, found.again_exact) == (500, False)
    found = await store.seek_preview(reader.executor, reader.id, seq=901, examine=100)
    assert (found.again, found.again_exact) == (50, True)


async def test_a_message_in_a_hole_does_not_come_again_and_nothing_changes(declare: Declare, connect: Connect) -> None:
    reader = await declare()
    slow: Any = await connect()
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute("select headrace.publish('orders', 'late', '1')")
    await publish(reader.executor, "b")
    await reader.ack_all(await reader.lease())
    await transaction.commit()
    cursor = await reader.cursor()
    assert await _preview(reader, seq=0) == (2, 0, 1, 0, 0)
    assert await reader.cursor() == cursor


async def test_a_move_forward_passes_over_open_transactions_and_says_about_how_much(
    declare: Declare, connect: Connect
) -> None:
    """How many of them will commit is unknown. A move to the end passes over none."""
    reader = await declare()
    slow: Any = await connect()
    transaction = slow.transaction()
    await transaction.start()
    await publish(slow, "late", "late")
    await publish(reader.executor, *"ab")
    await reader.ack_all(await reader.lease())  # above two holes
    await publish(slow, "late")
    await publish(reader.executor, *"cd")
    found = await store.seek_preview(reader.executor, reader.id, seq=7, now=reader.clock.now)
    assert (found.before, found.after, found.skipped, found.skipped_exact) == (4, 6, 1 + 3, False)
    assert await _preview(reader) == (4, 7, 0, 2, 0)
    await transaction.commit()
    assert await _preview(reader, seq=7) == (4, 6, 0, 1 + 3, 0)
