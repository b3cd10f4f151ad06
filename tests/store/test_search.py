"""A search goes through a stream in bounded steps, misses nothing, and finds nothing twice."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace import store
from headrace.model import conditions
from headrace.model.errors import UnknownStream
from headrace.model.specs import StreamSpec
from headrace.model.watching.operations import SearchStep
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio

BIG = 10**9


async def _all(
    database: store.Database, *, upwards: bool = False, **options: Any
) -> tuple[list[int], list[SearchStep]]:
    """Search to the end. Returns the seqs that were found, and the steps."""
    found: list[int] = []
    steps: list[SearchStep] = []
    place = {"after": 0} if upwards else {}
    bounds = {name: options.pop(name) for name in ("limit", "examine", "seconds") if name in options}
    while True:
        step = await store.search(database, "orders", store.Search(**place, **options), **bounds)
        found += [message.seq for message in step.messages]
        steps.append(step)
        if not step.more:
            return found, steps
        place = {"after": step.position} if upwards else {"before": step.position}


async def _stream(database: store.Database, messages: int = 30) -> None:
    await store.create_stream(database, "orders")
    await publish(database, *(f"k.{n % 3}" for n in range(messages)))


async def test_steps_of_any_size_find_each_message_once_in_both_directions(database: store.Database) -> None:
    await _stream(database)
    await database.fetch("delete from headrace_streams.orders where seq in (1, 7, 8, 20, 30)")
    wanted = [seq for seq in range(1, 31) if seq not in (1, 7, 8, 20, 30) and seq % 3 == 1]
    for examine in (1, 4, 100):
        for limit in (1, 2, 100):
            found, steps = await _all(database, filters=["k.0"], examine=examine, limit=limit)
            assert found == wanted[::-1], (examine, limit)
            assert sum(step.examined for step in steps) == 25
            assert all(step.remaining for step in steps[:-1])
            assert steps[-1].remaining == 0
            found, steps = await _all(database, filters=["k.0"], examine=examine, limit=limit, upwards=True)
            assert found == wanted, (examine, limit)
            assert sum(step.examined for step in steps) == 25


async def test_a_search_by_condition_has_the_whole_messages(database: store.Database) -> None:
    await _stream(database)
    step = await store.search(database, "orders", store.Search(where=conditions.parse("data.n >= 28")), limit=10)
    assert [(one.seq, one.key, one.data) for one in step.messages] == [(30, "k.2", {"n": 29}), (29, "k.1", {"n": 28})]
    assert (step.examined, step.more, step.remaining) == (30, False, 0)


async def test_bounds_are_excluded_and_times_are_from_since_to_before_until(database: store.Database) -> None:
    await _stream(database, 10)
    step = await store.search(database, "orders", store.Search(before=5))
    assert [message.seq for message in step.messages] == [4, 3, 2, 1]
    step = await store.search(database, "orders", store.Search(after=5, before=9))
    assert [message.seq for message in step.messages] == [6, 7, 8]
    await database.fetch(
        "update headrace_streams.orders set created_at = '2030-01-01'::timestamptz + seq * interval '1 hour'"
    )
    at = (await store.search(database, "orders", limit=1)).messages[0].created_at - timedelta(hours=10)
    found, _ = await _all(database, since=at + timedelta(hours=3), until=at + timedelta(hours=6))
    assert found == [5, 4, 3]


async def test_an_empty_stream_and_an_empty_range_have_nothing_more(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    for place in ({}, {"before": 0}, {"before": 1}, {"after": 0}, {"after": 2**62}, {"after": 5, "before": 3}):
        step = await store.search(database, "orders", store.Search(**place))
        assert (step.messages, step.examined, step.more, step.remaining) == ([], 0, False, 0), place
    await publish(database, "a")
    for place in ({"before": 1}, {"after": 1}, {"before": 0}):
        assert not (await store.search(database, "orders", store.Search(**place))).more


async def test_a_step_ends_at_its_time_after_at_least_one_message(database: store.Database) -> None:
    await _stream(database, 20)
    found, steps = await _all(database, filters=["k.0"], seconds=0.0)
    assert found == list(range(19, 0, -3))
    assert [step.examined for step in steps] == [1] * 20
    found, _ = await _all(database, filters=["k.0"], seconds=0.0, upwards=True)
    assert found == list(range(1, 20, 3))


async def test_a_step_jumps_over_seqs_that_have_no_messages(database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="orders", one_message_per_key=True))
    await publish(database, "a")
    await database.fetchval(
        "select setval(sequence::regclass, $1) from headrace_internal.streams where name = 'orders'", BIG
    )
    await publish(database, "b")
    for upwards in (False, True):
        found, steps = await _all(database, upwards=upwards, examine=10)
        assert sorted(found) == [1, BIG + 1]
        assert len(steps) == 2


async def test_pages_end_at_their_size(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await publish(database, *("a" for _ in range(10)), text="x" * 1000)
    step = await store.search(database, "orders", contents=store.Contents(max_bytes=2500))
    assert [message.seq for message in step.messages] == [10, 9, 8]
    assert (step.position, step.more, step.remaining) == (8, True, 7)


async def test_a_condition_that_fails_on_some_messages_passes_them(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await store.publish(database, "orders", "a", '"text"')
    await store.publish(database, "orders", "a", '{"n": 1}')
    found, _ = await _all(database, where=conditions.parse("data.n = 1"))
    assert found == [2]


async def test_an_unknown_stream_is_reported(database: store.Database) -> None:
    with pytest.raises(UnknownStream):
        await store.search(database, "nothing")
