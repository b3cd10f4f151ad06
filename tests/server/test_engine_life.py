"""The engine's lifetime beside an app. It stops on request, however early, and can start again."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from headrace import App
from headrace.model.errors import StoreUnavailable
from headrace.runtime.pipeline.shared import Shared
from headrace.server.data_plane.publish_batching import Incoming
from headrace.server.engine import Engine
from tests.runtime.running import eventually

pytestmark = pytest.mark.asyncio


async def test_an_engine_that_is_drained_before_it_has_begun_ends_and_works_the_next_time(dsn: str) -> None:
    app = App(dsn, streams=["orders"])
    engine = Engine(app)
    app.attach(engine)
    async with asyncio.timeout(30):
        with pytest.raises(ZeroDivisionError):
            async with app.running():
                raise ZeroDivisionError
        async with app.running():
            assert (await engine.stream("orders")).name == "orders"


async def test_an_engine_that_has_ended_before_the_rest_of_its_app_works_the_next_time(dsn: str) -> None:
    app = App(dsn, streams=["orders"])
    engine = Engine(app)
    app.attach(engine)
    run, started, ended = engine.run, asyncio.Event(), asyncio.Event()

    async def run_and_signal(shared: Shared) -> None:
        started.set()
        await run(shared)
        ended.set()

    engine.run = run_and_signal  # type: ignore[method-assign]

    async def publishes() -> bool:
        messages = Incoming()
        messages.add("k", "1")
        try:
            return await engine.publish(await engine.stream("orders"), messages) == 1
        except StoreUnavailable:  # it has not started yet
            return False

    async with asyncio.timeout(30):
        async with app.running():
            await started.wait()
            app.stop()
            await ended.wait()  # then the end of the block drains what is still running
        async with app.running():
            await eventually(publishes)


async def test_a_request_that_comes_while_the_engine_ends_is_answered(dsn: str) -> None:
    app = App(dsn, streams=["orders"])
    engine = Engine(app)
    app.attach(engine)

    async def is_up() -> bool:
        return engine._group is not None

    async with asyncio.timeout(60), app:
        stream = await engine.stream("orders")
        for coalescer in range(12):  # turns of the loop between the start of the shutdown and the request
            async with app.running():
                await eventually(is_up)
                engine.hurry()
                for _ in range(coalescer):
                    await asyncio.sleep(0)
                messages = Incoming()
                messages.add("k", "1")
                with suppress(StoreUnavailable):
                    await engine.publish(stream, messages)
