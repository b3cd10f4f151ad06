"""A journey of a running app: which process has a message in hand."""

from __future__ import annotations

import os
import socket

import anyio
import pytest

from headrace import App
from headrace.app.heartbeats import Heartbeats

pytestmark = pytest.mark.asyncio


async def test_the_journey_of_a_message_names_the_process_that_holds_it(dsn: str) -> None:
    app, started, release = App(dsn), anyio.Event(), anyio.Event()

    @app.consumer("orders")
    async def ship(order: int) -> None:
        started.set()
        await release.wait()

    async with app.running():
        await app.publish("orders", "a", 1)
        with anyio.fail_after(30):
            await started.wait()
        await Heartbeats(app.database, app.statistics).send()
        found = await app.admin.journey("orders", 1)
        release.set()
    assert found is not None
    [stop] = found.consumers
    assert (stop.consumer, stop.state, stop.attempt) == ("ship", "in_flight", 1)
    assert stop.owner is not None
    assert (stop.owner.host, stop.owner.pid) == (socket.gethostname(), os.getpid())
