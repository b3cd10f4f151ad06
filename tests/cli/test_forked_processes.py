"""Handlers that fork, as `multiprocessing` does by default up to Python 3.13."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.cli.conftest import Headrace
from tests.cli.processes import PATIENCE, Commands, Running

SERVICE = """
import multiprocessing
import os
import time
import anyio
from headrace import App

fork = multiprocessing.get_context("fork")
app = App(streams=["orders"], shutdown_timeout="20s")

def wait(path: str) -> int:
    while not os.path.exists(path):
        time.sleep(0.01)
    return os.getpid()

@app.consumer("orders", filter="pool", max_deliver=1, concurrency=1)
def pool(order: dict) -> None:
    with fork.Pool(2) as workers:
        print("forked", *[one.pid for one in workers._pool], flush=True)
        print("pool", len(workers.map(wait, [order["until"]] * 2)), flush=True)

@app.consumer("orders", filter="one", max_deliver=1, concurrency=1)
async def one(order: dict) -> None:
    process = fork.Process(target=time.sleep, args=(600,))
    process.start()
    process.terminate()
    await anyio.to_thread.run_sync(process.join)
    print("one", process.exitcode, flush=True)
"""


@pytest.fixture
def running(commands: Commands, dsn: str, tmp_path: Path) -> Running:
    (tmp_path / "service.py").write_text(SERVICE)
    running = commands("run", "service:app", "--database", dsn)
    running.line("app running")
    return running


@pytest.fixture
def publish(headrace: Headrace, dsn: str, tmp_path: Path) -> Callable[..., None]:
    """Publish an order. A pool's work ends when there is a file of the name `until`."""

    def publish(key: str, until: str) -> None:
        file = tmp_path / "orders"
        file.write_text(json.dumps({"key": key, "data": {"until": str(tmp_path / until)}}))
        assert headrace("publish", "orders", file, "--database", dsn).code == 0

    return publish


def test_a_handler_may_end_processes_that_it_has_forked(
    running: Running, publish: Callable[..., None], tmp_path: Path
) -> None:
    """It would have drained its own service, and waited for them for ever."""
    (tmp_path / "now").touch()
    for _ in range(2):
        publish("pool", until="now")
        running.line("pool 2")
        publish("one", until="now")
        running.line(f"one -{signal.SIGTERM.value}")
    assert not any("draining" in line for line in running.lines)
    running.send(signal.SIGTERM)
    running.line("draining")
    assert running.end() == 0
    assert not any("stopping immediately" in line for line in running.lines)


def test_ctrl_c_in_a_terminal_lets_a_handler_finish_that_has_forked(
    running: Running, publish: Callable[..., None], tmp_path: Path
) -> None:
    """A terminal sends SIGINT to all of them, and each of these signals reached the service."""
    publish("pool", until="go")
    for pid in running.line("forked").split()[1:]:
        os.kill(int(pid), signal.SIGINT)
    running.send(signal.SIGINT)
    running.line("draining")
    (tmp_path / "go").touch()
    running.line("pool 2")
    assert running.end() == 0
    assert not any("stopping immediately" in line for line in running.lines)


OTHER_SESSIONS = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


def test_a_killed_service_leaves_no_session_while_processes_that_it_has_forked_live(
    running: Running, publish: Callable[..., None], dsn: str, tmp_path: Path
) -> None:
    """They had its sockets, so the server did not notice its death."""
    publish("pool", until="go")
    forked = [int(pid) for pid in running.line("forked").split()[1:]]
    with psycopg.connect(dsn, autocommit=True) as connection:

        def others() -> int:
            row = connection.execute(OTHER_SESSIONS).fetchone()
            assert row is not None
            return int(row[0])

        assert others() > 0
        running.send(signal.SIGKILL)
        try:
            end = time.monotonic() + PATIENCE
            while others():
                assert time.monotonic() < end, "its sessions live on"
            for pid in forked:
                os.kill(pid, 0)  # raises if it has ended
        finally:
            (tmp_path / "go").touch()
