"""The plugin's fixtures in small projects, as users have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.projects import WITH_ASYNCIO, run

ASYNCIO = """
import pytest, pytest_asyncio
from service import app, ship

@pytest.mark.asyncio
@pytest.mark.parametrize("order", [1, 2, 3])
async def test_in_the_test(harness, order):
    async with harness(app) as h:
        await h.publish("orders", "a", order)
        for _ in range(order):
            await h.drain()
            await h.advance("1m")
        h.assert_outcomes(ship, *["retried"] * (order - 1), "acked")

@pytest_asyncio.fixture
async def h(harness):
    async with harness(app) as h:
        yield h

@pytest.mark.asyncio
async def test_in_a_fixture(h):
    await h.publish("orders", "a", 1)
    await h.drain()
    h.assert_all_acked(ship)
"""

ANYIO = """
import pytest
from service import app, ship

pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return "asyncio"

async def test_in_the_test(harness):
    async with harness(app) as h:
        await h.publish("orders", "a", 1)
        await h.drain()
        h.assert_all_acked(ship)

@pytest.fixture
async def h(harness):
    async with harness(app) as h:
        yield h

async def test_in_a_fixture(h):
    await h.publish("orders", "a", 1)
    await h.drain()
    h.assert_all_acked(ship)
"""

SYNC = """
import asyncio
import asyncpg

async def ask(url):
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval("select headrace.publish('orders', 'a', '1') from headrace.create_stream('orders')")
    finally:
        await connection.close()

def test_the_database_alone(headrace_database):
    assert asyncio.run(ask(headrace_database)) == 1
"""

NOT_USED = """
import sys

def test_nothing_is_loaded_or_started(tmp_path_factory):
    assert "headrace" not in sys.modules
    assert not list(tmp_path_factory.getbasetemp().parent.glob("**/headrace-postgres"))
"""


@pytest.mark.process
def test_under_pytest_asyncio(project: Path) -> None:
    (project / "test_asyncio.py").write_text(ASYNCIO)
    assert "4 passed" in run(project, "-p", "no:anyio", *WITH_ASYNCIO)
    assert not list((project / "temporary").glob("**/headrace-postgres"))


@pytest.mark.process
@pytest.mark.long
def test_under_anyio(project: Path) -> None:
    (project / "test_anyio.py").write_text(ANYIO)
    (project / "test_sync.py").write_text(SYNC)
    assert "3 passed" in run(project, "-p", "no:asyncio")


@pytest.mark.process
@pytest.mark.long
def test_workers_of_xdist_share_a_server_that_is_stopped_in_the_end(project: Path) -> None:
    (project / "test_asyncio.py").write_text(ASYNCIO)
    (project / "test_sync.py").write_text(SYNC)
    assert "5 passed" in run(project, "-n", "2", *WITH_ASYNCIO)
    assert not list((project / "temporary").glob("**/headrace-postgres"))


def test_a_server_is_named_by_the_environment(project: Path, server_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TEST_DATABASE", server_dsn)
    (project / "test_sync.py").write_text(SYNC)
    assert "1 passed" in run(project, "-p", "no:asyncio")


@pytest.mark.process
def test_a_project_that_does_not_request_the_plugin_is_unchanged(project: Path) -> None:
    (project / "conftest.py").unlink()
    (project / "test_nothing.py").write_text(NOT_USED)
    assert "1 passed" in run(project, "-p", "no:anyio", "-p", "no:asyncio")
