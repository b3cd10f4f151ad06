"""No answer may be kept by a cache, since each is for one caller and one moment. A browser takes none for a page."""

from __future__ import annotations

import json

import pytest

from headrace import App
from headrace.server.asgi import Server
from headrace.server.options import Options
from tests.server.calling import Api
from tests.server.raw import connected, listening, request
from tests.support.paths import filled

pytestmark = pytest.mark.asyncio


async def _check_all_routes(api: Api) -> int:
    paths = (await api.client.get("/openapi.json")).json()["paths"]
    calls = 0
    for path, methods in [
        *paths.items(),
        ("/docs", {"get": {}}),
        ("/openapi.json", {"get": {}}),
        ("/nowhere", {"get": {}}),
    ]:
        for method in [*methods, "options", "head", "trace"]:
            for body in (None, {}, "no object"):
                answer = await api.client.request(method, filled(path), json=body)
                assert answer.headers.get_list("cache-control") == ["no-store"], (method, path, answer.status_code)
                assert answer.headers.get_list("x-content-type-options") == ["nosniff"], (method, path)
                calls += 1
    return calls


async def test_every_answer_forbids_caches_to_keep_it(api: Api) -> None:
    await api.stream()
    await api.consumer()
    await api.post("/sources", {"kind": "webhook", "name": "hook", "stream": "orders"}, 201)
    assert await _check_all_routes(api) > 200
    answer = await api.client.get("/v1/streams", headers={"host": "evil.example"})
    assert (answer.status_code, answer.headers["cache-control"]) == (403, "no-store")
    await api.post("/tokens", {"name": "ops", "scopes": ["admin"]}, 201)
    assert await _check_all_routes(api) > 200


async def test_also_the_answers_that_a_connection_writes_itself(dsn: str) -> None:
    app = App(dsn, streams=["orders"])
    server = Server(app, Options(max_body=100, max_head=1000, discard_time=0.1))
    message = json.dumps({"key": "k", "data": 1}).encode()
    async with app.running(), listening(server, server.limits) as port:
        for sent, status in (
            (request(message, path=b"/v1/streams/orders/messages"), 200),
            (request(b"{", path=b"/v1/streams/orders/messages"), 400),
            (request(b"", path=b"/v1/streams", method=b"GET"), 200),
            (request(b"", path=b"/health", method=b"GET"), 200),
            (request(b"x" * 200, path=b"/v1/streams"), 413),
            (b"no HTTP\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nx: " + b"y" * 2000 + b"\r\n\r\n", 431),
        ):
            async with connected(port) as client:
                answer = await client.ask(sent)
            assert (answer.status, answer.headers["cache-control"]) == (status, "no-store"), sent
            assert answer.headers["x-content-type-options"] == "nosniff", sent
