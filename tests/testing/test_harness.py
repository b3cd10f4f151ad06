"""A harness runs an app's handlers on the real engine, with the time in the test's hands."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

from headrace import App, ConfigurationError, Message, Reject, Retry, StoreUnavailable
from headrace.model.errors import InvalidData
from headrace.testing import Harness, NotDrained

pytestmark = pytest.mark.asyncio


class Order(msgspec.Struct):
    id: int


def lent(app: App) -> dict[str, Any]:
    """What a harness changes of an app."""
    return {name: value for name, value in vars(app).items() if name != "_settings"}  # which it reads when it connects


async def test_what_is_published_is_handled_and_acked(app: App, harness: type[Harness]) -> None:
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


async def test_the_app_is_as_before(app: App, harness: type[Harness]) -> None:
    before = lent(app)
    async with harness(app):
        assert app.dsn != before["dsn"]
    assert lent(app) == before


async def test_drain_follows_messages_from_handler_to_handler(app: App, harness: type[Harness]) -> None:
    @app.consumer("parcels")
    async def tell(parcel: int) -> None: ...

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
        assert h.kinds(ship) == h.kinds(tell) == ["acked"] * 5


async def test_published_messages_are_converted_to_a_type(app: App, harness: type[Harness]) -> None:
    async with harness(app) as h:
        await h.publish("orders", "a", {"id": 7})
        assert [m.data for m in await h.published("orders", type=Order)] == [Order(7)]
        with pytest.raises(msgspec.ValidationError):
            await h.published("orders", type=str)


async def test_a_retry_comes_when_the_clock_is_advanced_and_not_before(app: App, harness: type[Harness]) -> None:
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


async def test_a_delayed_message_comes_when_the_clock_is_advanced(app: App, harness: type[Harness]) -> None:
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


async def test_rejected_exhausted_and_undecodable_messages_are_dead_letters(app: App, harness: type[Harness]) -> None:
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


async def test_what_waits_behind_a_failed_message_is_released(app: App, harness: type[Harness]) -> None:
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


# --- errors of handlers


async def test_an_error_of_a_handler_is_raised_as_it_is_on_request(app: App, harness: type[Harness]) -> None:
    error = KeyError("oops")

    @app.consumer("orders")
    async def ship() -> None:
        raise error

    async with harness(app) as h:
        await h.publish("orders", "a", 1)
        with pytest.raises(KeyError) as caught:
            await h.drain(raise_errors=True)
        assert caught.value is error
        assert any(entry.name == "ship" for entry in caught.traceback)
        await h.drain(raise_errors=True)


async def test_several_errors_are_raised_together(app: App, harness: type[Harness]) -> None:
    @app.consumer("orders")
    def ship(order: int) -> None:
        raise [KeyError, IndexError][order]

    async with harness(app) as h:
        await h.publish_many("orders", [("a", 0), ("b", 1), ("c", "nonsense")])
        with pytest.raises(ExceptionGroup) as caught:
            await h.drain(raise_errors=True)
        assert {type(error) for error in caught.value.exceptions} == {KeyError, IndexError, InvalidData}


async def test_retry_and_reject_are_no_errors(app: App, harness: type[Harness]) -> None:
    @app.consumer("orders")
    async def ship(order: int) -> Retry:
        if order:
            raise Reject
        return Retry(after="1s")

    async with harness(app) as h:
        await h.publish_many("orders", [("a", 0), ("b", 1)])
        await h.drain(raise_errors=True)
        assert sorted(h.kinds(ship)) == ["rejected", "retried"]


async def test_errors_of_the_test_itself_come_out_as_they_are(app: App, harness: type[Harness]) -> None:
    with pytest.raises(AssertionError, match="mine"):
        async with harness(app):
            raise AssertionError("mine")
    with pytest.raises(pytest.skip.Exception):
        async with harness(app):
            pytest.skip("mine, too")


# --- time


async def test_a_handler_that_is_past_its_timeout_is_stopped(app: App, harness: type[Harness]) -> None:
    started = anyio.Event()

    @app.consumer("orders", timeout="10m", backoff="1h")
    async def ship() -> None:
        started.set()
        await anyio.sleep_forever()

    async with harness(app) as h:
        await h.publish("orders", "a", 1)
        await started.wait()
        await h.advance("10m")
        await h.drain()
        h.assert_outcomes(ship, "retried")
        assert "longer than its timeout of 600 s" in (h.outcomes(ship)[0].error or "")


async def test_a_handler_keeps_its_lease_while_the_clock_is_advanced(app: App, harness: type[Harness]) -> None:
    started, go = anyio.Event(), anyio.Event()

    @app.consumer("orders", ack_wait="30s")
    async def ship() -> None:
        started.set()
        await go.wait()

    async with harness(app) as h:
        await h.publish("orders", "a", 1)
        await started.wait()
        await h.advance("1h")
        go.set()
        await h.drain()
        h.assert_outcomes(ship, "acked")


async def test_a_process_that_was_frozen_loses_its_lease(app: App, harness: type[Harness]) -> None:
    started, go = anyio.Event(), anyio.Event()

    @app.consumer("orders", ack_wait="30s")
    async def ship(message: Message) -> None:
        started.set()
        if message.attempt == 1:
            await go.wait()

    async with harness(app) as h:
        await h.publish("orders", "a", 1)
        await started.wait()
        await h.advance("30s", frozen=True)
        go.set()
        await h.drain()
        h.assert_outcomes(ship, "lost", "acked")
        assert [o.attempt for o in h.outcomes(ship)] == [1, 2]


async def test_retention_goes_by_the_clock(app: App, harness: type[Harness]) -> None:
    app.stream("events", retain_up_to="1d")
    async with harness(app) as h:
        await h.publish("events", "a", 1)
        await h.advance("23h")
        assert len(await h.published("events")) == 1
        await h.advance("1h")
        assert await h.published("events") == []


async def test_a_drain_that_does_not_end_says_what_is_left(app: App, harness: type[Harness]) -> None:
    @app.consumer("orders")
    async def ship() -> None:
        await anyio.sleep_forever()

    async with harness(app, within=0.3) as h:
        await h.publish("orders", "orders.us.7", 1)
        with pytest.raises(NotDrained, match=r"ship: 1 leased so far, 1 of them unsettled") as caught:
            await h.drain()
        assert "ship is at orders.us.7 (seq 1, attempt 1)" in str(caught.value)


async def test_a_message_that_is_settled_early_is_waited_for(app: App, harness: type[Harness]) -> None:
    ended = False

    @app.consumer("orders")
    async def ship(message: Message) -> None:
        nonlocal ended
        await message.ack()
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        await message.publish("parcels", "a", 1)
        ended = True

    async with harness(app) as h:
        await h.publish("orders", "a", 1)
        await h.drain()
        assert ended


# --- assertions and mistakes


async def test_assertions_tell_what_happened_instead(app: App, harness: type[Harness]) -> None:
    @app.consumer("orders", backoff="1m")
    async def ship(order: int) -> None:
        if order == 2:
            raise ValueError("two")

    async with harness(app) as h:
        with pytest.raises(AssertionError, match="ship: nothing was delivered"):
            h.assert_all_acked(ship)
        await h.publish_many("orders", [("a", 1), ("b", 2)])
        await h.drain()
        with pytest.raises(
            AssertionError, match=r"of 2 messages these are not acked:\s+ship: b \(seq 2, attempt 1\) retried"
        ):
            h.assert_all_acked(ship)
        with pytest.raises(
            AssertionError, match=r"expected acked; there were:\s+.* retried after 60 s: ValueError: two"
        ):
            h.assert_outcomes(ship, "acked", key="b")
        with pytest.raises(AssertionError, match="expected no outcome; there were"):
            h.assert_outcomes(ship)
        with pytest.raises(AssertionError, match=r"expected acked; there were none\."):
            h.assert_outcomes(ship, "acked", key="c")


async def test_consumers_that_are_not_there_or_are_two_are_told(app: App, harness: type[Harness]) -> None:
    @app.consumer("orders", name="log")
    @app.consumer("parcels", name="log")
    async def note() -> None: ...

    async with harness(app) as h:
        with pytest.raises(ConfigurationError, match=r"no consumer 'ship': there are parcels:log, orders:log"):
            h.outcomes("ship")
        with pytest.raises(ConfigurationError, match="'note' is more than one consumer"):
            await h.dead_letters(note)
        assert h.outcomes("orders:log") == []
        with pytest.raises(ConfigurationError, match="times=0 must be at least 1"):
            h.crash_before_ack("orders:log", times=0)


async def test_a_harness_is_used_once_and_inside_its_block(app: App, harness: type[Harness]) -> None:
    h = harness(app)
    with pytest.raises(ConfigurationError, match="not in use"):
        await h.drain()
    async with h:
        with pytest.raises(ConfigurationError, match="connected already"):
            await harness(app).__aenter__()
    with pytest.raises(ConfigurationError, match="make another one"):
        await h.__aenter__()


async def test_an_app_that_cannot_start_says_why_and_is_as_before(app: App) -> None:
    before = lent(app)
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        async with Harness(app, app.dsn):
            pass
    assert lent(app) == before


async def test_an_app_that_was_stopped_is_told(app: App, harness: type[Harness]) -> None:
    @app.consumer("orders")
    async def ship() -> None: ...

    async with harness(app) as h:
        app.stop()
        with pytest.raises(ConfigurationError, match="The app was stopped"):
            await drain_for_ever(h)


async def drain_for_ever(h: Harness) -> None:
    while True:
        await h.drain()
