"""Test databases: a server for the test run, and a new database for each test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio.to_thread
import asyncpg
import pytest

from headrace import App, ConfigurationError, StoreUnavailable, store
from headrace.testing import Harness, Server, databases
from headrace.testing import server as server_in

pytestmark = pytest.mark.asyncio


async def schema_version(url: str) -> int:
    database = store.Database(url)
    await database.open()
    try:
        return await store.schema_version(database)
    finally:
        await database.close()


async def test_each_database_is_new_has_the_schema_and_is_dropped(server: Server) -> None:
    def make() -> tuple[str, str]:
        with server.database() as first, server.database() as second:
            assert first != second
            assert databases._run(schema_version(first)) == databases._run(schema_version(second)) > 0
            return first, second

    first, _ = await anyio.to_thread.run_sync(make)
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(first)


async def test_a_database_is_dropped_whatever_is_still_connected(server: Server) -> None:
    context = server.database()
    url = await anyio.to_thread.run_sync(context.__enter__)
    left = await asyncpg.connect(url)
    await anyio.to_thread.run_sync(context.__exit__, None, None, None)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await left.fetchval("select 1")
    left.terminate()


async def test_a_server_that_the_environment_names_is_used(
    server_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TEST_DATABASE", server_dsn)
    with server_in(tmp_path / "postgres") as server:
        assert server.url == server_dsn
    assert not (tmp_path / "postgres").exists()


async def test_an_invalid_server_url_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="HEADRACE_TEST_DATABASE can't be parsed"):
        Server("localhost/postgres")


async def test_a_database_is_not_made_inside_a_running_loop(server: Server) -> None:
    with pytest.raises(ConfigurationError, match="in a thread"):
        server.database().__enter__()


async def test_an_unreachable_server_is_reported() -> None:
    def make() -> None:
        with Server("postgresql://nobody@127.0.0.1:1/nothing").database():
            pass

    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await anyio.to_thread.run_sync(make)


async def test_without_pytest_a_harness_finds_a_database_itself_and_drops_it(
    server_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TEST_DATABASE", server_dsn)
    databases.own_server.cache_clear()
    app = App()
    try:
        async with Harness(app):
            assert app.dsn is not None
            used = app.dsn
            assert used.startswith(server_dsn.split("@")[0])
        with pytest.raises(asyncpg.InvalidCatalogNameError):
            await asyncpg.connect(used)
    finally:
        databases.own_server.cache_clear()


SCRIPT = """
import asyncio, tempfile
from headrace import App
from headrace.testing import Harness, databases

app = App()
seen = []

@app.consumer("orders")
async def ship(order: int) -> None:
    seen.append(order)

async def main() -> None:
    async with Harness(app) as harness:
        await harness.publish("orders", "a", 1)
        await harness.drain()
    print(seen, databases.own_server().url)

asyncio.run(main())
"""


@pytest.mark.process
async def test_a_process_without_any_server_starts_one_that_stops_with_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_TEST_DATABASE", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, cwd=tmp_path
        )
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[1] postgresql://")
    assert not os.listdir(tmp_path)
