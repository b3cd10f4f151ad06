"""Messages that expire after they were leased: their handlers don't begin."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import App, Batch, Message, Retry
from headrace.testing import Harness
from tests.runtime.running import Gate, Seen, eventually

pytestmark = pytest.mark.asyncio


@pytest.fixture
def app() -> App:
    return App("postgresql://nobody@nowhere.invalid/nothing", streams=["orders"])


async def until_leased(h: Harness, consumer: Any, count: int) -> None:
    """Wait until the worker holds this many messages. A message that expires before it is leased has no outcome."""

    async def leased() -> bool:
        return [m.state for m in await h.pending(consumer)].count("in_flight") == count

    await eventually(leased)


async def test_a_message_that_expires_while_it_waits_for_an_actor_is_passed_by(app: App, dsn: str) -> None:
    seen, gate = Seen(), Gate()

    @app.consumer("orders", concurrency=1, ack_wait="1h")
    async def ship(number: int, message: Message) -> None:
        seen.note((number, message.headers, message.expires_at is not None))
        await gate.wait()

    async with Harness(app, dsn) as h:
        await h.publish("orders", "a", 1, expires_in="1m", headers={"trace": "x"})
        await seen.until(1)  # the first handler works on while its message expires
        await h.publish("orders", "a", 2, expires_in="1m")
        await h.publish("orders", "a", 3, expires_in="1d")
        await h.publish("orders", "a", 4)
        await until_leased(h, ship, 3)
        await h.advance("2m")
        gate.open()
        await h.drain()
        h.assert_outcomes(ship, "acked", "expired", "acked", "acked")
        assert await h.dead_letters(ship) == await h.pending(ship) == []
    assert seen.notes == [(1, {"trace": "x"}, True), (3, {}, True), (4, {}, False)]


async def test_a_batch_leaves_out_what_has_expired_meanwhile(app: App, dsn: str) -> None:
    seen, gate = Seen(), Gate()

    @app.consumer("orders", batch=3, concurrency=1, ack_wait="1h")
    async def ship(numbers: list[int], batch: Batch) -> None:
        seen.note(numbers)
        if numbers == [0]:
            await gate.wait()

    async with Harness(app, dsn) as h:
        await h.publish("orders", "z", 0)
        await seen.until(1)
        await h.publish_many("orders", [("a", 1), ("a", 2)], expires_in=60)
        await h.publish_many("orders", [("a", 3), ("b", 4)])
        await until_leased(h, ship, 5)
        await h.advance("2m")
        gate.open()
        await h.drain()
    assert sorted(number for numbers in seen.notes for number in numbers) == [0, 3, 4]


async def test_a_retry_waits_no_longer_than_its_message_lives(app: App, dsn: str) -> None:
    seen = Seen()

    @app.consumer("orders", backoff="1h")
    async def ship(number: int) -> None:
        seen.note(number)
        if number == 1:
            raise Retry

    async with Harness(app, dsn) as h:
        await h.publish("orders", "a", 1, expires_in="1m")
        await h.publish("orders", "a", 2)
        await h.drain()
        assert seen.notes == [1]
        await h.advance("10m")
        await h.drain()
        assert h.kinds(ship)[-1] == "acked"
    assert seen.notes == [1, 2], "the next of its key goes on as soon as it has expired"
