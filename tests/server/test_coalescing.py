"""Call coalescing: calls run one after the other, unless one takes too long."""

from __future__ import annotations

import asyncio

import pytest

from headrace.server.data_plane.coalescing import CoalescedCalls, Coalescer

pytestmark = pytest.mark.asyncio


class Calls:
    """Calls of consumers, which run until the test ends them. By default, a call waits long for the others."""

    def __init__(self, coalescer: Coalescer | None = None) -> None:
        self.coalescer = coalescer or Coalescer(min_wait=60.0, max_wait=60.0)
        self.turns: dict[str, CoalescedCalls] = {}
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}

    async def call(self, name: str) -> None:
        async with self.turns.setdefault(name, self.coalescer.turns()).turn():
            self.begun.append(name)
            await self.ends.setdefault(name, asyncio.Event()).wait()

    def start(self, name: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.call(name))

    def end(self, name: str) -> None:
        self.ends.setdefault(name, asyncio.Event()).set()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_calls_go_one_after_the_other_in_their_order() -> None:
    calls = Calls()
    tasks = [calls.start(name) for name in "abc"]
    for name, begun in zip("abc", ("a", "ab", "abc"), strict=True):
        await settle()
        assert "".join(calls.begun) == begun
        calls.end(name)
    await asyncio.gather(*tasks)


async def test_a_cancelled_call_does_not_delay_the_others() -> None:
    calls = Calls()
    first, second, third = (calls.start(name) for name in "abc")
    await settle()
    second.cancel()
    calls.end("a")
    calls.end("c")
    await asyncio.gather(first, third)
    assert calls.begun == ["a", "c"]


async def test_a_call_that_fails_gives_its_turn_on() -> None:
    calls = Calls()
    first, second = calls.start("a"), calls.start("b")
    await settle()
    first.cancel()
    calls.end("b")
    await second
    assert calls.begun == ["a", "b"]


async def test_no_call_waits_for_long() -> None:
    calls = Calls(Coalescer())
    tasks = [calls.start(name) for name in "abc"]
    async with asyncio.timeout(10):
        while len(calls.begun) < 3:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
    for name in "abc":
        calls.end(name)
    await asyncio.gather(*tasks)


async def test_slow_calls_of_one_consumer_do_not_delay_those_of_another() -> None:
    now = 0.0
    calls = Calls(Coalescer(lambda: now, min_wait=0.0, max_wait=60.0))
    slow = calls.start("slow")
    await settle()
    now = 60.0  # so the next calls of this consumer would wait for a minute
    calls.end("slow")
    await slow

    calls.ends.clear()
    slow = calls.start("slow")
    await settle()
    quick = calls.start("quick")
    async with asyncio.timeout(10):
        while "quick" not in calls.begun:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
    again = calls.start("slow")
    await settle()
    assert calls.begun == ["slow", "slow", "quick"]
    for name in ("slow", "quick"):
        calls.end(name)
    await asyncio.gather(slow, quick, again)
