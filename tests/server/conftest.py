"""An engine on its own database, and consumers that tests receive from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import httpx
import pytest
import pytest_asyncio

from headrace import App
from headrace.model.specs import ConsumerSpec
from headrace.server.asgi import Server
from headrace.server.data_plane.registry import CachedConsumer
from headrace.server.engine import Engine
from headrace.server.options import Options
from tests.server.calling import Api
from tests.support import servers
from tests.torture.http_servers import ServerProcess

Consume = Callable[..., Awaitable[CachedConsumer]]


@pytest_asyncio.fixture
async def engine(dsn: str) -> AsyncIterator[Engine]:
    """A running engine with a stream `orders`."""
    app = App(dsn, streams=["orders"])
    engine = Engine(app)
    app.attach(engine)
    async with app.running():
        yield engine


@pytest_asyncio.fixture
async def consume(engine: Engine) -> Consume:
    """Return a function that creates a consumer of `orders` with settings of `ConsumerSpec`."""

    async def consume(name: str = "ship", **settings: object) -> CachedConsumer:
        await engine.app.admin.create_consumer(ConsumerSpec(stream="orders", name=name, **settings))  # type: ignore[arg-type]
        return await engine.consumer("orders", name)

    return consume


@pytest_asyncio.fixture
async def api(dsn: str) -> AsyncIterator[Api]:
    """A server in this process, called under both prefixes in turn."""
    app = App(dsn)
    server = Server(app, Options(allowed_hosts=("headrace",)))
    async with app.running():
        transport = httpx.ASGITransport(app=server)
        async with httpx.AsyncClient(transport=transport, base_url="http://headrace") as client:
            yield Api(client, server)


@pytest.fixture(scope="session")
def served_url(server_dsn: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a `headrace serve` that tests share. Each test uses its own names of streams and consumers."""
    with servers.clone(server_dsn, template) as dsn:
        server = ServerProcess(dsn, tmp_path_factory.mktemp("served") / "server.log")
        try:
            server.start()
            yield server.url
        finally:
            assert server.stop() in (0, None), server.last_words()
