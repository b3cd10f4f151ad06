"""`headrace run`: signals start a drain, and several processes work as one service."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import ConsumersDeleted, store
from headrace.cli.processes.children import exit_fields, shell_exit_code
from headrace.cli.processes.supervisor import MAX_RESTART_DELAY, MIN_RESTART_DELAY, restart_delay
from tests.cli.conftest import Headrace
from tests.cli.processes import Commands, Running
from tests.support import servers

SERVICE = """
import os
import anyio
from headrace import App

app = App(shutdown_timeout="20s")

@app.consumer("orders", ack_wait="2s", max_ack_pending=100)
async def ship(order: dict) -> None:
    print("begun", order["id"], os.getpid(), flush=True)
    while not os.path.exists(order["until"]):
        await anyio.sleep(0.01)
    print("done", order["id"], os.getpid(), flush=True)
"""


KEPT = """
import gc
from headrace import App, Telemetry

app = App(telemetry=Telemetry(metrics=None, traces="otlp"))
loaded = {}

@app.lifespan
async def model(app):
    loaded["model"] = [[] for _ in range(1000)]
    yield

@app.consumer("orders")
async def look(order: dict) -> None:
    collected = {id(one) for one in gc.get_objects()}
    import opentelemetry.sdk.trace
    print("left to the collector:", id(loaded["model"]) in collected, id(vars(opentelemetry.sdk.trace)) in collected, flush=True)
