"""Requests that arrive in one piece are answered without ASGI, and all others as before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from headrace import App
from headrace.server.asgi import Server
from headrace.server.http import Response
from headrace.server.options import Options
from headrace.server.transport.exchange import Exchange, is_common
from headrace.server.transport.limits import Limits
from headrace.server.transport.listener import Address, Listener
from tests.server.raw import connected, echo, limits, request

pytestmark = pytest.mark.asyncio

Answer = Callable[[Exchange], Coroutine[Any, Any, None]]


async def direct(exchange: Exchange) -> None:
    await exchange.respond(Response(200, b'"direct %d"' % len(exchange.body)))


@asynccontextmanager
async def listening(bounds: Limits, answer: Answer = direct) -> AsyncIterator[int]:
    """Listen for requests, of which those to `/direct` are answered by `answer`."""
    listener = Listener(
        bounds.around(echo(bounds)), bounds, find_endpoint=lambda _, path: answer if path == "/direct" else None
    )
    bound = Address("127.0.0.1", 0).bind()
    await listener.open([bound])
    try:
        yield bound.getsockname()[1]
    finally:
        with anyio.CancelScope(shield=True):
            await listener.abort()


async def test_a_request_in_one_piece_is_answered_at_once_and_one_in_two_by_asgi() -> None:
    bounds = limits()
    async with listening(bounds) as port, connected(port) as client:
        whole = request(b"12345", b"content-type: application/json", path=b"/direct?a=b")
        for _ in range(2):
            answer = await client.ask(whole)
            assert (answer.status, answer.body) == (200, b'"direct 5"')
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["content-type"] == "application/json"
            assert "date" in answer.headers
        await client.send(whole[:-3])
        async with connected(port) as other:  # once it is answered, the first piece has been read
            assert (await other.ask(request())).status == 200
        assert (await client.ask(whole[-3:])).body == b"5"
        assert (await client.ask(request(b"123"))).body == b"3"


@pytest.mark.parametrize(
    "header",
    [b"origin: http://localhost", b"x-odd: 1", b"accept: a\r\naccept: b", b"upgrade: x"],
)
async def test_an_unusual_head_is_left_to_asgi(header: bytes) -> None:
    async with listening(limits()) as port, connected(port) as client:
        answer = await client.ask(request(b"", header, path=b"/direct"))
        assert answer.body == b"0"
    assert not is_common([(b"host", b"a"), (b"host", b"a")])
    assert not is_common([(b"accept", b"a")])


@pytest.mark.parametrize("target", [b"/%64irect", b"/direct/", b"/direct#a", b"/direct?" + b"a" * 600])
async def test_an_unusual_target_is_left_to_asgi(target: bytes) -> None:
    async with listening(limits()) as port, connected(port) as client:
        assert (await client.ask(request(b"123", path=target))).body == b"3"


async def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    release = asyncio.Event()

    async def later(exchange: Exchange) -> None:
        await release.wait()
        await direct(exchange)

    async with listening(limits(), later) as port, connected(port) as client:
        await client.send(request(b"1", path=b"/direct") + request(b"22") + request(b"333", path=b"/direct"))
        release.set()
        assert [(await client.answer()).body for _ in range(3)] == [b'"direct 1"', b"2", b"3"]


async def test_a_client_that_leaves_is_noticed_while_its_request_waits() -> None:
    left = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        assert (await exchange.receive())["type"] == "http.disconnect"
        await direct(exchange)  # nothing is sent any more
        left.set()

    async with listening(limits(), wait) as port:
        async with connected(port) as client:
            await client.send(request(path=b"/direct"))
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await left.wait()


async def test_a_connection_ends_as_the_client_asks() -> None:
    async with listening(limits()) as port, connected(port) as client:
        answer = await client.ask(request(b"", b"connection: close", path=b"/direct"))
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.end() == b""


async def test_the_limits_and_checks_of_the_server_hold(dsn: str) -> None:
    app = App(dsn, streams=["orders"])
    server = Server(app, Options(max_body=100, max_requests=1))
    listener = Listener(server, server.limits, find_endpoint=server.find_endpoint)
    bound = Address("127.0.0.1", 0).bind()
    path = b"/v1/streams/orders/messages"
    body = b'{"key":"a","data":1}'
    async with app.running():
        await listener.open([bound])
        async with connected(bound.getsockname()[1]) as client:
            assert (await client.ask(request(body, path=path))).body == b'{"data":{"published":1}}'
            assert (await client.ask(request(b" " * 101, path=path))).code == "too_large"
            assert (await client.ask(request(b"{", path=path))).status == 400
            assert (await client.ask(request(body, path=path + b"?odd=1"))).status == 422
            foreign = request(body, path=path).replace(b"host: localhost", b"host: evil.example")
            assert (await client.ask(foreign)).code == "host_not_allowed"
            browser = request(body, b"user-agent: Mozilla/5.0", b"content-type: text/plain", path=path)
            assert (await client.ask(browser)).code == "unsupported_media_type"
            server.limits.begin()
            assert (await client.ask(request(body, path=path))).code == "too_many_requests_under_way"
            server.limits.end({})
            assert (await client.ask(request(body, path=path))).status == 200
        assert (server.limits.under_way, server.limits.held) == (0, 0)
        assert server.limits.refused == {413: 1, 403: 1, 415: 1, 503: 1}
        await listener.abort()
