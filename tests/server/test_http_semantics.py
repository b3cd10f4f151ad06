"""HTTP itself: methods, HEAD, keep-alive of HTTP/1.0, encodings of bodies, and requests that were sent ahead."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from headrace import App
from headrace.server.asgi import Server
from headrace.server.litestar_app import management
from headrace.server.options import Options
from tests.server.calling import Api
from tests.server.raw import Client, connected, echo, limits, listening, request

pytestmark = pytest.mark.asyncio

NAMES = {
    "stream:str": "orders", "consumer:str": "ship", "key:str": "a", "seq:int": "1", "source:str": "hook", "schedule:str": "s",
    "database:str": "d", "token:str": "t", "job:str": "j", "path:str": "x",
}  # fmt: skip
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@pytest_asyncio.fixture
async def orders(api: Api) -> Api:
    """A server with a stream, a consumer and a message."""
    await api.post("/streams", {"name": "orders"}, status=201)
    await api.post("/streams/orders/consumers", {"name": "ship"}, status=201)
    await api.post("/streams/orders/messages", {"key": "a", "data": 1})
    return api


@pytest_asyncio.fixture
async def served(dsn: str) -> AsyncIterator[Client]:
    """A connection to a server with a stream, a consumer and two messages."""
    app = App(dsn, streams=["orders"])
    server = Server(app)
    async with app.running(), listening(server, server.limits) as port, connected(port) as client:
        await client.ask(request(b'{"name":"ship"}', path=b"/v1/streams/orders/consumers"))
        for _ in range(2):
            await client.ask(request(b'{"key":"a","data":1}', path=b"/v1/streams/orders/messages"))
        yield client


# --- methods


def _paths() -> dict[str, set[str]]:
    """All paths of the API and their methods, as its description has them."""
    found: dict[str, set[str]] = {}
    for route in management().routes:
        path = route.path
        for name, value in NAMES.items():
            path = path.replace("{" + name + "}", value)
        found.setdefault(path, set()).update(getattr(route, "methods", ()))
    return found


async def test_a_refused_method_is_answered_with_all_methods_of_the_path(orders: Api) -> None:
    paths = _paths()
    paths |= {path: {"GET"} for path in ("/health", "/ready", "/metrics", "/console", "/console/static/x/style.css")}
    for path, methods in sorted(paths.items()):
        expected = methods | ({"HEAD"} if "GET" in methods else set())
        if "/webhook/" in path:
            expected = {"POST"}
        for method in {*METHODS, "TRACE"} - expected:
            answer = await orders.client.request(method, path)
            assert answer.status_code == 405, (method, path)
            assert set(answer.headers["allow"].split(", ")) == expected, (method, path)


# --- HEAD


async def test_head_is_answered_as_get_without_a_body(orders: Api) -> None:
    """Of every path with GET. A path of an object that does not exist is a 404 in both."""
    for path, methods in sorted(_paths().items()):
        if "GET" in methods and not path.endswith(("receive", "next")):
            got = await orders.client.get(path)
            answer = await orders.client.head(path)
            assert answer.content == b"", path
            assert answer.status_code == got.status_code, path
            assert set(answer.headers) == set(got.headers), path
            if "/live" not in path and not path.endswith(("/metrics", "/samples", "/export")):
                assert answer.headers["content-length"] == str(len(got.content)), path


@pytest.mark.parametrize(
    "path", ["streams/orders/consumers/ship/receive", "http_pull_consumers/ship/receive", "http-consumers/ship/next"]
)
async def test_head_of_a_receive_leases_nothing(orders: Api, path: str) -> None:
    answer = await orders.client.head(f"/v1/{path}?batch_size=1&wait_for=60s")
    assert (answer.status_code, answer.content) == (200, b"")
    assert len((await orders.get(f"/{path}"))["data"]) == 1
    assert (await orders.client.head(f"/v1/{path.replace('ship', 'other')}")).status_code == 404
    assert (await orders.client.head(f"/v1/{path}?batch=1")).status_code == 422


async def test_a_connection_continues_after_head(served: Client) -> None:
    """The answer is a head only, so the next byte is the next answer."""
    path = b"/v1/streams/orders/consumers/ship/receive"
    for _ in range(2):
        await served.send(request(method=b"HEAD", path=path))
        head = await served.head()
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"content-length: " in head
    assert (await served.ask(request(method=b"GET", path=path))).body.count(b"ack_id") == 1


# --- HTTP/1.0


def _old(*headers: bytes, path: bytes = b"/v1/streams") -> bytes:
    return b"\r\n".join((b"GET " + path + b" HTTP/1.0", *headers, b"", b""))


@pytest.mark.parametrize("path", [b"/v1/streams", b"/health", b"/v1/streams/orders/consumers/ship/receive", b"/none"])
async def test_a_client_of_http_1_0_keeps_its_connection_if_it_asks_for_it(served: Client, path: bytes) -> None:
    for _ in range(2):
        answer = await served.ask(_old(b"Connection: Keep-Alive", path=path))
        assert answer.headers["connection"] == "keep-alive"
    answer = await served.ask(_old(path=path))
    assert answer.headers["connection"] == "close"
    assert await served.end() == b""


# --- encodings of bodies


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate, gzip"])
@pytest.mark.parametrize("path", ["streams/orders/messages", "streams", "streams/orders/consumers/ship/ack"])
async def test_an_encoded_body_is_refused_with_what_would_be_right(orders: Api, encoding: str, path: str) -> None:
    body = gzip.compress(b'{"key":"a","data":1}')
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    answer = await orders.client.post(f"/v1/{path}", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert answer.headers["accept-encoding"] == "identity"
    assert encoding in answer.json()["summary"]
    assert "Content-Encoding" in answer.json()["summary"]


async def test_a_body_whose_encoding_is_none_is_read(orders: Api) -> None:
    headers = {"content-encoding": "identity", "content-type": "application/json"}
    answer = await orders.client.post("/v1/streams/orders/messages", content=b'{"key":"a","data":1}', headers=headers)
    assert answer.json() == {"data": {"published": 1}}
    answer = await orders.client.get("/v1/streams", headers={"content-encoding": "gzip"})  # it has no body
    assert answer.status_code == 200


async def test_an_encoded_delivery_of_a_webhook_is_refused(orders: Api) -> None:
    await orders.post("/sources", {"kind": "webhook", "name": "hook", "stream": "orders"}, status=201)
    answer = await orders.client.post(
        "/api/webhook/hook", content=gzip.compress(b"{}"), headers={"content-encoding": "gzip"}
    )
    assert answer.status_code == 415


# --- requests that were sent ahead

PUBLISH = request(b'{"key":"a","data":1}', path=b"/v1/streams/orders/messages")
RECEIVE = request(path=b"/v1/streams/orders/consumers/ship/receive")
MALFORMED = (
    b"NO HTTP\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
)


@pytest.mark.parametrize("malformed", MALFORMED)
@pytest.mark.parametrize(
    "ahead", [[PUBLISH], [RECEIVE], [PUBLISH, RECEIVE, PUBLISH], [_old(b"Connection: keep-alive")]]
)
async def test_a_malformed_request_loses_no_answer_of_those_before_it(
    served: Client, ahead: list[bytes], malformed: bytes
) -> None:
    await served.send(b"".join(ahead) + malformed + PUBLISH)
    for _ in ahead:
        assert (await served.answer()).status == 200
    refused = await served.answer()
    assert (refused.status, refused.code) == (400, "malformed")
    assert await served.end() == b""  # what follows is not read


async def test_a_head_that_is_too_slow_loses_no_answer_of_the_request_before_it(dsn: str) -> None:
    app = App(dsn, streams=["orders"])
    server = Server(app, Options(head_timeout=0.5))
    async with app.running(), listening(server, server.limits) as port, connected(port) as client:
        await client.ask(request(b'{"name":"ship"}', path=b"/v1/streams/orders/consumers"))
        receive = request(path=b"/v1/streams/orders/consumers/ship/receive?wait_for=1000")
        await client.send(receive + b"GET / HTTP/1.1\r\nho")
        assert (await client.answer()).body == b'{"data":[]}'
        assert (await client.answer()).status == 408
        assert await client.end() == b""


async def test_a_client_that_wants_its_connection_closed_gets_one_answer() -> None:
    bounds = limits()
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        assert (await client.ask(request(b"a", b"connection: close") + MALFORMED[0])).body == b"1"
        assert await client.end() == b""
