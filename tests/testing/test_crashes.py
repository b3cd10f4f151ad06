"""Crashes: a worker that dies between a handler's effect and the ack."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from headrace import App, Message, Transaction
from headrace.testing import Harness
from tests.runtime.running import Gate

pytestmark = pytest.mark.asyncio

Start = Callable[..., Harness]


async def test_a_plain_handler_runs_again_after_a_crash(app: App, harness: Start) -> None:
    effects: list[tuple[int, int]] = []

    @app.consumer("orders", ack_wait="30s")
    async def ship(order: int, message: Message) -> None:
        effects.append((order, message.attempt))

    async with harness(app) as h:
        h.crash_before_ack(ship)
        await h.publish("orders", "a", 1)
        await h.drain()
        assert effects == [(1, 1)]
        h.assert_outcomes(ship, "crashed")
        await h.advance("29s")
        await h.drain()
        assert effects == [(1, 1)], "the dead worker's lease holds"
        await h.advance("1s")
        await h.drain()
        assert effects == [(1, 1), (1, 2)]
        h.assert_outcomes(ship, "crashed", "acked")


async def test_a_sync_handler_crashes_when_it_has_returned(app: App, harness: Start) -> None:
    effects: list[int] = []

    @app.consumer("orders")
    def ship(order: int) -> None:
        effects.append(order)

    async with harness(app) as h:
        h.crash_before_ack(ship, times=2)
        await h.publish("orders", "a", 1)
        for _ in range(3):
            await h.drain()
            await h.advance("30s")
        assert effects == [1, 1, 1]
        h.assert_outcomes(ship, "crashed", "crashed", "acked")


async def effects_of(h: Harness) -> list[int]:
    return [row["number"] for row in await h.app.database.fetch("select number from effects order by number")]


async def test_the_writes_of_a_transactional_handler_are_gone_with_a_crash_and_there_once_after_it(
    app: App, harness: Start
) -> None:
    """The same handler without a transaction leaves its effect behind, so this test can fail."""

    @app.consumer("orders", transactional=True)
    async def ship(order: int, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", order)

    @app.consumer("orders")
    async def ship_plainly(order: int) -> None:
        await app.database.fetch("insert into effects values (100 + $1)", order)

    async with harness(app) as h:
        await app.database.fetch("create table effects (number int)")
        h.crash_before_ack(ship)
        await h.publish("orders", "a", 1)
        await h.drain()
        assert 1 not in await effects_of(h)
        await h.advance("30s")
        await h.drain()
        assert (await effects_of(h)).count(1) == 1
        h.assert_outcomes(ship, "crashed", "acked")
    assert h.kinds(ship_plainly)[-1] == "acked"


async def test_a_crash_of_a_plain_handler_shows_the_duplicate(app: App, harness: Start) -> None:
    @app.consumer("orders")
    async def ship(order: int) -> None:
        await app.database.fetch("insert into effects values ($1)", order)

    async with harness(app) as h:
        await app.database.fetch("create table effects (number int)")
        h.crash_before_ack(ship)
        await h.publish("orders", "a", 1)
        await h.drain()
        await h.advance("30s")
        await h.drain()
        assert await effects_of(h) == [1, 1]


async def test_messages_that_a_transactional_handler_published_are_gone_after_a_crash(app: App, harness: Start) -> None:
    @app.consumer("orders", transactional=True)
    async def ship(order: int, message: Message) -> None:
        await message.publish("parcels", "p", order)

    async with harness(app) as h:
        h.crash_before_ack(ship)
        await h.publish("orders", "a", 1)
        await h.drain()
        assert await h.published("parcels") == []
        await h.advance("30s")
        await h.drain()
        assert [m.data for m in await h.published("parcels")] == [1]


async def test_each_crash_takes_one_worker_though_many_handlers_return_at_once(app: App, harness: Start) -> None:
    gate = Gate()

    @app.consumer("orders", concurrency=4, transactional=True)
    async def ship(order: int, message: Message, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", order)
        if message.attempt == 1:
            await gate.wait()

    async with harness(app) as h:
        await app.database.fetch("create table effects (number int)")
        h.crash_before_ack(ship, times=2)
        await h.publish_many("orders", [(f"k{n}", n) for n in range(4)])
        await gate.until(4)
        gate.open()
        await h.drain()
        assert h.kinds(ship) == ["crashed"] * 4
        for _ in range(2):
            await h.advance("30s")
            await h.drain()
        assert await effects_of(h) == [0, 1, 2, 3]
        h.assert_all_acked(ship)


async def test_all_consumers_die_with_the_worker_and_nothing_is_settled(app: App, harness: Start) -> None:
    gate = Gate()
    calls: list[str] = []

    @app.consumer("orders")
    async def ship() -> None:
        calls.append("ship")

    @app.consumer("parcels")
    async def tell() -> None:
        calls.append("tell")
        if calls.count("tell") == 1:
            await gate.wait()

    async with harness(app) as h:
        await h.publish("parcels", "p", 1)
        await gate.until(1)
        h.crash_before_ack(ship)
        await h.publish("orders", "a", 1)
        await gate.until(0)
        await h.drain()
        assert calls == ["tell", "ship"]
        assert [m.state for m in await h.pending(tell)] == ["in_flight"]
        h.assert_outcomes(tell, "crashed")
        await h.advance("30s")
        await h.drain()
        assert sorted(calls) == ["ship", "ship", "tell", "tell"]
        h.assert_all_acked()


async def test_the_messages_of_a_key_stay_in_order_through_a_crash(app: App, harness: Start) -> None:
    effects: list[int] = []

    @app.consumer("orders")
    async def ship(order: int) -> None:
        effects.append(order)

    async with harness(app) as h:
        h.crash_before_ack(ship)
        await h.publish_many("orders", [("a", n) for n in range(5)])
        await h.drain()
        await h.advance("30s")
        await h.drain()
        assert effects == [0, 0, 1, 2, 3, 4]
        h.assert_all_acked(ship)


async def test_a_crashed_batch_comes_again(app: App, harness: Start) -> None:
    batches: list[list[int]] = []

    @app.consumer("orders", batch=10)
    async def ship(orders: list[int]) -> None:
        batches.append(orders)

    async with harness(app) as h:
        h.crash_before_ack(ship)
        await h.publish_many("orders", [("a", 1), ("a", 2)])
        await h.drain()
        await h.advance("30s")
        await h.drain()
        assert batches[0] == [1, 2]
        assert sorted(n for batch in batches[1:] for n in batch) == [1, 2]
        h.assert_all_acked(ship)


async def test_the_state_of_an_app_is_torn_down_and_set_up_again(app: App, harness: Start) -> None:
    """A crash in a test therefore leaves nothing open."""
    lives: list[str] = []

    @app.lifespan
    @asynccontextmanager
    async def life(_: Any) -> AsyncIterator[None]:
        lives.append("up")
        yield
        await anyio.lowlevel.checkpoint()
        lives.append("down")

    @app.consumer("orders")
    async def ship() -> None: ...

    async with harness(app) as h:
        h.crash_before_ack(ship)
        await h.publish("orders", "a", 1)
        await h.drain()
        assert lives == ["up", "down", "up"]
    assert lives == ["up", "down", "up", "down"]


async def test_a_message_that_repeatedly_kills_its_worker_is_a_dead_letter(app: App, harness: Start) -> None:
    @app.consumer("orders", max_deliver=3)
    async def ship() -> None: ...

    async with harness(app) as h:
        h.crash_before_ack(ship, times=3)
        await h.publish_many("orders", [("a", 1)])
        for _ in range(4):
            await h.drain()
            await h.advance("30s")
        h.assert_outcomes(ship, "crashed", "crashed", "crashed")
        (dead,) = await h.dead_letters(ship)
        assert dead.attempts == 3


async def test_a_transaction_that_has_lost_its_lease_is_not_committed(app: App, harness: Start) -> None:
    gate = Gate()

    @app.consumer("orders", transactional=True, ack_wait="30s")
    async def ship(order: int, message: Message, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", message.attempt)
        if message.attempt == 1:
            await gate.wait()

    async with harness(app) as h:
        await app.database.fetch("create table effects (number int)")
        await h.publish("orders", "a", 1)
        await gate.until(1)
        await h.advance("30s", frozen=True)
        gate.open()
        await h.drain()
        assert await effects_of(h) == [2]
        assert h.kinds(ship)[-1] == "acked"
