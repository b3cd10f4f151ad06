"""The ready file exists while the process, or all of several processes, are ready, and is removed otherwise."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from headrace.cli.errors import CannotCreate
from headrace.cli.processes.ready_file import MAX_AGE, ReadyFile, all_fresh, child_ready_file
from tests.cli.processes import PATIENCE, Commands
from tests.cli.test_run import Orders, _service, orders
from tests.support.logs import logged

__all__ = ["_service", "orders"]


def _until(condition: Callable[[], bool]) -> None:
    """Poll until the condition is true, because files send no events."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def test_it_is_there_while_the_process_works_and_gone_while_it_drains(
    commands: Commands, dsn: str, orders: Orders, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    ready.touch()  # left behind by a killed process
    os.utime(ready, (1, 1))
    running = commands("run", "service:app", "--database", dsn, "--ready-file", "ready")
    orders(1, until=tmp_path / "go")
    running.line("begun 1")
    _until(lambda: all_fresh([ready]))
    running.send(signal.SIGTERM)
    _until(lambda: not ready.exists())
    (tmp_path / "go").touch()
    assert running.end() == 0
    assert any(line.startswith("done 1") for line in running.lines)
    assert not ready.exists()


@pytest.mark.long
def test_it_means_that_all_of_several_processes_are_ready(commands: Commands, dsn: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    members = [child_ready_file(ready, number) for number in (1, 2)]
    running = commands("run", "service:app", "--processes", "2", "--database", dsn, HEADRACE_READY_FILE=str(ready))
    _until(ready.exists)
    assert all_fresh(members)
    running.send(signal.SIGTERM)
    assert running.end() == 0
    assert not [path for path in (ready, *members) if path.exists()]


def test_a_place_where_it_can_not_be_is_refused(commands: Commands, dsn: str, tmp_path: Path) -> None:
    running = commands("run", "service:app", "--database", dsn, "--ready-file", str(tmp_path / "no/such/ready"))
    assert running.end() == CannotCreate.exit_code
    assert "The ready file" in running.lines[-1]
    assert "No such file or directory" in running.lines[-1]


@pytest.mark.asyncio
async def test_a_file_with_something_in_it_is_not_taken_over(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    with pytest.raises(CannotCreate, match="exists and is not an empty file"):
        await ReadyFile(precious).keep(lambda: True)
    assert precious.read_text() == "mine"


def test_it_follows_the_reported_readiness(tmp_path: Path) -> None:
    file = ReadyFile(tmp_path / "ready")
    file.update(True)
    os.utime(tmp_path / "ready", (1, 1))
    file.update(True)
    assert (tmp_path / "ready").stat().st_mtime > 1
    for _ in range(2):
        file.update(False)
    assert not (tmp_path / "ready").exists()


@pytest.mark.asyncio
async def test_it_goes_when_its_keeper_is_cancelled(tmp_path: Path) -> None:
    path, asked = tmp_path / "ready", anyio.Event()

    def ready() -> bool:
        asked.set()
        return True

    async with anyio.create_task_group() as group:
        group.start_soon(ReadyFile(path).keep, ready)
        await asked.wait()
        assert path.exists()
        group.cancel_scope.cancel()
    assert not path.exists()


def test_one_that_is_missing_or_old_is_not_fresh(tmp_path: Path) -> None:
    here, old = tmp_path / "here", tmp_path / "old"
    here.touch()
    old.touch()
    os.utime(old, (time.time() - MAX_AGE - 1,) * 2)
    assert all_fresh([here])
    assert not all_fresh([here, old])
    assert not all_fresh([here, tmp_path / "missing"])


def test_a_problem_with_it_is_logged_once_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = ReadyFile(tmp_path / "gone/ready")
    for _ in range(3):
        file.update(True)
    assert len(logged(caplog, "ready file failed", path=str(tmp_path / "gone/ready"))) == 1


def test_a_file_from_before_the_clock_was_set_back_is_not_fresh(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ready.touch()
    assert all_fresh([ready])
    ahead = time.time() + 90 + MAX_AGE
    os.utime(ready, (ahead, ahead))
    assert not all_fresh([ready])
