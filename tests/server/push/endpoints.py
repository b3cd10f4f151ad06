"""A push endpoint: a real HTTP server on loopback with answers that the test defines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
from aiohttp import web

from headrace import App, store
from headrace.model.push import Push
from headrace.model.records import ConsumerInfo
from headrace.model.specs import ConsumerSpec
from headrace.server.push import PushConsumers
from tests.runtime.running import WITHIN, eventually, parked
from tests.support.stacks import cancel_after

Answer = Callable[["Request"], Awaitable[web.StreamResponse]]


class Request:
    """A received request."""

    def __init__(self, raw: web.BaseRequest, body: bytes) -> None:
        self.raw = raw
        self.method = raw.method
        self.path = raw.path
        self.headers: Mapping[str, str] = raw.headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> Any:
        """Return the message of a request that has a single one."""
        return self.json["message"]

    @property
    def messages(self) -> list[Any]:
        """Return the messages of a batch."""
        return [one["message"] for one in self.json["data"]]


def always(status: int, text: str = "", **headers: str) -> Answer:
    """Return a behaviour with the same answer to every request. `_` in a header's name stands for `-`."""

    async def answer(_request: Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, text=text, headers=named)

    return answer


async def ok(_request: Request) -> web.StreamResponse:
    return web.Response(text="thanks")


class Endpoint:
    """A push endpoint that records its requests.

    Attributes:
        requests: The received requests, in order.
        answer: Makes the answer to a request. The default is 200.
        connections: The number of connections made so far.
        inside: The number of requests that are being answered now.
        highest: The highest value of `inside` so far.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Answer = ok
        self.connections = self.inside = self.highest = 0
        self.url = ""
        self._news = anyio.Event()

    async def until(self, count: int) -> list[Request]:
        """Wait until `count` requests have arrived. Returns them."""
        with anyio.fail_after(WITHIN):
            while len(self.requests) < count:
                await self._news.wait()
        return self.requests

    @property
    def keys(self) -> list[str]:
        """Return the keys of the messages that were sent one by one."""
        return [request.message["key"] for request in self.requests]

    @property
    def data(self) -> list[Any]:
        return [request.message["data"] for request in self.requests]

    async def handle(self, raw: web.BaseRequest) -> web.StreamResponse:
        request = Request(raw, await raw.read())
        self.requests.append(request)
        self._news.set()
        self._news = anyio.Event()
        self.inside += 1
        self.highest = max(self.highest, self.inside)
        try:
            return await self.answer(request)
        finally:
            self.inside -= 1


class Connections(web.Server):  # type: ignore[type-arg]
    """Counts connections, including those without a request."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint.handle)
        self._endpoint = endpoint

    def connection_made(self, handler: Any, transport: Any) -> None:
        self._endpoint.connections += 1
        super().connection_made(handler, transport)


@asynccontextmanager
async def listening(endpoint: Endpoint, port: int = 0) -> AsyncIterator[Endpoint]:
    """Run the endpoint, on any free port by default. At the end it does not wait for unfinished answers."""
    runner = web.ServerRunner(Connections(endpoint), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    endpoint.url = f"{site.name}/hook"
    try:
        yield endpoint
    finally:
        await runner.cleanup()


class PushApp:
    """An app with push consumers that a test creates and changes."""

    def __init__(self, app: App, push_consumers: PushConsumers) -> None:
        self.app = app
        self.push_consumers = push_consumers

    async def declare(self, url: str, name: str = "ship", stream: str = "orders", **settings: Any) -> int:
        """Create or change a push consumer. Returns its number.

        Settings that `Push` has are passed to it, the others to the consumer.
        """
        push = {setting: settings.pop(setting) for setting in Push.__struct_fields__ if setting in settings}
        await store.create_stream(self.app.database, stream)
        spec = ConsumerSpec(stream=stream, name=name, push=Push(url=url, **push), **settings)
        declared = await store.declare_consumer(self.app.database, spec)
        self.push_consumers.refresh()
        return declared.id

    async def info(self, name: str = "ship", stream: str = "orders") -> ConsumerInfo:
        return await store.consumer(self.app.database, stream, name)

    async def done(self, name: str = "ship") -> ConsumerInfo:
        """Wait until everything is settled, either acked or a dead dead_letter."""

        async def look() -> ConsumerInfo | None:
            info = await self.info(name)
            return None if info.lag or info.in_flight or info.parked else info

        found: ConsumerInfo = await eventually(look)
        return found

    async def parked(self, attempts: int) -> Any:
        """Wait for a message to be parked after this many attempts. Returns its row, with `due_in` in seconds."""

        async def look() -> Any:
            return next((row for row in await parked(self.app) if row["attempts"] == attempts), None)

        return await eventually(look)


@asynccontextmanager
async def running_push(
    dsn: str, *, allow: tuple[str, ...] = ("loopback",), refresh_interval: float = 2.0, app: App | None = None
) -> AsyncIterator[PushApp]:
    """Run the push consumers of a server process. A shutdown that hangs is cancelled."""
    app = app or App(dsn)
    push_app = PushApp(app, PushConsumers(allow, refresh_interval))
    app.attach(push_app.push_consumers)
    async with AsyncExitStack() as limit, app.running():
        try:
            yield push_app
        finally:
            limit.callback(cancel_after(WITHIN).cancel)
