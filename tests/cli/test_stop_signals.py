"""SIGTERM and Ctrl-C end every command: during its start without a trace, and at the third signal whatever hangs."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from headrace import store
from headrace.cli.exit_codes import INTERRUPTED
from headrace.cli.processes.supervisor import was_stopped
from headrace.embedded import EmbeddedPostgres
from headrace.runtime.stop_signals import LAST
from tests.cli.processes import Commands, Running
from tests.support import servers

SERVICE = """
import threading
import time
import anyio
from headrace import App, Message

app = App(streams=["orders"], shutdown_timeout="20s")

@app.consumer("orders", name="thread", filter="thread.>")
def in_thread(message: Message) -> None:
    print("begun", flush=True)
    threading.Event().wait()

@app.consumer("orders", name="loop", filter="loop.>")
async def in_loop(message: Message) -> None:
    print("begun", flush=True)
    time.sleep(600)

@app.consumer("orders", name="stubborn", filter="stubborn.>")
async def stubborn(message: Message) -> None:
    print("begun", flush=True)
    while True:
        try:
            await anyio.sleep_forever()
        except BaseException:
            pass
"""

LIFESPAN = """
import anyio
from contextlib import asynccontextmanager
from headrace import App

app = App(streams=["orders"])

@app.lifespan
async def model(app):
    print("loading", flush=True)
    try:
        {start}
        yield
        {end}
    finally:
        print("unloaded", flush=True)

