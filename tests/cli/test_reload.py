"""`headrace run --reload` restarts with new code, waits while code is broken, and ends on Ctrl-C at any time."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from headrace.cli.errors import UnreadableInput
from headrace.cli.main import call
from headrace.cli.processes import reload
from headrace.cli.processes.child_info import ChildInfo
from headrace.cli.processes.children import parent_pipe, start_child
from headrace.cli.processes.reload import Reloader, directories_to_watch
from headrace.model.errors import ConfigurationError
from tests.cli.processes import Commands
from tests.cli.test_run import Orders, orders

__all__ = ["orders"]

CODE = """
import os
import anyio
from headrace import App

app = App()

@app.consumer("orders")
async def ship(order: dict) -> None:
    print("begun", order["id"], "VERSION", flush=True)
    while not os.path.exists(order["until"]):
        await anyio.sleep(0.01)
    print("done", order["id"], "VERSION", flush=True)
"""


@pytest.fixture
def service(tmp_path: Path) -> Path:
    path = tmp_path / "service.py"
    path.write_text(CODE)
    return path


def test_new_code_takes_over_once_handlers_have_finished(
    commands: Commands, dsn: str, orders: Orders, service: Path, tmp_path: Path
) -> None:
    running = commands("run", "service:app", "--reload", "--database", dsn)
    running.line("watching")
    orders(1, until=tmp_path / "go")
    running.line("begun 1 VERSION")
    service.write_text(CODE.replace("VERSION", "second"))
    running.line(lambda line: "files changed, restarting" in line and "files=service.py" in line)
    running.line("draining")
    (tmp_path / "go").touch()
    running.line("done 1 VERSION")
    running.line(lambda line: "app starting" in line and "orders/ship" in line)
    orders(2, until=tmp_path / "go")
    running.line("done 2 second")
    running.send(signal.SIGINT)
    assert running.end() == 0
    running.ended_with_all()


@pytest.mark.process
@pytest.mark.asyncio
async def test_a_signal_during_the_start_of_a_process_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with parent_pipe() as fd:
        child = ChildInfo(number=None, parent_fd=fd, database=None, ready_file=None)
        reloader = Reloader([sys.executable, "-c", "import signal; signal.pause()"], child, [], kill_after=1)

        async def start_slowly(*args: Any) -> anyio.abc.Process:
            reloader._forward(signal.SIGTERM, 1)
            return await start_child(*args)

        monkeypatch.setattr(reload, "start_child", start_slowly)
        with anyio.fail_after(10):
            assert await reloader._run_child() == -signal.SIGTERM


@pytest.mark.long
def test_code_that_can_not_be_imported_is_shown_and_waited_out(commands: Commands, dsn: str, service: Path) -> None:
    running = commands("run", "service.py:app", "--reload", "--database", dsn)
    running.line("app starting")
    service.write_text("app = (")
    running.line("SyntaxError")
    running.line("it restarts when a file changes")
    service.write_text(CODE)
    running.line("app starting")
    running.send(signal.SIGTERM)
    assert running.end() == 0
    running.ended_with_all()


@pytest.mark.process
@pytest.mark.long
def test_ctrl_c_ends_it_while_it_waits_for_a_change(commands: Commands, service: Path) -> None:
    service.write_text("raise SystemExit(3)")
    running = commands("run", "service:app", "--reload")
    running.line(lambda line: "app ended" in line and "exit_code=3" in line)
    running.send(signal.SIGINT)
    assert running.end() == 0


@pytest.mark.long
def test_a_second_ctrl_c_stops_handlers_at_once(
    commands: Commands, dsn: str, orders: Orders, service: Path, tmp_path: Path
) -> None:
    running = commands("run", "service:app", "--reload", "--database", dsn)
    orders(1, until=tmp_path / "never")
    running.line("begun 1")
    running.send(signal.SIGINT)
    running.line(lambda line: "draining" in line and "signal=SIGINT" in line)
    running.send(signal.SIGINT)
    assert running.end() == 0
    running.ended_with_all()


def test_the_app_ends_when_its_parent_is_killed(commands: Commands, dsn: str, service: Path) -> None:
    running = commands("run", "service:app", "--reload", "--database", dsn)
    running.line("app starting")
    running.send(signal.SIGKILL)
    running.ended_with_all()


def test_the_watched_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    assert directories_to_watch("shop.service:app", []) == [tmp_path]
    assert directories_to_watch("a/service.py:app", []) == [tmp_path / "a"]
    assert directories_to_watch("service.py:app", [Path("a"), Path()]) == [tmp_path, tmp_path / "a"]
    with pytest.raises(UnreadableInput, match="The directory 'b' of --reload-dir does not exist"):
        directories_to_watch("service:app", [Path("b")])


def test_without_watchfiles_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'headrace\[reload\]'"):
        directories_to_watch("service:app", [])


def test_it_does_not_work_with_several_processes(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(["run", "service:app", "--reload", "--processes", "2"]) == 64
    monkeypatch.setenv("HEADRACE_PROCESSES", "2")
    assert call(["run", "service:app", "--reload"]) == 64
    assert "--reload runs only one process" in capfd.readouterr().err
