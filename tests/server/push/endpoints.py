"""An endpoint that is pushed to: a real HTTP server on loopback, whose answers the test writes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from aiohttp import web

from headrace import App, store
from headrace.model.push import Push
from headrace.model.specs import ConsumerSpec
from headrace.server.push import Pushing
from tests.runtime.running import WITHIN

Answer = Callable[["Request"], Awaitable[web.StreamResponse]]


class Request:
    """A request that has come."""

    def __init__(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> Any:
        """The message, of a request that has one."""
        return self.json["message"]

    @property
    def messages(self) -> list[Any]:
        """The messages of a batch."""
        return [one["message"] for one in self.json["data"]]


async def ok(_request: Request) -> web.StreamResponse:
    return web.Response(text="thanks")


class Endpoint:
    """Attributes:
    requests: what has come, in order.
    answer: what is answered; 200 unless the test has put something else here.
    inside: how many are being answered ...
    most: ... and were, at most.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Answer = ok
        self.inside = self.most = 0
        self.url = ""
        self._news = anyio.Event()

    async def until(self, count: int) -> list[Request]:
        """Wait until so many have come. Returns them."""
        with anyio.fail_after(WITHIN):
            while len(self.requests) < count:
                await self._news.wait()
        return self.requests

    @property
    def keys(self) -> list[str]:
        """The keys of the messages that have come one by one."""
        return [request.message["key"] for request in self.requests]

    @property
    def data(self) -> list[Any]:
        return [request.message["data"] for request in self.requests]

    async def handle(self, raw: web.BaseRequest) -> web.StreamResponse:
        request = Request(raw.method, raw.path, raw.headers, await raw.read())
        self.requests.append(request)
        self._news.set()
        self._news = anyio.Event()
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            return await self.answer(request)
        finally:
            self.inside -= 1


@asynccontextmanager
async def listening(endpoint: Endpoint) -> AsyncIterator[Endpoint]:
    """The endpoint at work. At the end it doesn't wait for what it is still answering."""
    runner = web.ServerRunner(web.Server(endpoint.handle), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint.url = f"{site.name}/hook"
    try:
        yield endpoint
    finally:
        await runner.cleanup()


class Pushed:
    """An app whose push consumers a test makes and changes."""

    def __init__(self, app: App, pushing: Pushing) -> None:
        self.app = app
        self.pushing = pushing

    async def declare(self, url: str, name: str = "ship", stream: str = "orders", **settings: Any) -> int:
        """Make a push consumer, or change it. Settings that `Push` has are its, the others the consumer's. Returns its number."""
        push = {setting: settings.pop(setting) for setting in Push.__struct_fields__ if setting in settings}
        await store.create_stream(self.app.database, stream)
        spec = ConsumerSpec(stream=stream, name=name, push=Push(url=url, **push), **settings)
        declared = await store.declare_consumer(self.app.database, spec)
        self.pushing.look()
        return declared.id


@asynccontextmanager
async def pushing(dsn: str, *, allow: tuple[str, ...] = ("loopback",), **settings: Any) -> AsyncIterator[Pushed]:
    """A server process's part that pushes, at work."""
    app = App(dsn, **settings)
    pushed = Pushed(app, Pushing(allow))
    app.attach(pushed.pushing)
    async with app.running():
        yield pushed
