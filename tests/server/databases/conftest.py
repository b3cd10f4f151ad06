"""A server with a further database `eu`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
import pytest_asyncio

from headrace import App
from headrace.server.asgi import Server
from headrace.server.options import Options
from tests.server.calling import Api
from tests.support import servers

OPTIONS = Options(allowed_hosts=("headrace",), database_references=("env:HR_TEST_*",), push_allow=("loopback",))


@pytest.fixture(scope="module")
def home_dsn(server_dsn: str, template: str) -> Iterator[str]:
    """The URL of the server's own database."""
    with servers.clone(server_dsn, template) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def eu_dsn(server_dsn: str, template: str) -> Iterator[str]:
    """The URL of a second database, which `env:HR_TEST_EU` names."""
    with servers.clone(server_dsn, template) as dsn, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HR_TEST_EU", dsn)
        yield dsn


@asynccontextmanager
async def serving_here(dsn: str, options: Options = OPTIONS) -> AsyncIterator[Api]:
    """A server in this process."""
    app = App(dsn)
    server = Server(app, options)
    async with app.running():
        transport = httpx.ASGITransport(app=server)
        async with httpx.AsyncClient(transport=transport, base_url="http://headrace") as client:
            yield Api(client, server)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two(home_dsn: str, eu_dsn: str) -> AsyncIterator[Api]:
    """A server with a stream `orders` in its own database, and a database `eu` with a stream `visits`.
    The tests of a file share it, each with its own streams."""
    async with serving_here(home_dsn) as api:
        await api.stream("orders")
        await api.post("/databases", {"name": "eu", "url_from": "env:HR_TEST_EU"}, 201)
        await opened(api, "eu")
        await api.stream("visits", database="eu")
        yield api


async def opened(api: Api, *names: str) -> None:
    """Wait until the server has opened these databases."""
    for name in names:
        await (await api.server.databases.entry(name)).opened.wait()
