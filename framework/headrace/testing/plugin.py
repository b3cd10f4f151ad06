"""Pytest fixtures for apps: a database for each test, and a harness on it.

Add this to the `conftest.py` at the root of your tests. Without it nothing of the plugin is loaded:

    pytest_plugins = ["headrace.testing.plugin"]

Then write tests with pytest-asyncio, or in the same way with anyio's plugin and its mark:

    @pytest.mark.asyncio
    async def test_an_order_is_shipped(harness):
        async with harness(app) as h:
            await h.publish("orders", "orders.us.1", {"id": 1})
            await h.drain()
            h.assert_all_acked(ship)

The server starts when the first test uses it, is shared by the workers of pytest-xdist, and is removed at
the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.app.app import App
    from headrace.testing.databases import Server
    from headrace.testing.harness import Harness

DIRECTORY = "headrace-postgres"
"""The server's directory, below the run's temporary directory."""


@pytest.fixture(scope="session")
def headrace_server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server of this run: the one that `HEADRACE_TEST_DATABASE` names, or an embedded one."""
    from headrace.testing import databases

    base = tmp_path_factory.getbasetemp()
    shared = hasattr(request.config, "workerinput")
    directory = (base.parent if shared else base) / DIRECTORY
    with databases.server(directory) as server:
        yield server
    if not shared:
        databases.destroy(directory)


@pytest.fixture
def headrace_database(headrace_server: Server) -> Iterator[str]:
    """The URL of a fresh database with Headrace's schema, for one test."""
    with headrace_server.database() as url:
        yield url


@pytest.fixture
def harness(headrace_database: str) -> Callable[..., Harness]:
    """Makes a `Harness` on this test's database. `harness(app)` takes the options of `Harness`."""
    from headrace.testing.harness import Harness

    def harness(app: App, **options: Any) -> Harness:
        return Harness(app, headrace_database, **options)

    return harness


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the data of a server that pytest-xdist workers shared. The main process does so after they have ended."""
    factory = getattr(session.config, "_tmp_path_factory", None)
    if (
        factory is None
        or hasattr(session.config, "workerinput")
        or not session.config.pluginmanager.has_plugin("dsession")
    ):
        return
    from headrace.testing import databases

    databases.destroy(factory.getbasetemp() / DIRECTORY)
