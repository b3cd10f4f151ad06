"""Handlers that fail leave no reference cycles, which would keep their messages until the garbage collector's next run."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import copy_context

import anyio
import pytest

from headrace import App, Message
from headrace.runtime.isolation import in_context
from tests.runtime.running import running
from tests.support.cycles import no_cycles

pytestmark = pytest.mark.asyncio


def _failing() -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(future.set_exception, RuntimeError("failed"))
    return future


async def _handled() -> None:
    with suppress(RuntimeError):
        await _failing()


async def test_an_error_of_a_future_that_a_handler_has_handled() -> None:
    with no_cycles():
        await in_context(copy_context(), _handled)
        await asyncio.sleep(0)


@pytest.mark.parametrize("typed", [False, True], ids=["message", "payload"])
async def test_a_handler_that_was_stopped_by_its_timeout(app: App, typed: bool) -> None:
    async def whole(message: Message) -> None:
        await anyio.sleep_forever()

    async def part(number: int) -> None:
        await anyio.sleep_forever()

    app.consumer("orders", timeout="10ms", max_deliver=1)(part if typed else whole)
    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        with no_cycles():
            await app.publish("orders", "b", 2)
            await app.idle()
            await asyncio.sleep(0)
