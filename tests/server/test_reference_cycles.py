"""Requests leave no reference cycles. A cycle keeps bodies and messages until the garbage collector's next run, which counts
objects and not bytes, and a server lets it run rarely.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from headrace import App, store
from headrace.model.errors import StoreUnavailable
from headrace.model.specs import ConsumerSpec
from headrace.server.asgi import Server
from headrace.server.data_plane import receiver_watch
from headrace.server.options import Options
from headrace.server.transport.exchange import Exchange
from tests.server.raw import Answer, Client, connected, listening, request
from tests.support.cycles import no_cycles
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

STREAM = b"/v1/streams/orders"
CONSUMER = STREAM + b"/consumers/all"


class Calls:
    """A server, and requests to it.

    Attributes:
        headers: headers of each request. An unusual one takes it through ASGI.
    """

    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port
        self.headers: list[bytes] = []
        self._keys = 0

    async def send(self, client: Client, path: bytes, body: Any = None, method: bytes = b"POST") -> None:
        text = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        await client.send(request(text, *self.headers, method=method, path=path))

    async def ask(self, path: bytes, body: Any = None, method: bytes = b"POST") -> Answer:
        async with connected(self.port) as client:
            await self.send(client, path, body, method)
            return await client.answer()

    async def publish(self, key: str | None = None) -> Answer:
        """Publish a message, by default with a new key."""
        self._keys += 1
        return await self.ask(STREAM + b"/messages", {"key": key or f"k{self._keys}", "data": "x"})

    async def receive(self, wait: str = "0") -> list[str]:
        answer = await self.ask(CONSUMER + b"/receive", {"batch_size": 10, "wait_for": wait})
        return [one["ack_id"] for one in msgspec.json.decode(answer.body)["data"]]

    async def settle(self, verb: bytes, ack_ids: list[str], **more: Any) -> Answer:
        return await self.ask(CONSUMER + b"/" + verb, {"ack_ids": ack_ids, **more})

    async def until_watched(self) -> None:
        """Wait until the client of a request that waits for messages is watched."""
        receivers = self.server.engine._receivers
        await until(lambda: any(one.watching for each in receivers.values() for one in each._queue))


@pytest_asyncio.fixture
async def calls(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Calls]:
    monkeypatch.setattr(receiver_watch, "WATCH", 0.001)
    app = App(dsn, streams=["orders"])
    server = Server(app, Options())
    async with app.running():
        await app.admin.create_consumer(ConsumerSpec(stream="orders", name="all"))
        async with listening(server, server.limits) as port:
            yield Calls(server, port)


async def _work(calls: Calls) -> None:
    assert (await calls.publish()).status == 200
    assert (await calls.settle(b"ack", await calls.receive())).status == 200


async def _wait(calls: Calls) -> None:
    waiting = asyncio.create_task(calls.receive("60s"))
    await calls.until_watched()
    await calls.publish()
    await calls.settle(b"ack", await waiting)


async def _wait_in_vain(calls: Calls) -> None:
    assert await calls.receive("10ms") == []


async def _leave(calls: Calls) -> None:
    async with connected(calls.port) as client:
        await calls.send(client, CONSUMER + b"/receive", {"wait_for": "60s"})
        await calls.until_watched()
    await until(lambda: calls.server.limits.waiting == 0)


async def _settle_what_is_settled(calls: Calls) -> None:
    await calls.publish()
    ids = await calls.receive()
    assert (await calls.settle(b"nack", ids, delay_ms=3_600_000)).status == 200
    assert (await calls.settle(b"ack", ids, strict=True)).status == 409


async def _send_what_is_invalid(calls: Calls) -> None:
    assert (await calls.publish("no..key")).status == 422
    assert (await calls.ask(STREAM + b"/messages", b"{")).status == 400
    assert (await calls.settle(b"ack", ["odd"])).status == 422


async def _name_what_does_not_exist(calls: Calls) -> None:
    for path in (b"/v1/streams/none/messages", STREAM + b"/consumers/none/receive", b"/v1/none"):
        assert (await calls.ask(path, {"key": "a", "data": 1})).status in (404, 422)


async def _manage(calls: Calls) -> None:
    assert (await calls.ask(b"/v1/streams", method=b"GET")).status == 200
    assert (await calls.ask(b"/v1/streams", {"name": "no..stream"})).status == 422
    assert (await calls.ask(b"/v1/streams", {"name": "orders", "retain_up_to": 5})).status in (409, 422)
    assert (await calls.ask(b"/v1/streams/none", method=b"GET")).status == 404


async def _while_the_database_is_unavailable(calls: Calls) -> None:
    async def fails(*args: Any, **options: Any) -> Any:
        raise StoreUnavailable("away")

    await calls.publish()
    ids = await calls.receive()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("publish_all", "publish_many", "lease", "settle"):
            patch.setattr(store, name, fails)
        assert (await calls.publish()).status == 503
        assert (await calls.ask(CONSUMER + b"/receive")).status == 503
        assert (await calls.settle(b"ack", ids)).status == 503
        assert (await calls.settle(b"nack", ids)).status == 503


@pytest.mark.parametrize("headers", [[], [b"x-odd: 1"]], ids=["direct", "asgi"])
@pytest.mark.parametrize(
    "work",
    [
        _work,
        _wait,
        _wait_in_vain,
        _leave,
        _settle_what_is_settled,
        _send_what_is_invalid,
        _name_what_does_not_exist,
        _manage,
        _while_the_database_is_unavailable,
    ],
)
async def test_requests_leave_nothing_to_the_garbage_collector(
    calls: Calls, work: Callable[[Calls], Awaitable[None]], headers: list[bytes]
) -> None:
    calls.headers = headers
    await work(calls)  # what is looked up and compiled once
    with no_cycles():
        for _ in range(3):
            await work(calls)
        await until(lambda: not calls.server.limits.under_way)
        await asyncio.sleep(0)


async def test_an_idle_connection_keeps_no_request(calls: Calls) -> None:
    async with connected(calls.port) as client:
        await calls.send(client, STREAM + b"/messages", {"key": "a", "data": "x" * 10_000})
        assert (await client.answer()).status == 200
        await until(lambda: not calls.server.limits.under_way)
        assert [one for one in gc.get_objects() if isinstance(one, Exchange)] == []
