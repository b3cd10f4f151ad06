"""Embedding an app: signals, logging, tasks of frameworks, and the death of a consumer.

Signals and logging are not changed, and the death of a consumer is always reported.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from aiohttp import web

from headrace import App, ConfigurationError, StoreUnavailable
from headrace.runtime.pipeline.fetcher import Fetcher
from tests.runtime.running import WITHIN, Gate, consumer, eventually, parked
from tests.support.logs import logged


class Bug(Exception):
    pass


@pytest.fixture
def app(dsn: str) -> App:
    app = App(dsn, streams=["orders"])

    @app.consumer("orders")
    async def ship() -> None: ...

    return app


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """A bug that, once it is set, kills every fetcher at its next iteration."""
    now = asyncio.Event()
    want = Fetcher._want

    def fails(fetcher: Fetcher) -> int:
        if now.is_set():
            raise Bug("a bug of ours")
        return want(fetcher)

    monkeypatch.setattr(Fetcher, "_want", fails)
    return now


def die(app: App, bug: asyncio.Event) -> None:
    """Make the consumers die, without waiting for it, because the app may be gone by then."""
    assert app._service is not None
    bug.set()
    for pipeline in app._service.pipelines:
        pipeline.fetcher.wake()


def _signals() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _logging() -> Any:
    loggers = [logging.getLogger(), logging.getLogger("headrace")]
    return [(one.level, list(one.handlers), list(one.filters), one.propagate) for one in loggers]


@pytest.mark.asyncio
async def test_signals_and_logging_are_left_alone(app: App) -> None:
    before = _signals(), _logging()
    async with app.running():
        await app.publish("orders", "a", 1)
        await app.idle()
        assert (_signals(), _logging()) == before
    assert (_signals(), _logging()) == before


@pytest.mark.asyncio
async def test_start_and_end_may_come_from_different_tasks(app: App) -> None:
    stack = AsyncExitStack()
    await asyncio.create_task(stack.enter_async_context(app.running()))
    assert app.readiness()
    await app.publish("orders", "a", 1)
    await app.idle()
    await asyncio.create_task(stack.aclose())
    assert not app.readiness()
    assert app.statistics() == {}


@pytest.mark.asyncio
async def test_the_end_may_come_in_another_order_than_scopes_would_allow(app: App) -> None:
    stack = AsyncExitStack()
    with anyio.CancelScope():  # closed before the context that was entered inside it
        await stack.enter_async_context(app.running())
    await app.publish("orders", "a", 1)
    await app.idle()
    await stack.aclose()


@pytest.mark.asyncio
async def test_an_error_at_the_start_is_raised_unchanged() -> None:
    app = App("postgresql://127.0.0.1:1/x")
    with pytest.raises(StoreUnavailable):
        async with app.running():
            raise AssertionError("it can't have started")
    assert not app.readiness()


@pytest.mark.asyncio
async def test_a_start_that_is_cancelled_leaves_nothing_behind(app: App) -> None:
    before = asyncio.all_tasks()
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with app.running():
            raise AssertionError("it was cancelled")
    assert asyncio.all_tasks() == before
    async with app.running():
        assert app.readiness()


@pytest.mark.asyncio
async def test_a_consumer_s_death_ends_the_block_and_is_raised(
    app: App, bug: asyncio.Event, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with asyncio.timeout(WITHIN), app.running():
            die(app, bug)
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await work()
    assert caught.value.subgroup(Bug)
    assert logged(caplog, "consumer failed", consumer="ship", stream="orders")
    assert not app.readiness()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.asyncio
async def test_a_death_unnoticed_by_the_block_makes_it_unready_and_is_raised_at_its_end(
    app: App, bug: asyncio.Event
) -> None:
    stack = AsyncExitStack()
    await asyncio.create_task(stack.enter_async_context(app.running()))  # a task that has ended by then
    die(app, bug)

    async def unready() -> bool:
        return not app.readiness()

    await eventually(unready)
    with pytest.raises(ExceptionGroup):
        await stack.aclose()


@pytest.mark.asyncio
async def test_an_error_of_the_block_and_a_death_are_both_reported(app: App, bug: asyncio.Event) -> None:
    async def work() -> None:
        async with app.running():
            try:
                die(app, bug)
                await asyncio.Event().wait()
            finally:
                raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        await work()
    assert caught.value.subgroup(ZeroDivisionError)
    assert caught.value.subgroup(Bug)


@pytest.mark.asyncio
async def test_aiohttp_goes_through_its_whole_end_when_a_consumer_dies(app: App, bug: asyncio.Event) -> None:
    ended: list[str] = []

    async def at_work(_web: web.Application) -> AsyncIterator[None]:
        async with app.running():
            yield

    async def other(_web: web.Application) -> AsyncIterator[None]:
        yield
        await asyncio.sleep(0)  # a scope that stays cancelled would interrupt this
        ended.append("other")

    server = web.Application()
    server.cleanup_ctx.extend([at_work, other])
    runner = web.AppRunner(server)

    async def run() -> None:  # as aiohttp.web.run_app does
        try:
            await runner.setup()
            die(app, bug)
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert caught.value.subgroup(Bug)
    assert ended == ["other"]


@pytest.mark.asyncio
async def test_a_block_that_is_cancelled_gives_back_what_is_not_finished(dsn: str) -> None:
    app, gate = App(dsn, streams=["orders"]), Gate()

    @app.consumer("orders")
    async def ship() -> None:
        await gate.wait()

    async def host() -> None:
        async with app.running():
            await app.publish("orders", "a", 1)
            await asyncio.Event().wait()

    async with app:
        task = asyncio.create_task(host())
        await gate.until(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.inside == 0
        assert [(row["seq"], row["attempts"]) for row in await parked(app)] == [(1, 0)]
        assert (await consumer(app, "ship")).in_flight == 0


@pytest.mark.asyncio
async def test_an_end_that_is_cancelled_stops_handlers_at_once(dsn: str) -> None:
    app, gate, ending = App(dsn, streams=["orders"], shutdown_timeout="1h"), Gate(), asyncio.Event()

    @app.consumer("orders")
    async def ship() -> None:
        await gate.wait()

    async def host() -> None:
        async with app.running():
            await app.publish("orders", "a", 1)
            await gate.until(1)
            ending.set()

    async with app:
        task = asyncio.create_task(host())
        await ending.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.inside == 0
        assert (await consumer(app, "ship")).in_flight == 0


@pytest.mark.asyncio
async def test_another_event_loop_is_told_and_breaks_nothing(app: App) -> None:
    """As when a view of Flask calls `asyncio.run(app.publish(…))`."""

    async def transaction() -> None:
        async with app.transaction() as tx:
            await tx.publish("orders", "k", 0)

    calls = [lambda: app.publish("orders", "k", 0), transaction, app.idle, lambda: app.admin.stream("orders")]

    def elsewhere() -> list[str]:
        said = []
        for call in calls:
            try:
                asyncio.run(call())  # type: ignore[arg-type]
            except ConfigurationError as error:
                said.append(str(error))
        return said

    async with app.running():
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(anyio.to_thread.run_sync, elsewhere)
            for number in range(100):
                await app.publish("orders", "k", number)
        said = await anyio.to_thread.run_sync(elsewhere)
        await anyio.to_thread.run_sync(
            lambda: asyncio.run_coroutine_threadsafe(app.publish("orders", "k", 100), loop).result(WITHIN)
        )
        await app.idle()
        stream = await app.admin.stream("orders")
        assert app.database.statistics()["died"] == 0
    assert len(said) == len(calls)
    assert all("connected in another event loop" in text for text in said)
    assert stream.last_seq == 101
