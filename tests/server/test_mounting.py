"""The API is the same inside another application, below any path, behind any middleware, in any framework."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import fastapi
import httpx
import litestar
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Mount

from headrace import App
from headrace.server.asgi import Server
from headrace.server.http import SEND_RESPONSE
from headrace.server.options import Options
from tests.server.raw import connected, limits, listening, request

pytestmark = pytest.mark.asyncio

Web = Callable[[Any, Any, Any], Awaitable[None]]


@pytest_asyncio.fixture
async def server(dsn: str) -> AsyncIterator[Server]:
    app = App(dsn, streams=["orders"])
    server = Server(app, Options(max_body=100_000))
    async with app.running():
        yield server


def _in_fastapi(server: Server) -> Web:
    web = fastapi.FastAPI()

    @web.middleware("http")
    async def through(request: fastapi.Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-through"] = "yes"
        return response

    web.mount("/a/b", server)
    return web


def _in_starlette(server: Server) -> Web:
    async def through(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    web = Starlette(routes=[Mount("/a", routes=[Mount("/b", app=server)])])
    web.add_middleware(BaseHTTPMiddleware, dispatch=through)
    return web


def _in_litestar(server: Server) -> Web:
    return litestar.Litestar([litestar.asgi("/a/b", is_mount=True, copy_scope=True)(server)])  # type: ignore[return-value]


def _whole_path(server: Server) -> Web:
    """A host that follows the specification: the path contains the root path."""

    async def web(scope: Any, receive: Any, send: Any) -> None:
        await server({**scope, "root_path": "/a/b"}, receive, send)

    return web


def _rest_of_path(server: Server) -> Web:
    """A host that deviates from it: the path is what follows the root path."""

    async def web(scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"].removeprefix("/a/b")
        await server({**scope, "root_path": "/a/b", "path": path}, receive, send)

    return web


def _without_root(server: Server) -> Web:
    async def web(scope: Any, receive: Any, send: Any) -> None:
        await server({**scope, "path": scope["path"].removeprefix("/a/b")}, receive, send)

    return web


HOSTS = [_in_fastapi, _in_starlette, _in_litestar, _whole_path, _rest_of_path, _without_root]


def _as_by_any_server(web: Web) -> Web:
    """Remove the additions of our own web server for an application that stands alone."""

    async def called(scope: Any, receive: Any, send: Any) -> None:
        await web({name: value for name, value in scope.items() if name != SEND_RESPONSE}, receive, send)

    return called


@asynccontextmanager
async def _client(web: Web) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application on a real port, so that clients can disconnect."""
    bounds = limits()
    async with (
        listening(_as_by_any_server(web), bounds) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/a/b", timeout=30) as client,
    ):
        yield client


@pytest.mark.parametrize("host", HOSTS)
async def test_all_of_it_works_below_a_path(server: Server, host: Callable[[Server], Web]) -> None:
    async with _client(host(server)) as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        assert (await client.get("/ready")).status_code == 200
        for prefix in ("/v1", "/api"):
            name = prefix.strip("/")
            created = await client.post(f"{prefix}/streams/orders/consumers", json={"name": name})
            assert created.status_code == (201 if name == "v1" else 200), created.text
            sent = await client.post(f"{prefix}/streams/orders/messages", json={"key": name, "data": {"a": "ö"}})
            assert sent.json() == {"data": {"published": 1}}
            where = f"{prefix}/streams/orders/consumers/{name}"
            [got, *_] = (await client.post(f"{where}/receive", json={"batch_size": 10})).json()["data"]
            assert got["message"]["data"] == {"a": "ö"}
            answer = await client.post(f"{where}/ack", json={"ack_ids": [got["ack_id"]], "strict": True})
            assert answer.json() == {"success": True}
            assert (await client.get(where)).json()["name"] == name
        if host is _in_fastapi:
            assert sent.headers["x-through"] == "yes"
        assert (await client.get("/openapi.json")).json()["openapi"].startswith("3.1")
        absent = await client.get("/v1/nothing")
        assert (absent.status_code, set(absent.json())) == (404, {"summary", "code"})
        assert "headrace_server_messages_published_total 2" in (await client.get("/metrics")).text


@pytest.mark.parametrize("host", HOSTS)
async def test_limits_hold_for_the_data_plane_and_for_the_rest(server: Server, host: Callable[[Server], Web]) -> None:
    async with _client(host(server)) as client:
        for path in ("/v1/streams/orders/messages", "/v1/streams"):
            answer = await client.post(path, content=b"x" * 100_001)
            assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("host", HOSTS)
async def test_a_client_that_goes_away_while_it_waits_costs_nothing(
    server: Server, host: Callable[[Server], Web]
) -> None:
    bounds = limits()
    async with listening(_as_by_any_server(host(server)), bounds) as port:  # noqa: SIM117 - the client ends first
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/a/b") as client:
            await client.post("/v1/streams/orders/consumers", json={"name": "ship"})
            path = b"/a/b/v1/streams/orders/consumers/ship/receive?wait_for=10m"
            async with connected(port) as disconnecting:
                await disconnecting.send(request(path=path, method=b"GET"))
                await _until(lambda: server.limits.waiting == 1)
            await _until(lambda: server.limits.waiting == 0)
            await client.post("/v1/streams/orders/messages", json={"key": "a", "data": 1})
            [got] = (await client.get("/v1/streams/orders/consumers/ship/receive")).json()["data"]
            assert got["message"]["attempt"] == 1


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a number without events
            await asyncio.sleep(0.001)


async def test_other_paths_than_the_one_below_which_it_is_mounted_are_not_taken_for_it(server: Server) -> None:
    async with _client(_whole_path(server)) as client:
        answer = await client.get(str(client.base_url).rstrip("/") + "c/health")
        assert answer.status_code == 404


async def test_a_mounted_server_reports_that_the_app_does_not_run(dsn: str) -> None:
    async with _client(_whole_path(Server(App(dsn)))) as client:
        answer = await client.get("/v1/streams/orders/consumers/ship/receive")
        assert answer.status_code in (422, 503)
        assert (await client.get("/ready")).status_code == 503


async def test_web_servers_of_one_process_start_and_stop_on_their_own() -> None:
    """All servers of a process share one application of the management API. The first one to stop must not end it."""
    told: list[tuple[str, str]] = []
    starts = {name: asyncio.Event() for name in "ab"}
    stops = {name: asyncio.Event() for name in "ab"}

    async def live(name: str) -> None:
        events = iter(("lifespan.startup", "lifespan.shutdown"))

        async def receive() -> dict[str, str]:
            event = next(events)
            if event == "lifespan.shutdown":
                await stops[name].wait()
            return {"type": event}

        async def send(message: dict[str, Any]) -> None:
            told.append((name, message["type"]))
            starts[name].set()

        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        await Server(App("postgresql://h/d"))(scope, receive, send)

    lives = {name: asyncio.create_task(live(name)) for name in "ab"}
    for name in "ab":
        await starts[name].wait()
    for name in "ab":
        stops[name].set()
        await lives[name]
    assert told == [
        *((name, "lifespan.startup.complete") for name in "ab"),
        *((name, "lifespan.shutdown.complete") for name in "ab"),
    ]
