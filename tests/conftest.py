"""Real Postgres always: one server for the run, a fresh database for each test, and time in the test's hands."""

from __future__ import annotations

import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import hypothesis
import pytest
import pytest_asyncio

from headrace import store
from headrace.model.specs import ConsumerSpec
from tests.support import scratch, servers
from tests.support.readers import Clock, Reader

# How long an example takes says nothing on a machine that is shared.
hypothesis.settings.register_profile("headrace", deadline=None, print_blob=True)
hypothesis.settings.load_profile("headrace")


_scratch = pytest.StashKey[Path | None]()


def pytest_configure(config: pytest.Config) -> None:
    """Once for the run: its workers inherit both."""
    if not hasattr(config, "workerinput"):
        config.stash[_scratch] = scratch.move_to_memory()
    # A shell starts what it has in the background with SIGINT ignored, and so would be what tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """The last to leave takes the server's data away. As root that lies where the server's own user can enter, not with pytest's."""
    if not hasattr(session.config, "workerinput"):
        factory: pytest.TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined]
        servers.destroy(factory.getbasetemp() / "postgres")
        if place := session.config.stash[_scratch]:
            shutil.rmtree(place, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first, or at the end of a run all but one of its processes would wait for them."""
    items.sort(key=lambda item: "torture" not in item.path.parts)


@pytest.fixture(scope="session")
def server_dsn(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a Postgres server that all tests of this run share, as a superuser.

    `HEADRACE_TEST_DSN` names one of your own; otherwise it is an embedded one.
    """
    base = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        base = base.parent
    with servers.server(base / "postgres") as dsn:
        yield dsn


@pytest.fixture(scope="session")
def template(server_dsn: str) -> str:
    """The name of a database that has the schema, to be cloned."""
    return servers.ensure_template(server_dsn)


@pytest.fixture
def empty_dsn(server_dsn: str) -> Iterator[str]:
    """The URL of a fresh database without anything of Headrace's."""
    with servers.clone(server_dsn, None) as dsn:
        yield dsn


@pytest.fixture
def dsn(server_dsn: str, template: str) -> Iterator[str]:
    """The URL of a fresh database with the schema in it."""
    with servers.clone(server_dsn, template) as dsn:
        yield dsn


@pytest_asyncio.fixture
async def database(dsn: str) -> AsyncIterator[store.Database]:
    """An opened `Database` on a fresh database with the schema in it. For tests under `@pytest.mark.asyncio`."""
    async with servers.opened(dsn) as database:
        yield database


Connect = Callable[[], Awaitable[Any]]


@pytest_asyncio.fixture
async def connect(dsn: str) -> AsyncIterator[Connect]:
    """Opens plain connections beside the pool, for transactions that a test wants to leave open."""
    opened: list[Any] = []

    async def connect() -> Any:
        opened.append(await asyncpg.connect(dsn))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.terminate()


@pytest.fixture
def clock() -> Clock:
    """The time, which stands still until the test moves it."""
    return Clock()


Declare = Callable[..., Awaitable[Reader]]


@pytest_asyncio.fixture
async def declare(database: store.Database, clock: Clock) -> Declare:
    """Declares a consumer on the stream `orders`, with a `ConsumerSpec`'s settings, and hands out a reader for it."""
    await store.create_stream(database, "orders")

    async def declare(name: str = "ship", **settings: Any) -> Reader:
        spec = ConsumerSpec(stream="orders", name=name, **settings)
        declared = await store.declare_consumer(database, spec)
        return Reader(database, spec, declared.id, clock)

    return declare
