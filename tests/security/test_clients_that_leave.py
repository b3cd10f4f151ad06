"""A client that sends costly requests and disconnects leaves no work behind."""

from __future__ import annotations

from contextlib import AsyncExitStack
from urllib.parse import quote

import pytest

from headrace import store
from headrace.server.asgi import CLIENT_DISCONNECTED
from headrace.server.options import Options
from headrace.server.transport.limits import Limits
from tests.runtime.running import eventually
from tests.server.calling import Api
from tests.server.raw import connected, listening, request

CONDITION = {"field": "data.x", "op": ">", "value": 0}


@pytest.mark.asyncio
async def test_requests_in_line_to_examine_messages_end_with_their_clients(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they wait, and without having leased anything afterwards."""
    await api.stream("orders")
    await api.consumer("slow", "orders", where=CONDITION)
    leased: list[object] = []
    monkeypatch.setattr(store, "lease", lambda *args, **options: leased.append(args))
    listing = request(method=b"GET", path=b"/v1/streams/orders/messages?where=" + quote("data.x > 0").encode())
    receiving = request(b"{}", b"content-type: application/json", path=b"/v1/streams/orders/consumers/slow/receive")
    server = api.server

    async def waiting() -> bool:
        return server.limits.under_way == 3

    async def left() -> bool:
        status = ("status", str(CLIENT_DISCONNECTED))
        samples = server.monitoring.requests.samples()
        return sum(value for name, labels, value in samples if name == "_count" and status in labels) == 3

    async with (
        listening(server, Limits(Options())) as port,
        server.app.database.judging("orders"),  # so that no other call gets a place
    ):
        async with AsyncExitStack() as clients:
            for line in (listing, listing, receiving):
                client = await clients.enter_async_context(connected(port))
                await client.send(line)
            await eventually(waiting)
        await eventually(left)
    assert server.limits.under_way == 0
    assert leased == []
