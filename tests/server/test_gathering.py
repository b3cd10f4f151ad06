"""A call waits for the requests that are expected to join it, for no longer than the last call took."""

from __future__ import annotations

import asyncio

import pytest

from headrace.server.data_plane import gathering as module
from headrace.server.data_plane.gathering import FEW, LONGEST, RECENT, Gathering
from headrace.server.engine import Engine
from tests.server.conftest import Consume

pytestmark = pytest.mark.asyncio


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def after_a_call(count: int, seconds: float, clock: Clock | None = None) -> Gathering:
    clock = clock or Clock()
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
    monkeypatch.setattr(module, "LONGEST", 3600.0)
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


async def test_a_lone_request_long_after_many_waits_for_nothing() -> None:
    clock = Clock()
    gathering = after_a_call(100, 10.0, clock)
    clock.now += RECENT * 1.01
    assert not await is_waiting(asyncio.create_task(gathering.gather([1])))


@pytest.mark.parametrize(("took", "longest"), [(LONGEST / 10, LONGEST / 10), (10.0, LONGEST)])
async def test_the_wait_is_bounded_by_the_last_call_and_by_a_millisecond(took: float, longest: float) -> None:
    gathering = after_a_call(100, took)
    assert gathering.limit == pytest.approx(longest)
    await asyncio.wait_for(gathering.gather([1]), 10)


async def test_a_cancelled_wait_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 3600.0)
    gathering = after_a_call(FEW, 3600.0)
    waiting = asyncio.create_task(gathering.gather([1]))
    assert await is_waiting(waiting)
    waiting.cancel()
    await asyncio.wait([waiting])
    gathering.joined([1] * FEW)
    assert await is_waiting(asyncio.create_task(gathering.gather([1])))


async def test_a_message_for_requests_that_wait_is_not_held_back_for_others(
    engine: Engine, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST", 0.0)  # so any rest is longer
    consumer = await consume()
    waiting = [asyncio.create_task(engine.receive(consumer, 1, 60.0)) for _ in range(FEW + 1)]
    receivers = await engine._receivers_of(consumer)
    rests = asyncio.Queue[None]()
    until_woken = receivers.calls.until_woken

    async def rest(seconds: float) -> None:
        rests.put_nowait(None)
        await until_woken(seconds)

    async def gather(queue: object) -> None:
        pytest.fail("The requests that wait would be delayed.")

    monkeypatch.setattr(receivers.calls, "until_woken", rest)
    async with asyncio.timeout(20):
        await rests.get()  # all of them have looked
        monkeypatch.setattr(receivers._gathering, "gather", gather)
        for place in range(2):  # the second one comes while the first of the clients is disconnected
            await engine.app.publish("orders", f"key{place}", place)
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert [list(one.result().seqs) for one in done] == [[place + 1]]
            waiting = [one for one in waiting if one not in done]
    for one in waiting:
        one.cancel()
    await asyncio.wait(waiting)
