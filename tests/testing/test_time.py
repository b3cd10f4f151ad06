"""The harness's clock stands still until the test advances it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from headrace import App, Message, store
from headrace.model.specs import ConsumerSpec
from headrace.testing import Harness, NotDrained
from headrace.testing.outcomes import Record, WatchedTracker

pytestmark = pytest.mark.asyncio

Start = Callable[..., Harness]


def consuming_slowly(app: App) -> tuple[Any, anyio.Event, anyio.Event]:
    """A consumer whose first attempt sets an event and waits for another one. Returns it with the two."""
    started, go = anyio.Event(), anyio.Event()

    @app.consumer("orders", ack_wait="30s")
    async def ship(message: Message) -> None:
        started.set()
        if message.attempt == 1:
            await go.wait()

    return ship, started, go


async def test_a_handler_that_is_past_its_timeout_is_stopped(app: App, harness: Start) -> None:
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


async def test_a_handler_keeps_its_lease_while_the_clock_is_advanced(app: App, harness: Start) -> None:
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


async def test_a_process_that_was_frozen_loses_its_lease(app: App, harness: Start) -> None:
    ship, started, go = consuming_slowly(app)
    async with harness(app) as h:
        await h.publish("orders", "a", 1)
        await started.wait()
        await h.advance("30s", frozen=True)
        go.set()
        await h.drain()
        h.assert_outcomes(ship, "lost", "acked")
        assert [o.attempt for o in h.outcomes(ship)] == [1, 2]


async def test_retention_follows_the_clock(app: App, harness: Start) -> None:
    app.stream("events", retain_up_to="1d")
    async with harness(app) as h:
        await h.publish("events", "a", 1)
        await h.advance("23h")
        assert len(await h.published("events")) == 1
        await h.advance("1h")
        assert await h.published("events") == []


async def test_a_drain_that_does_not_end_reports_what_is_left(app: App, harness: Start) -> None:
    begun = anyio.Event()

    @app.consumer("orders")
    async def ship() -> None:
        begun.set()
        await anyio.sleep_forever()

    async with harness(app, within=0.3) as h:
        await h.publish("orders", "orders.us.7", 1)
        await begun.wait()
        with pytest.raises(NotDrained, match=r"ship: 1 leased so far, 1 of them unsettled") as caught:
            await h.drain()
        assert "ship is at orders.us.7 (seq 1, attempt 1)" in str(caught.value)


async def test_a_message_that_is_settled_early_is_waited_for(app: App, harness: Start) -> None:
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


async def test_a_lease_call_that_is_under_way_when_the_clock_is_moved_takes_nothing_that_expires_then(
    app: App, harness: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship, started, go = consuming_slowly(app)
    asked, slow = anyio.Event(), anyio.Event()
    real = store.lease

    async def lease(*args: Any, **options: Any) -> Any:
        if started.is_set() and not asked.is_set():
            asked.set()
            await slow.wait()
        return await real(*args, **options)

    monkeypatch.setattr(store, "lease", lease)
    async with harness(app) as h:
        await h.publish("orders", "a", 1)
        await asked.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(h.advance, "30s", frozen=True))
            await anyio.wait_all_tasks_blocked()
            slow.set()
        go.set()
        await h.drain()
        h.assert_outcomes(ship, "lost", "acked")


async def test_what_is_done_but_not_settled_is_lost_with_its_lease() -> None:
    record = Record()
    tracker = WatchedTracker(ConsumerSpec(stream="orders", name="ship"), record, lambda: False)
    lease = tracker.take(1, [1], ["a"], 30.0)
    message = SimpleNamespace(stream="orders", consumer="ship", key="a", seq=1, attempt=1, lease=lease)
    tracker.ack(message)  # type: ignore[arg-type]
    tracker.lose(lease, 2)
    assert [outcome.kind for outcome in record.outcomes] == ["lost"]