@app.consumer("orders")
async def ship(number: int) -> None: ...
"""


@pytest.fixture(autouse=True)
def _service(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SERVICE)


def publish(dsn: str, key: str) -> None:
    async def published() -> None:
        database = store.Database(dsn)
        await database.open()
        await store.publish(database, "orders", key, "1")
        await database.close()

    servers.run(published())


def until_ended(running: Running, number: signal.Signals) -> int:
    """Send a signal again and again, since signals of one kind are merged while they wait. Return the exit code."""
    for _ in range(60):
        running.send(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running._process.wait(0.5)
            break
    return running.end()


@pytest.mark.parametrize(
    ("hangs", "line"),
    [
        ("thread", "threading.Event().wait()"),
        ("loop", "time.sleep(600)"),
        ("stubborn", "await anyio.sleep_forever()"),
    ],
)
def test_the_third_signal_ends_a_process_whose_handler_hangs_and_names_it(
    commands: Commands, dsn: str, hangs: str, line: str
) -> None:
    running = commands("run", "service:app", "--database", dsn)
    running.line("app running")
    publish(dsn, f"{hangs}.7")
    running.line("begun")
    number = 1 + next(place for place, text in enumerate(SERVICE.splitlines()) if line in text)
    if hangs == "loop":  # nothing can be logged meanwhile
        assert until_ended(running, signal.SIGTERM) == -signal.SIGTERM
    else:
        running.send(signal.SIGINT)
        running.line("draining")
        running.send(signal.SIGINT)
        running.line("stopping immediately")
        running.send(signal.SIGINT)
        assert running.end() == -signal.SIGINT
    (named,) = (line for line in running.lines if "handler did not stop" in line)
    assert f"orders/{hangs} {hangs}.7 #1" in named
    (place,) = re.findall(r"service\.py:(\d+) in ", named)
    # A handler that catches its cancellation is cancelled again and again, so it may be at any line of its loop.
    assert abs(int(place) - number) <= (2 if hangs == "stubborn" else 0)


def test_a_closed_terminal_drains_however_often_it_says_so(commands: Commands, dsn: str) -> None:
    running = commands("run", "service:app", "--database", dsn)
    running.line("app running")
    publish(dsn, "thread.7")
    running.line("begun")
    running.send(signal.SIGHUP)
    running.line("draining")
    running.send(signal.SIGHUP)
    running.send(signal.SIGTERM)
    assert "signal=SIGTERM" in running.line("stopping immediately")
    running.send(signal.SIGINT)
    assert running.end() == -signal.SIGINT


def test_nohup_leaves_a_process_running(commands: Commands, dsn: str) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running = commands("run", "service:app", "--database", dsn)
        running.line("app running")
    finally:
        signal.signal(signal.SIGHUP, before)
    running.send(signal.SIGHUP)
    running.send(signal.SIGTERM)
    assert "signal=SIGTERM" in running.line("draining")
    assert running.end() == 0


def test_the_third_signal_to_a_parent_ends_its_processes_and_names_what_hangs(commands: Commands, dsn: str) -> None:
    running = commands("run", "service:app", "--processes", "2", "--database", dsn)
    running.started()
    running.started()
    publish(dsn, "thread.7")
    running.line("begun")
    for event in ("draining", "stopping immediately", "handler did not stop"):
        running.send(
            signal.SIGINT
        )  # the next one when the child has had this one, since the kernel merges signals that wait
        running.line(re.compile(rf"\[\d\] headrace: {event}").search)
    assert running.end() == 128 + signal.SIGTERM
    running.ended_with_all()


@pytest.mark.unit
@pytest.mark.parametrize(
    ("code", "signals", "stopped"),
    [
        (-signal.SIGTERM, 1, True),
        (INTERRUPTED, 2, True),
        (-signal.SIGINT, LAST, True),  # by the second signal, and its parent saw it after the third
        (-signal.SIGTERM, LAST, False),
        (-signal.SIGKILL, 1, False),
        (1, 1, False),
    ],
)
def test_only_the_last_signal_ends_a_process_that_has_not_drained(code: int, signals: int, stopped: bool) -> None:
    assert was_stopped(code, signals) == stopped


@pytest.mark.parametrize("signals", [1, LAST], ids=["a lifespan that ends", "a lifespan that hangs"])
def test_a_teardown_that_hangs_does_not_outlive_the_third_signal(
    commands: Commands, dsn: str, tmp_path: Path, signals: int
) -> None:
    hangs = "await anyio.to_thread.run_sync(__import__('threading').Event().wait)"
    text = LIFESPAN.format(start="pass", end="pass" if signals == 1 else hangs)
    (tmp_path / "service.py").write_text(text)
    running = commands("run", "service:app", "--database", dsn)
    running.line("app running")
    events = ("draining", "stopping immediately", "process ended by a signal")[:signals]
    for event in events:
        running.send(signal.SIGTERM)
        running.line(event)
    assert running.end() == (0 if signals == 1 else -signal.SIGTERM)


@pytest.mark.process
def test_a_signal_during_the_start_stops_it_and_leaves_nothing_behind(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "service.py").write_text(LIFESPAN.format(start="await anyio.sleep_forever()", end="pass"))
    data = tmp_path / "data"
    running = commands("run", "service:app", HEADRACE_DATA=str(data), HEADRACE_DATABASE="")
    running.line("loading")
    running.send(signal.SIGTERM)
    assert running.end() == 0
    assert any("stopping during the start" in line for line in running.lines)
    assert any("unloaded" in line for line in running.lines)
    assert not any("app running" in line or "Traceback" in line for line in running.lines)
    assert not EmbeddedPostgres(data).status().running


COMMANDS = (
    ("serve", "--port", "0"),
    ("serve", "--port", "0", "--processes", "2"),
    ("run", "service:app"),
    ("run", "service:app", "--processes", "2"),
    ("run", "service:app", "--check"),
    ("migrate",),
    ("stream", "ls"),
    ("source", "ls"),
)


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "number"),
    [
        *((words, signal.SIGTERM) for words in COMMANDS),
        *((COMMANDS[place], number) for place in (0, 3) for number in (signal.SIGINT, signal.SIGHUP)),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else one.name,
)
def test_a_command_that_waits_for_its_database_ends_at_a_signal(
    commands: Commands, words: tuple[str, ...], number: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        running = commands(*words, "--database", f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x")
        client, _ = silent.accept()
        with client:
            running.send(number)
            code = running.end()
    assert code in ((0, -number) if number is not signal.SIGINT else (0, 130))
    assert not any("listening" in line or "Traceback" in line for line in running.lines), running.lines
    running.ended_with_all()


@pytest.mark.process
def test_a_command_on_the_embedded_postgres_stops_it_at_sigterm(commands: Commands, tmp_path: Path) -> None:
    """As Ctrl-C does. Otherwise it would run on, with nobody to use it."""
    environment = {"HEADRACE_DATA": str(tmp_path / "data"), "HEADRACE_DATABASE": ""}
    for words in (("stream", "add", "orders"), ("consumer", "add", "orders", "ship")):
        assert commands(*words, **environment).end() == 0
    running = commands("consumer", "receive", "ship", "--wait", "50m", **environment)
    while not (tmp_path / "data").exists() or not EmbeddedPostgres(tmp_path / "data").status().running:
        pass
    running.send(signal.SIGTERM)
    assert running.end() == -signal.SIGTERM
    assert not EmbeddedPostgres(tmp_path / "data").status().running
