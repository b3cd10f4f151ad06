"""Shared fixtures: one real Postgres server for the run, a fresh database for each test, and a clock
that tests control.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import hypothesis
import pytest
import pytest_asyncio

from headrace import store
from headrace.app import heartbeats
from headrace.model.specs import ConsumerSpec
from tests.support import scratch, servers, tiers
from tests.support.readers import Clock, Reader
from tests.support.termination import Stacks, Termination

# Hypothesis deadlines mean nothing on a shared machine.
hypothesis.settings.register_profile(
    "headrace", deadline=None, print_blob=True, max_examples=int(os.environ.get("HEADRACE_TEST_EXAMPLES", "50"))
)
hypothesis.settings.load_profile("headrace")

LONGEST = frozenset({"torture", "benchmarks", "upgrade"})
"""The folders with tests of many seconds each."""

_scratch = pytest.StashKey[Path | None]()


def pytest_configure(config: pytest.Config) -> None:
    """Set the temporary directory once for the run. The pytest-xdist workers inherit it."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Stacks())
    else:
        config.stash[_scratch] = scratch.move_to_memory()
        config.pluginmanager.register(Termination(config))
    # A shell starts background processes with SIGINT ignored. Processes that tests start and interrupt
    # would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """The last process to end removes the server's data. As root the data lies where the server's own
    user has access, not in pytest's directory.
    """
    if not hasattr(session.config, "workerinput"):
        factory: pytest.TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined]
        servers.destroy(factory.getbasetemp() / "postgres")
        if place := session.config.stash[_scratch]:
            shutil.rmtree(place, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from what is collected: half a million objects that live as long as the run.
    It would look through them again and again, here and in every test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier and sort the longest tests first. Otherwise all processes but one
    would wait for them at the end of a run.
    """
    for item in items:
        item.add_marker(tiers.tier_of(item))
    items.sort(key=lambda item: LONGEST.isdisjoint(item.path.parts))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write half of a surrogate pair in what a test logged as an escape: the processes of a run can't send it."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with tiers.guarded(item):
        return (yield)


@pytest.fixture(autouse=True)
def process_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that are called in this process set its kind, which must not reach other tests."""
    monkeypatch.setattr(heartbeats, "_kind", "embedded")


@pytest.fixture(scope="session")
def server_dsn(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the URL of the Postgres server that all tests of this run share, as a superuser.

    Set `HEADRACE_TEST_DSN` to use your own server. The default is an embedded server.
    """
    base = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        base = base.parent
    with servers.server(base / "postgres") as dsn:
        yield dsn


@pytest.fixture(scope="session")
def template(server_dsn: str) -> str:
    """Return the name of a database that has the schema and that fixtures clone."""
    return servers.ensure_template(server_dsn)


@pytest.fixture
def empty_dsn(server_dsn: str) -> Iterator[str]:
    """Return the URL of a fresh database without Headrace's schema."""
    with servers.clone(server_dsn, None) as dsn:
        yield dsn


@pytest.fixture
def dsn(server_dsn: str, template: str) -> Iterator[str]:
    """Return the URL of a fresh database with Headrace's schema."""
    with servers.clone(server_dsn, template) as dsn:
        yield dsn


@pytest_asyncio.fixture
async def database(dsn: str) -> AsyncIterator[store.Database]:
    """Return an opened `Database` on a fresh database with the schema. For tests under `@pytest.mark.asyncio`."""
    async with servers.opened(dsn) as database:
        yield database


Connect = Callable[[], Awaitable[Any]]


@pytest_asyncio.fixture
async def connect(dsn: str) -> AsyncIterator[Connect]:
    """Open plain connections outside of the pool, for transactions that a test leaves open."""
    opened: list[Any] = []

    async def connect() -> Any:
        opened.append(await asyncpg.connect(dsn))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.terminate()


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still until the test moves it."""
    return Clock()


Declare = Callable[..., Awaitable[Reader]]


@pytest_asyncio.fixture
async def declare(database: store.Database, clock: Clock) -> Declare:
    """Declare a consumer of the stream `orders` with the settings of a `ConsumerSpec`, and return a reader for it."""
    await store.create_stream(database, "orders")

    async def declare(name: str = "ship", **settings: Any) -> Reader:
        spec = ConsumerSpec(stream="orders", name=name, **settings)
        declared = await store.declare_consumer(database, spec)
        return Reader(database, spec, declared.id, clock)

    return declare
