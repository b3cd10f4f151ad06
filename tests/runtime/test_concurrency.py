"""Concurrency: how many handlers run at the same time, and which messages never do."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from contextlib import AsyncExitStack

import anyio
import pytest

from headrace import App, Message, Retry
from headrace.runtime.pipeline.timings import Timings
from tests.runtime.running import Gate, consumer, numbered, running


@pytest.mark.asyncio
async def test_a_fixed_concurrency_is_reached_and_never_passed(app: App) -> None:
    gate = Gate()

    @app.consumer("orders", concurrency=5)
    async def ship() -> None:
        await gate.wait()
        await gate.wait()

    async with running(app):
        await app.publish_many("orders", numbered(f"k{number}" for number in range(40)))
        await gate.until(5)
        gate.open()
        await app.idle()
    assert gate.most == 5


@pytest.mark.asyncio
async def test_one_key_never_runs_twice_at_a_time(app: App) -> None:
    gate = Gate()
    inside: Counter[str] = Counter()
    seen = []

    @app.consumer("orders", concurrency=10)
    async def ship(message: Message) -> None:
        inside[message.key] += 1
        assert inside[message.key] == 1
        await gate.wait()
        inside[message.key] -= 1
        seen.append(message.seq)

    async with running(app):
        await app.publish_many("orders", numbered("abcabcabcabc"))
        await gate.until(3)
        gate.open()
        await app.idle()
        assert (await consumer(app, "ship")).dead_letters == 0
    assert gate.most <= 10
    assert len(seen) == 12


@pytest.mark.asyncio
async def test_an_unordered_consumer_runs_messages_of_one_key_side_by_side(app: App) -> None:
    gate = Gate()

    @app.consumer("orders", concurrency=4, ordered=False)
    async def ship() -> None:
        await gate.wait()

    async with running(app):
        await app.publish_many("orders", numbered("aaaaaa"))
        await gate.until(4)
        gate.open()
        await app.idle()
    assert gate.most == 4


@pytest.mark.asyncio
async def test_an_unordered_consumer_goes_past_a_message_that_fails(app: App) -> None:
    seen = []

    @app.consumer("orders", concurrency=1, ordered=False, backoff=0)
    async def ship(number: int, message: Message) -> None:
        seen.append(number)
        if number == 1 and message.attempt < 3:
            raise ValueError

    async with running(app):
        await app.publish_many("orders", numbered("aaaa"))
        await app.idle()
    assert Counter(seen) == {1: 3, 2: 1, 3: 1, 4: 1}
    assert seen[:3] == [1, 2, 3], "the others don't wait for its last attempt"


@pytest.mark.asyncio
async def test_concurrency_scales_up_for_handlers_that_wait(app: App) -> None:
    app._timings = Timings(sampling=0.02)
    gate = Gate()

    @app.consumer("orders", concurrency=(1, 12))
    async def ship() -> None:
        await gate.wait()

    async with running(app):
        await app.publish_many("orders", numbered(f"k{number}" for number in range(60)))
        await gate.until(12)
        statistics = app.statistics()["consumers"]["orders:ship"]
        assert (statistics["actors"], statistics["busy"]) == (12, 12)
        gate.open()
        await app.idle()
    assert gate.most == 12


@pytest.mark.asyncio
async def test_no_more_are_unsettled_than_max_ack_pending_over_all_processes(dsn: str) -> None:
    apps = [App(dsn), App(dsn)]
    gate = Gate()
    for app in apps:

        @app.consumer("orders", name="ship", concurrency=8, max_ack_pending=5)
        async def ship() -> None:
            await gate.wait()

    async with running(apps[0]) as app, running(apps[1]):
        await app.publish_many("orders", numbered(f"k{number}" for number in range(20)))
        await gate.until(5)
        assert (await consumer(app, "ship")).in_flight == 5
        gate.open()
        await app.idle()
    assert gate.most == 5


class Watch:
    """Checks that the messages of each key are handled in order, in whichever process."""

    def __init__(self, keys: list[str]) -> None:
        self.left = defaultdict(list)
        for number, key in enumerate(keys, 1):
            self.left[key].append(number)
        self.busy: set[str] = set()
        self.handled = 0

    def begin(self, key: str, number: int) -> None:
        assert key not in self.busy, "two of one key at a time"
        assert self.left[key][0] == number, "handled while an earlier one is unsettled, or handled again"
        self.busy.add(key)
        self.handled += 1

    def end(self, key: str, *, done: bool) -> None:
        self.busy.remove(key)
        if done:
            self.left[key].pop(0)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("processes", "concurrency", "keys", "max_ack_pending"),
    [(1, 8, 6, 1000), (3, 4, 8, 40), (2, 3, 1, 7)],
    ids=["one process", "three processes", "one hot key"],
)
async def test_order_per_key_holds_through_failures_and_retries_in_several_processes(
    dsn: str, processes: int, concurrency: int, keys: int, max_ack_pending: int
) -> None:
    dice = random.Random(processes)
    chosen = [f"k{dice.randrange(keys)}" for _ in range(240)]
    watch = Watch(chosen)
    errors: list[AssertionError] = []
    apps = [App(dsn, streams=["orders"]) for _ in range(processes)]
    for app in apps:

        @app.consumer(
            "orders", name="ship", concurrency=concurrency, backoff=0, max_deliver=-1, max_ack_pending=max_ack_pending
        )
        async def ship(number: int, message: Message) -> None:
            try:
                watch.begin(message.key, number)
            except AssertionError as error:
                errors.append(error)
                return
            fate = dice.random()
            for _ in range(dice.randrange(4)):
                await anyio.lowlevel.checkpoint()
            watch.end(message.key, done=fate > 0.3)
            if fate < 0.1:
                raise Retry(after=0.01)
            if fate < 0.2:
                await message.nack(0)
            elif fate <= 0.3:
                raise ValueError("once more")

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(apps[0])
        await apps[0].publish_many("orders", numbered(chosen))
        for app in apps:
            await stack.enter_async_context(running(app))
        await apps[0].idle()
        info = await consumer(apps[0], "ship")
    assert errors == []
    assert not any(watch.left.values())
    assert (info.parked, info.in_flight, info.dead_letters) == (0, 0, 0)
