"""A key whose messages wait behind a slow handler holds up no other key of its process."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from headrace import App, Batch, Message, Retry
from headrace.flow.demand import SlowKeys
from headrace.runtime.leasing.lease_calls import LeaseCalls
from tests.runtime.running import Gate, Seen, consumer, eventually, running

pytestmark = pytest.mark.asyncio

BACKLOG = 500
"""Messages of a slow key: more than a process buffers."""


def backlog(*keys: str) -> list[tuple[str, int]]:
    """Return the messages of slow keys. Each has its number within its key, and the first one blocks its handler."""
    return [(key, number) for number in range(BACKLOG) for key in keys]


class Ship:
    """A handler that waits at the gate with the first message of each slow key, and notes the keys of the others."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.seen = Seen()
        self.handled: dict[str, list[int]] = {}

    def register(self, app: App, **options: Any) -> None:
        """Make it the handler of a consumer `handle` of the app."""
        app.consumer("orders", name="handle", **options)(self.handle)

    async def handle(self, number: int, message: Message) -> None:
        if not message.key.startswith("slow"):
            self.seen.note(message.key)
            return
        if number == 0:
            await self.gate.wait()
        self.handled.setdefault(message.key, []).append(number)


@pytest.mark.parametrize("concurrency", [4, (1, 4)], ids=["fixed", "scaled"])
@pytest.mark.parametrize("slow", [("slow",), ("slow.a", "slow.b", "slow.c")], ids=["one", "several"])
async def test_slow_keys_with_a_backlog_hold_up_no_other_key(app: App, concurrency: Any, slow: tuple[str, ...]) -> None:
    ship = Ship()
    ship.register(app, concurrency=concurrency)
    async with app:
        await app.publish_many("orders", [*backlog(*slow), ("behind", 0)])
        async with running(app):
            await ship.gate.until(len(slow))
            assert await ship.seen.until(1) == ["behind"]
            await app.publish("orders", "later", 0)
            assert await ship.seen.until(2) == ["behind", "later"]
            ship.gate.open()
            await app.idle()
    assert ship.handled == {key: list(range(BACKLOG)) for key in slow}


async def test_a_slow_key_whose_messages_are_handled_holds_up_no_other_key(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowKeys, "RATE", 1e9)
    monkeypatch.setattr(SlowKeys, "PATIENCE", 0.001)
    permits, seen, slow = anyio.Semaphore(0), Seen(), list[int]()

    @app.consumer("orders", concurrency=4)
    async def ship(number: int, message: Message) -> None:
        if message.key == "slow":
            await permits.acquire()
            slow.append(number)
        seen.note(message.key)

    async def are_buffered() -> bool:
        return bool(app.statistics()["consumers"]["orders:ship"]["waiting"] > 4)

    async with app:
        await app.publish_many("orders", [*backlog("slow"), ("behind", 0)])
        async with running(app):
            while "behind" not in seen.notes:
                await eventually(are_buffered)
                permits.release()
                await seen.until(len(seen.notes) + 1)
            handled = len(slow)
            for _ in range(BACKLOG):
                permits.release()
            await app.idle()
    assert handled < BACKLOG / 2
    assert slow == list(range(BACKLOG))


async def test_a_slow_key_does_not_keep_all_of_max_ack_pending(app: App) -> None:
    ship = Ship()
    ship.register(app, concurrency=10, max_ack_pending=20)
    async with app:
        await app.publish_many("orders", [*backlog("slow"), ("behind", 0)])
        async with running(app):
            assert await ship.seen.until(1) == ["behind"]
            info = await consumer(app, "handle")
            assert info.in_flight < 20
            ship.gate.open()
            await app.idle()
    assert ship.handled == {"slow": list(range(BACKLOG))}


async def test_a_settlement_of_a_slow_key_causes_no_lease_call_at_once(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates, seen, woken, wake = [Gate(), Gate()], Seen(), list[LeaseCalls](), LeaseCalls.wake
    monkeypatch.setattr(SlowKeys, "SHORTEST", 3600.0)
    monkeypatch.setattr(SlowKeys, "LONGEST", 3600.0)

    def counted(calls: LeaseCalls) -> None:
        woken.append(calls)
        wake(calls)

    monkeypatch.setattr(LeaseCalls, "wake", counted)

    @app.consumer("orders", concurrency=4)
    async def ship(number: int, message: Message) -> None:
        if message.key != "slow":
            seen.note(message.key)
        elif number < len(gates):
            await gates[number].wait()

    async def until_settled(count: int) -> None:
        async def are_settled() -> bool:
            statistics = app.statistics()["consumers"]["orders:ship"]
            return bool(statistics["leased"] - statistics["held"] == count)

        await eventually(are_settled)

    async with app:
        await app.publish_many("orders", [*backlog("slow"), ("behind", 0)])
        async with running(app):
            assert await seen.until(1) == ["behind"]
            await until_settled(1)
            woken.clear()
            gates[0].open()
            await until_settled(2)
            assert woken == []
            gates[1].open()
            await app.idle()


async def test_a_batch_of_a_slow_key_holds_up_no_other_key(app: App) -> None:
    gate, seen, slow = Gate(), Seen(), list[int]()

    @app.consumer("orders", batch=10, concurrency=4)
    async def ship(batch: Batch, numbers: list[int]) -> None:
        if batch[0].key == "slow":
            if numbers[0] == 0:
                await gate.wait()
            slow.extend(numbers)
        else:
            seen.note(batch[0].key)

    async with app:
        await app.publish_many("orders", [*backlog("slow"), ("behind", 0)])
        async with running(app):
            await gate.until(1)
            assert await seen.until(1) == ["behind"]
            gate.open()
            await app.idle()
    assert slow == list(range(BACKLOG))


async def test_a_slow_message_that_fails_is_retried_before_the_rest_of_its_key(app: App) -> None:
    ship = Ship()

    @app.consumer("orders", concurrency=4)
    async def handle(number: int, message: Message) -> None:
        await ship.handle(number, message)
        if message.key == "slow" and message.attempt == 1 and number == 0:
            ship.handled.clear()
            raise Retry(after=0)

    async with app:
        await app.publish_many("orders", [*backlog("slow"), ("behind", 0)])
        async with running(app):
            assert await ship.seen.until(1) == ["behind"]
            ship.gate.open()
            await app.idle()
    assert ship.handled == {"slow": list(range(BACKLOG))}


async def test_a_process_that_ends_with_a_slow_key_releases_its_messages(app: App) -> None:
    ship = Ship()
    ship.register(app, concurrency=4)
    async with app:
        await app.publish_many("orders", [*backlog("slow"), ("behind", 0)])
        async with running(app):
            assert await ship.seen.until(1) == ["behind"]
            ship.gate.open()
        assert (await consumer(app, "handle")).in_flight == 0
        async with running(app):
            await app.idle()
    assert ship.handled == {"slow": list(range(BACKLOG))}


async def test_two_processes_keep_the_order_of_a_slow_key(app: App, dsn: str) -> None:
    ship, other = Ship(), App(dsn, streams=["orders"])
    for process in (app, other):
        ship.register(process, concurrency=2)

    async with app:
        await app.publish_many("orders", [*backlog("slow.a", "slow.b"), ("behind", 0)])
        async with running(app), running(other):
            await ship.gate.until(2)
            assert await ship.seen.until(1) == ["behind"]
            ship.gate.open()
            await app.idle()
            await other.idle()
    assert ship.handled == {key: list(range(BACKLOG)) for key in ("slow.a", "slow.b")}