"""


@pytest.fixture(autouse=True)
def _service(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SERVICE)


Orders = Callable[..., None]


@pytest.fixture
def orders(dsn: str, tmp_path: Path) -> Orders:
    """Publish orders of these ids, each with a separate key. Their handlers wait for the file `until`."""

    async def publish(*ids: int, until: str | Path) -> None:
        database = store.Database(dsn)
        await database.open()
        await store.create_stream(database, "orders")
        texts = [json.dumps({"id": order, "until": str(until)}) for order in ids]
        await store.publish_many(database, "orders", [f"orders.{order}" for order in ids], texts)
        await database.drain()

    return lambda *ids, until: servers.run(publish(*ids, until=until))


def _ask(dsn: str, question: Callable[[store.Database], Awaitable[Any]]) -> Any:
    async def ask() -> Any:
        database = store.Database(dsn)
        await database.open()
        try:
            return await question(database)
        finally:
            await database.close()

    return servers.run(ask())


def _settled(dsn: str) -> tuple[int, int]:
    """Count messages in flight, and messages that wait."""
    info = _ask(dsn, lambda database: store.consumer(database, "orders", "ship"))
    return info.in_flight, info.lag + info.parked


def test_a_signal_lets_handlers_finish(commands: Commands, dsn: str, orders: Orders, tmp_path: Path) -> None:
    running = commands("run", "service:app", "--database", dsn)
    running.line(lambda line: "app running" in line and f"/{dsn.rpartition('/')[2].partition('?')[0]}" in line)
    orders(1, until=tmp_path / "go")
    running.line("begun 1")
    running.send(signal.SIGTERM)
    running.line("draining")
    (tmp_path / "go").touch()
    assert running.end() == 0
    assert any(line.startswith("done 1") for line in running.lines)
    assert _settled(dsn) == (0, 0)


def test_a_second_signal_gives_back_what_is_not_finished(
    commands: Commands, dsn: str, orders: Orders, tmp_path: Path
) -> None:
    running = commands("run", "service.py:app", "--database", dsn)
    orders(1, until=tmp_path / "never")
    running.line("begun 1")
    running.send(signal.SIGINT)
    running.line("draining")
    running.send(signal.SIGINT)
    assert running.end() == 0
    assert _settled(dsn) == (0, 1)


def test_a_process_ends_when_its_consumer_is_deleted_so_that_its_supervisor_restarts_it(
    commands: Commands, dsn: str, orders: Orders, tmp_path: Path
) -> None:
    async def delete(database: store.Database) -> None:
        number = await store.consumer_id(database, "orders", "ship")
        await store.delete_consumer(database, number, force=True)

    running = commands("run", "service:app", "--database", dsn)
    orders(1, until=tmp_path / "go")
    running.line("begun 1")
    _ask(dsn, delete)
    running.line("consumer deleted")
    (tmp_path / "go").touch()
    assert running.end() == ConsumersDeleted.exit_code
    assert any(line.startswith("done 1") for line in running.lines)
    assert "All consumers of this process were deleted" in running.lines[-1]
    assert not any("Traceback" in line for line in running.lines)


@pytest.mark.process
def test_an_app_that_cannot_start_says_why(commands: Commands) -> None:
    running = commands("run", "service:app", "--database", "postgresql://127.0.0.1:1/x", "--processes", "2")
    assert running.end() == 69
    assert "127.0.0.1:1" in running.lines[-1]


def test_a_check_does_all_but_run(
    headrace: Headrace, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    failing = "\n@app.check\ndef stock() -> bool:\n    return False\n"
    (tmp_path / "good_shop.py").write_text(SERVICE)
    (tmp_path / "failing_shop.py").write_text(SERVICE + failing)
    ended = headrace("run", "good_shop:app", "--check", "--database", dsn)
    assert (ended.code, ended.out) == (0, "All checks of good_shop:app passed.\n")
    ended = headrace("run", "failing_shop:app", "--check", "--database", dsn)
    assert ended.code == 78
    assert "stock" in ended.err


def _processes(running: Running) -> dict[int, int]:
    """Return the ids of the first two processes, by their number."""
    return dict(running.started() for _ in range(2))


def test_several_processes_share_the_work_and_drain_together(
    commands: Commands, dsn: str, orders: Orders, tmp_path: Path
) -> None:
    running = commands("run", "service:app", "--processes", "2", "--database", dsn)
    pids = set(_processes(running).values())
    # Any process may hold messages, so both must take part.
    orders(*range(150), until=tmp_path / "go")
    while pids:
        pids.discard(int(running.line("begun").split()[-1]))
    running.send(signal.SIGINT)
    running.line("draining")
    (tmp_path / "go").touch()
    assert running.end() == 0
    running.ended_with_all()
    in_flight, _ = _settled(dsn)
    assert in_flight == 0


def test_a_second_signal_to_the_parent_stops_all_at_once(
    commands: Commands, dsn: str, orders: Orders, tmp_path: Path
) -> None:
    running = commands("run", "service:app", "--processes", "2", "--database", dsn)
    _processes(running)
    orders(1, until=tmp_path / "never")
    running.line("begun 1")
    running.send(signal.SIGTERM)
    running.line(lambda line: "draining" in line and "processes=2" in line)
    running.send(signal.SIGTERM)
    # The process without a message may have ended by now, so the parent may count one.
    running.line(lambda line: "stopping immediately" in line and "processes=" in line)
    assert running.end() == 0
    running.ended_with_all()
    assert _settled(dsn) == (0, 1)


def test_processes_of_a_process_do_not_multiply(commands: Commands, dsn: str) -> None:
    running = commands("run", "service:app", "--database", dsn, HEADRACE_PROCESSES="2")
    _processes(running)
    running.send(signal.SIGTERM)
    assert running.end() == 0
    assert sum("process started" in line for line in running.lines) == 2


def test_a_process_that_dies_is_replaced_and_its_messages_come_again(
    commands: Commands, dsn: str, orders: Orders, tmp_path: Path
) -> None:
    running = commands("run", "service:app", "--processes", "2", "--database", dsn)
    _processes(running)
    orders(1, until=tmp_path / "go")
    first = int(running.line("begun 1").split()[-1])
    os.kill(first, signal.SIGKILL)
    assert "signal=SIGKILL" in running.line("process died, starting another")
    assert int(running.line("begun 1").split()[-1]) != first
    (tmp_path / "go").touch()
    running.line("done 1")
    running.send(signal.SIGTERM)
    assert running.end() == 0


def test_an_error_that_would_come_again_stops_all(commands: Commands, dsn: str, tmp_path: Path) -> None:
    # The parent imports it first, and leaves a file behind that makes the other imports fail.
    stumble = "if os.path.exists('seen'): raise SystemExit(78)\nopen('seen', 'w').close()\n"
    (tmp_path / "half.py").write_text(SERVICE.replace("app = App", stumble + "app = App"))
    running = commands("run", "half:app", "--processes", "2", "--database", dsn)
    assert running.end() == 78
    running.ended_with_all()
    assert any("process failed, stopping all" in line for line in running.lines)


def test_what_exists_when_the_app_starts_is_kept_from_the_garbage_collector(
    commands: Commands, dsn: str, orders: Orders, tmp_path: Path
) -> None:
    """Also what lifespans have made, and what telemetry has imported."""
    (tmp_path / "kept.py").write_text(KEPT)
    orders(1, until="now")
    running = commands("run", "kept:app", "--database", dsn, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert running.line("left to the collector").split()[-2:] == ["False", "False"]
    running.send(signal.SIGTERM)
    assert running.end() == 0


def test_processes_end_when_their_parent_is_killed(
    commands: Commands, dsn: str, orders: Orders, tmp_path: Path
) -> None:
    running = commands("run", "service:app", "--processes", "2", "--database", dsn)
    _processes(running)
    orders(1, until=tmp_path / "go")
    running.line("begun 1")
    running.send(signal.SIGKILL)
    running.line("draining")
    (tmp_path / "go").touch()
    running.ended_with_all()
    assert running.end() == -signal.SIGKILL
    assert _settled(dsn) == (0, 0)


def test_the_wait_before_a_replacement_grows_and_is_bounded() -> None:
    delays = [restart_delay(deaths) for deaths in range(1, 50)]
    assert delays[0] == MIN_RESTART_DELAY
    assert delays == sorted(delays)
    assert delays[-1] == MAX_RESTART_DELAY


def test_ends_as_log_fields_and_as_exit_codes() -> None:
    assert exit_fields(3) == {"exit_code": 3}
    assert exit_fields(-9) == {"signal": "SIGKILL"}
    assert (shell_exit_code(3), shell_exit_code(-9)) == (3, 137)
