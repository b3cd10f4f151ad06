"""The engine's life beside an app: it ends when it is told to, however early, and may begin again."""

from __future__ import annotations

import asyncio

import pytest

from headrace import App
from headrace.server.engine import Engine

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
