"""The errors that a test gets when something is wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from headrace import App, ConfigurationError, StoreUnavailable, store
from headrace.testing import Harness

pytestmark = pytest.mark.asyncio

Start = Callable[..., Harness]


def lent(app: App) -> dict[str, Any]:
    """The attributes of an app that a harness may change."""
    return {name: value for name, value in vars(app).items() if name != "_settings"}  # read when the app connects


async def test_failed_assertions_report_what_happened_instead(app: App, harness: Start) -> None:
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
            AssertionError, match=r"expected acked, and there were:\s+.* retried after 60 s: ValueError: two"
        ):
            h.assert_outcomes(ship, "acked", key="b")
        with pytest.raises(AssertionError, match="expected no outcome, and there were"):
            h.assert_outcomes(ship)
        with pytest.raises(AssertionError, match=r"expected acked, and there were none\."):
            h.assert_outcomes(ship, "acked", key="c")


async def test_unknown_and_ambiguous_consumers_are_reported(app: App, harness: Start) -> None:
    @app.consumer("orders", name="log")
    @app.consumer("parcels", name="log")
    async def note() -> None: ...

    async with harness(app) as h:
        with pytest.raises(ConfigurationError, match=r"no consumer 'ship'\. Its consumers are parcels:log, orders:log"):
            h.outcomes("ship")
        with pytest.raises(ConfigurationError, match="'note' matches more than one consumer"):
            await h.dead_letters(note)
        assert h.outcomes("orders:log") == []
        with pytest.raises(ConfigurationError, match=r"times=0 is invalid\. It must be at least 1"):
            h.crash_before_ack("orders:log", times=0)


async def test_a_harness_is_used_once_and_inside_its_block(app: App, harness: Start) -> None:
    h = harness(app)
    with pytest.raises(ConfigurationError, match="not entered"):
        await h.drain()
    async with h:
        with pytest.raises(ConfigurationError, match="already connected"):
            await harness(app).__aenter__()
    with pytest.raises(ConfigurationError, match="Make another one"):
        await h.__aenter__()


async def test_an_app_that_cannot_start_reports_why_and_is_unchanged(app: App) -> None:
    before = lent(app)
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        async with Harness(app, app.dsn):
            pass
    assert lent(app) == before


async def test_an_app_that_was_stopped_is_reported(app: App, harness: Start) -> None:
    @app.consumer("orders")
    async def ship() -> None: ...

    async with harness(app) as h:
        app.stop()
        with pytest.raises(ConfigurationError, match="The app was stopped"):
            await drain_for_ever(h)


async def drain_for_ever(h: Harness) -> None:
    while True:
        await h.drain()


async def test_an_app_that_fails_its_own_check_reports_that(app: App, harness: Start) -> None:
    @app.check
    async def stock() -> None:
        raise ValueError("there is no stock")

    before = lent(app)
    with pytest.raises(ConfigurationError, match="there is no stock"):
        async with harness(app):
            pass
    assert lent(app) == before


async def test_a_drain_raises_the_error_that_ended_the_service(
    app: App, harness: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.consumer("orders")
    async def ship() -> None: ...

    async def drain() -> None:
        async with harness(app) as h:
            monkeypatch.setattr(store, "lease", broken)
            await drain_for_ever(h)

    with pytest.raises(ExceptionGroup) as caught:
        await drain()
    assert caught.group_contains(ZeroDivisionError)


async def broken(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError


async def test_a_test_that_is_cancelled_leaves_nothing_running(app: App, harness: Start) -> None:
    started, stopped = anyio.Event(), anyio.Event()

    @app.consumer("orders")
    async def ship() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    before = lent(app)
    with anyio.CancelScope() as scope:
        async with harness(app) as h:
            await h.publish("orders", "a", 1)
            await started.wait()
            scope.cancel()
            await h.drain()
    assert stopped.is_set()
    assert lent(app) == before


async def test_a_lifespan_and_the_state_of_the_app_are_available(app: App, harness: Start) -> None:
    @app.lifespan
    async def state(_: App) -> AsyncIterator[list[int]]:
        yield []

    @app.consumer("orders")
    async def ship(order: int) -> None:
        app.state.append(order)

    async with harness(app) as h:
        await h.publish("orders", "a", 1)
        await h.drain()
        assert app.state == [1]
