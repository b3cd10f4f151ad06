"""The idle consumers of one process: their subscriptions, their polls, their timers."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from headrace import App
from headrace.runtime.leasing import subscriptions as leasing
from headrace.runtime.leasing.subscriptions import POLLS, Subscriptions
from headrace.runtime.leasing.timings import LEASE_TIMINGS
from headrace.runtime.pipeline.scaler import Scaler
from headrace.runtime.stored_consumer import Settings
from tests.runtime.running import Seen, running

pytestmark = pytest.mark.asyncio

SHORTEST_TERM, LONGEST_TERM = LEASE_TIMINGS.shortest_term, LEASE_TIMINGS.longest_term


class Statements:
    """Replaces `store.wait`. Records its calls, which return once `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, go: bool = True) -> None:
        self.calls: list[tuple[list[int], float]] = []
        self.go = anyio.Event()
        if go:
            self.go.set()
        monkeypatch.setattr(leasing.store, "wait", self._wait)

    async def _wait(self, _database: Any, consumers: list[int], seconds: float) -> None:
        self.calls.append((consumers, seconds))
        await self.go.wait()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def of(clock: Clock) -> Subscriptions:
    return Subscriptions(None, 3, clock)  # type: ignore[arg-type]


async def test_consumers_that_become_idle_at_the_same_time_subscribe_in_one_statement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statements, consumers = Statements(monkeypatch, go=False), of(Clock())
    async with anyio.create_task_group() as group:
        group.start_soon(consumers.subscribe, 0)
        await anyio.wait_all_tasks_blocked()
        for consumer in range(1, 1000):
            group.start_soon(consumers.subscribe, consumer)
        await anyio.wait_all_tasks_blocked()
        statements.go.set()
    assert [consumers for consumers, _ in statements.calls] == [[0], list(range(1, 1000))]
    assert all(consumers.is_subscribed(consumer) for consumer in range(1000))


async def test_only_idle_consumers_renew_their_subscriptions_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    statements, clock = Statements(monkeypatch), Clock()
    consumers = of(clock)
    one, other = consumers.subscription(1), consumers.subscription(2)
    await one.subscribe()
    await other.subscribe()
    other.leave()  # the lease call after it found something
    for _ in range(20):
        clock.now += SHORTEST_TERM / 2
        await consumers.renew()
        assert one.subscribed
    assert not other.subscribed
    assert statements.calls[2:] == [([1], SHORTEST_TERM)] * 20


async def test_the_more_consumers_are_idle_the_less_often_each_subscribes_and_polls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statements, clock = Statements(monkeypatch), Clock()
    consumers = of(clock)
    assert consumers.longest_poll == 1.0
    many = [consumers.subscription(number) for number in range(100_000)]
    for one in many:
        one.enter()
    assert consumers.longest_poll == 100_000 / POLLS
    await many[1].subscribe()
    for _ in range(int(10 * LONGEST_TERM / (SHORTEST_TERM / 2))):
        clock.now += SHORTEST_TERM / 2
        await consumers.renew()
        assert many[1].subscribed
    for one in many:
        one.leave()
    assert consumers.longest_poll == 1.0
    assert {seconds for _, seconds in statements.calls} == {LONGEST_TERM}
    assert 10 <= len(statements.calls) <= 15


async def test_a_consumer_stays_subscribed_while_its_lease_call_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise thousands that start together lose their subscriptions before their lease calls, and
    start again, for ever."""
    Statements(monkeypatch)
    clock = Clock()
    consumers = of(clock)
    one = consumers.subscription(1)
    await one.subscribe()
    for _ in range(20):
        clock.now += SHORTEST_TERM / 2
        await consumers.renew()
    assert one.subscribed


async def test_all_consumers_subscribe_again_after_the_connection_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    Statements(monkeypatch)
    consumers = of(Clock())
    await consumers.subscribe(1)
    consumers.reset()
    assert not consumers.is_subscribed(1)


async def test_an_idle_consumer_has_no_timer(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timers of ten thousand scalers and keepers would cost more than all polls."""
    app, seen = App(dsn), Seen()
    steps: list[int] = []
    rests: list[int] = []
    step, rest = Scaler.step, Settings.rest

    def counted_step(self: Scaler) -> None:
        steps.append(1)
        step(self)

    async def counted_rest(self: Settings) -> None:
        rests.append(1)
        await rest(self)

    monkeypatch.setattr(Scaler, "step", counted_step)
    monkeypatch.setattr(Settings, "rest", counted_rest)

    @app.consumer("orders", timeout="10s")
    async def ship(number: int) -> None:
        seen.note(number)
        while number == 2 and len(steps) < 2:  # both work while a handler runs
            await anyio.lowlevel.checkpoint()

    async with running(app):
        await app.idle()
        assert (steps, rests) == ([], [])
        await app.publish("orders", "a", 1)
        await seen.until(1)
        await app.publish("orders", "a", 2)
        await app.idle()
        assert len(rests) == 1
