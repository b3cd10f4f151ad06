"""The harness: it runs an app's handlers on the real engine, and the test controls the time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from headrace import App, Depends, Message, Reject, Retry, Snooze
from headrace.testing import Harness

pytestmark = pytest.mark.asyncio

Start = Callable[..., Harness]


class Order(msgspec.Struct):
    id: int


class Pool(list[str]):
    pass


class Stock:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool


def lent(app: App) -> dict[str, Any]:
    """The attributes of an app that a harness may change."""
    return {name: value for name, value in vars(app).items() if name != "_settings"}  # read when the app connects


async def test_a_published_message_is_handled_and_acked(app: App, harness: Start) -> None:
    seen: list[int] = []

    @app.consumer("orders")
    async def ship(order: Order) -> None:
        seen.append(order.id)

    async with harness(app) as h:
        await h.publish("orders", "orders.1", Order(1))
        await h.publish_many("orders", [("orders.2", Order(2)), ("orders.2", Order(3))])
        await h.drain()
        assert sorted(seen) == [1, 2, 3]
        h.assert_all_acked(ship)
        h.assert_outcomes("ship", "acked", "acked", key="orders.2")
        assert await h.pending("ship") == []


async def test_the_app_is_unchanged_after_the_block(app: App, harness: Start) -> None:
    before = lent(app)
    async with harness(app):
        assert app.dsn != before["dsn"]
    assert lent(app) == before


async def test_a_test_provides_other_dependencies(app: App, harness: Start) -> None:
    seen: list[Any] = []

    @app.lifespan
    async def pool(app: App) -> AsyncIterator[Pool]:
        yield Pool(["the real one"])

    app.provide(Stock, scope="app")

    @app.consumer("orders")
    async def ship(order: int, stock: Depends[Stock], pool: Depends[Pool]) -> None:
        seen.append((stock.pool, pool))

    for given in ({Pool: ["fake"]}, {Stock: Stock(Pool(["of the fake stock"]))}, None):
        async with Harness(app, provide=given) as h:
            await h.publish("orders", "orders.1", 1)
            await h.drain(raise_errors=True)
    assert seen == [
        (["fake"], ["fake"]),
        (["of the fake stock"], ["the real one"]),
        (["the real one"], ["the real one"]),
    ]


async def test_drain_follows_messages_from_handler_to_handler(app: App, harness: Start) -> None:
    @app.consumer("parcels")
    async def notify(parcel: int) -> None: ...

    @app.consumer("orders")
    async def ship(order: int, message: Message) -> None:
        await message.publish("parcels", f"parcels.{order}", order)
        if order < 5:
            await message.publish("orders", "orders", order + 1)

    async with harness(app) as h:
        await h.publish("orders", "orders", 1)
        await h.drain()
        assert [m.data for m in await h.published("parcels")] == [1, 2, 3, 4, 5]
        assert [m.data for m in await h.published("parcels", "parcels.3")] == [3]
        assert h.kinds(ship) == h.kinds(notify) == ["acked"] * 5


async def test_published_messages_are_converted_to_a_type(app: App, harness: Start) -> None:
    async with harness(app) as h:
        await h.publish("orders", "a", {"id": 7})
        assert [m.data for m in await h.published("orders", type=Order)] == [Order(7)]
        with pytest.raises(msgspec.ValidationError):
            await h.published("orders", type=str)


async def test_a_retry_comes_when_the_clock_is_advanced_and_not_before(app: App, harness: Start) -> None:
    @app.consumer("orders", backoff=["1m", "1h"])
    async def ship(message: Message) -> None:
        if message.attempt < 3:
            raise ValueError(f"attempt {message.attempt}")

    async with harness(app) as h:
        await h.publish("orders", "a", 1)
        await h.drain()
        await h.drain()
        (parked,) = await h.pending(ship)
        assert (parked.state, parked.attempts) == ("parked", 1)
        await h.advance("59s")
        await h.drain()
        h.assert_outcomes(ship, "retried")
        await h.advance("1s")
        await h.drain()
        h.assert_outcomes(ship, "retried", "retried")
        await h.advance("1h")
        await h.drain()
        h.assert_outcomes(ship, "retried", "retried", "acked")
        assert [(o.attempt, o.after, o.error) for o in h.outcomes(ship)] == [
            (1, 60.0, "ValueError: attempt 1"),
            (2, 3600.0, "ValueError: attempt 2"),
            (3, None, None),
        ]


async def test_a_delayed_message_comes_when_the_clock_is_advanced(app: App, harness: Start) -> None:
    @app.consumer("orders")
    async def ship(message: Message) -> None:
        if message.key == "first":
            await message.publish("orders", "second", 2, delay="1h")

    async with harness(app) as h:
        await h.publish("orders", "first", 1, delay="1h")
        await h.drain()
        assert h.outcomes() == []
        await h.advance("1h")
        await h.drain()
        assert [o.key for o in h.outcomes()] == ["first"]
        await h.advance("30m")
        await h.drain()
        assert [o.key for o in h.outcomes()] == ["first"]
        await h.advance("30m")
        await h.drain()
        assert [o.key for o in h.outcomes()] == ["first", "second"]


async def test_rejected_exhausted_and_undecodable_messages_are_dead_letters(app: App, harness: Start) -> None:
    @app.consumer("orders", max_deliver=2, backoff="1s")
    async def ship(order: Order) -> None:
        if order.id == 1:
            raise Reject("no such order")
        raise Retry("busy")

    async with harness(app) as h:
        await h.publish_many("orders", [("a", Order(1)), ("b", Order(2)), ("c", "nonsense")])
        await h.drain()
        await h.advance("1s")
        await h.drain()
        h.assert_outcomes(ship, "rejected", key="a")
        h.assert_outcomes(ship, "retried", "exhausted", key="b")
        h.assert_outcomes(ship, "rejected", key="c")
        dead = await h.dead_letters(ship)
        assert [(d.key, d.attempts) for d in dead] == [("a", 1), ("b", 2), ("c", 1)]
        assert dead[0].error == "no such order"


async def test_a_snooze_is_an_outcome_with_its_delay(app: App, harness: Start) -> None:
    ready = [False]

    @app.consumer("orders", max_deliver=1)
    async def ship(order: int) -> None:
        if not ready[0]:
            raise Snooze("10m")

    async with harness(app) as h:
        await h.publish("orders", "a", 1)
        await h.drain()
        (outcome,) = h.outcomes(ship)
        assert (outcome.kind, outcome.after, outcome.error) == ("snoozed", 600.0, None)
        ready[0] = True
        await h.advance("10m")
        await h.drain()
        h.assert_outcomes(ship, "snoozed", "acked")


async def test_messages_behind_a_failed_one_are_released(app: App, harness: Start) -> None:
    @app.consumer("orders", backoff="1s")
    async def ship(order: int, message: Message) -> None:
        if message.attempt == 1 and order == 1:
            raise ValueError

    async with harness(app) as h:
        await h.publish_many("orders", [("a", 1), ("a", 2)])
        await h.drain()
        await h.advance("1s")
        await h.drain()
        assert [(o.seq, o.kind) for o in h.outcomes(ship) if o.kind != "released"] == [
            (1, "retried"), (1, "acked"), (2, "acked"),
        ]  # fmt: skip
        h.assert_all_acked()
