"""A call waits for the requests that are expected to join it, for no longer than the last call took."""

from __future__ import annotations

import asyncio

import pytest

from headrace.server.data_plane.gathering import FEW, LONGEST, Gathering

pytestmark = pytest.mark.asyncio


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def after_a_call(count: int, seconds: float) -> Gathering:
    clock = Clock()
    gathering = Gathering(clock)
    with gathering.call(range(count)):
        clock.now += seconds
    return gathering


async def is_waiting(waiting: asyncio.Task[None]) -> bool:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return not waiting.done()


@pytest.mark.parametrize("count", [0, 1, FEW - 1])
async def test_few_requests_never_wait_for_others(count: int) -> None:
    waiting = asyncio.create_task(after_a_call(count, 10.0).gather([]))
    assert not await is_waiting(waiting)


async def test_the_first_call_waits_for_nothing() -> None:
    waiting = asyncio.create_task(Gathering().gather([1]))
    assert not await is_waiting(waiting)


async def test_a_call_begins_once_as_many_requests_as_before_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.server.data_plane.gathering.LONGEST", 3600.0)
    gathering, queue = after_a_call(FEW, 3600.0), [1]
    waiting = asyncio.create_task(gathering.gather(queue))
    assert await is_waiting(waiting)
    while len(queue) < FEW - 1:
        queue.append(1)
        gathering.joined(queue)
        assert await is_waiting(waiting)
    assert not await is_waiting(asyncio.create_task(gathering.gather(queue)))  # one waits at a time
    queue.append(1)
    gathering.joined(queue)
    assert not await is_waiting(waiting)
    assert not await is_waiting(asyncio.create_task(gathering.gather(queue)))


@pytest.mark.parametrize(("took", "longest"), [(LONGEST / 10, LONGEST / 10), (10.0, LONGEST)])
async def test_the_wait_is_bounded_by_the_last_call_and_by_a_millisecond(took: float, longest: float) -> None:
    gathering = after_a_call(100, took)
    assert gathering.limit == pytest.approx(longest)
    await asyncio.wait_for(gathering.gather([1]), 10)


async def test_a_cancelled_wait_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.server.data_plane.gathering.LONGEST", 3600.0)
    gathering = after_a_call(FEW, 3600.0)
    waiting = asyncio.create_task(gathering.gather([1]))
    assert await is_waiting(waiting)
    waiting.cancel()
    await asyncio.wait([waiting])
    gathering.joined([1] * FEW)
    assert await is_waiting(asyncio.create_task(gathering.gather([1])))
