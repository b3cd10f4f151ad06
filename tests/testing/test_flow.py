"""Breakers, rate limits and filling batches follow the harness's clock too."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from headrace import App
from headrace.testing import Harness

pytestmark = pytest.mark.asyncio

Start = Callable[..., Harness]


async def test_a_breaker_pauses_until_the_clock_is_advanced(app: App, harness: Start) -> None:
    away = True
    tried: list[int] = []

    @app.consumer("orders", breaker=2, backoff="1s", concurrency=1)
    async def ship(order: int) -> None:
        tried.append(order)
        if away:
            raise ConnectionError

    async with harness(app) as h:
        await h.publish_many("orders", [(f"k{n}", n) for n in range(5)])
        await h.drain()
        assert len(tried) == 2
        await h.advance("4s")
        await h.drain()
        assert len(tried) == 2, "it is open"
        away = False
        await h.advance("1s")
        await h.drain()
        assert sorted(tried[2:]) == [0, 1, 2, 3, 4]
        h.assert_all_acked(ship)


async def test_a_breaker_that_opens_with_nothing_left_to_do_is_not_waited_for(app: App, harness: Start) -> None:
    @app.consumer("orders", breaker=1, backoff="1h")
    async def ship() -> None:
        raise ConnectionError

    async with harness(app) as h:
        await h.publish("orders", "a", 1)
        await h.drain()
        await h.drain()
        h.assert_outcomes(ship, "retried")


async def test_a_rate_limit_lets_through_what_the_clock_allows(app: App, harness: Start) -> None:
    @app.consumer("orders", rate_limit="60/h", rate_burst=2)
    async def ship() -> None: ...

    async with harness(app) as h:
        await h.publish_many("orders", [(f"k{n}", n) for n in range(5)])
        await h.drain()
        assert len(h.outcomes(ship)) == 2
        await h.advance("1m")
        await h.drain()
        assert len(h.outcomes(ship)) == 3
        await h.advance("1h")
        await h.drain()
        assert len(h.outcomes(ship)) == 5


async def test_a_batch_fills_until_the_test_drains(app: App, harness: Start) -> None:
    batches: list[list[int]] = []

    @app.consumer("orders", batch=10, batch_timeout=60)
    async def ship(orders: list[int]) -> None:
        batches.append(orders)

    async with harness(app) as h:
        for number in range(3):
            await h.publish("orders", "a", number)
        await h.drain()
        assert [n for batch in batches for n in batch] == [0, 1, 2]
        h.assert_all_acked(ship)


async def test_a_batch_that_is_full_does_not_wait_for_the_drain(app: App, harness: Start) -> None:
    full = anyio.Event()

    @app.consumer("orders", batch=2, batch_timeout=60)
    async def ship(orders: list[int]) -> None:
        full.set()

    async with harness(app) as h:
        await h.publish_many("orders", [("a", 1), ("b", 2)])
        with anyio.fail_after(30):
            await full.wait()
        await h.drain()
        assert h.kinds(ship) == ["acked", "acked"]


async def test_handlers_run_at_the_same_time_up_to_the_concurrency(app: App, harness: Start) -> None:
    inside, met = 0, anyio.Event()

    @app.consumer("orders", concurrency=(1, 4))
    async def ship() -> None:
        nonlocal inside
        inside += 1
        if inside == 2:
            met.set()
        await met.wait()

    async with harness(app) as h:
        await h.publish_many("orders", [("a", 1), ("b", 2)])
        await h.drain()
        h.assert_all_acked(ship)
