"""Rate limits in running apps: all processes share the limit, and wait for it without polling."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from headrace import App
from headrace.model.clock import Time
from headrace.runtime.pipeline.fetcher import Fetcher
from tests.runtime.running import Seen, numbered, running


class Watch:
    """The clock of leases. It stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@asynccontextmanager
async def working(dsn: str, watch: Watch, seen: Seen, **settings: float) -> AsyncIterator[tuple[App, Fetcher]]:
    app = App(dsn)
    app._time = Time(now=lambda: watch.now)

    @app.consumer("orders", name="ship", **settings)  # type: ignore[arg-type]
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        assert app._service is not None
        yield app, app._service.pipelines[0].fetcher


@pytest.mark.asyncio
async def test_two_processes_share_one_limit(dsn: str) -> None:
    watch, seen = Watch(), Seen()
    async with (
        working(dsn, watch, seen, rate_limit=50, rate_burst=5) as (app, first),
        working(dsn, watch, seen, rate_limit=50, rate_burst=5) as (_, second),
    ):
        await app.publish_many("orders", numbered(f"k{number}" for number in range(17)))
        for expected in (5, 10, 15, 17):
            await seen.until(expected)
            await first.until_idle()
            await second.until_idle()
            assert len(seen.notes) == expected
            watch.advance(0.1)
        await app.idle()
    assert sorted(seen.notes) == list(range(1, 18))


@pytest.mark.asyncio
async def test_an_app_is_not_idle_while_messages_wait_for_the_limit(dsn: str) -> None:
    seen = Seen()
    app = App(dsn)

    @app.consumer("orders", rate_limit=100, rate_burst=1)
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        await app.publish_many("orders", numbered("abcdefgh"))
        await app.idle()
        assert len(seen.notes) == 8


@pytest.mark.asyncio
async def test_a_publish_while_waiting_for_the_limit_causes_no_lease_call(dsn: str) -> None:
    watch, seen = Watch(), Seen()
    async with working(dsn, watch, seen, rate_limit=0.001, rate_burst=1) as (app, fetcher):
        await app.publish("orders", "a", 1)
        await seen.until(1)
        await fetcher.until_idle()
        asked = fetcher._empty_calls.begun
        for number in range(2, 40):
            await app.publish("orders", "a", number)
        assert fetcher._empty_calls.begun <= asked + 1, "only the call that was in progress"
        app.stop()
    assert seen.notes == [1]
