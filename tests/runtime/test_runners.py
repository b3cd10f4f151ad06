"""Runners: handlers in threads, and in processes that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from headrace import App, ConfigurationError, Depends, Message
from headrace.runtime.handlers.worker_processes import Worker
from headrace.runtime.handlers.worker_protocol import Place, ProcessFailed
from tests.runtime import worker_functions
from tests.runtime.running import Seen, consumer, dead_letters, eventually, numbered, parked, running, work_off


@pytest.fixture
def app(dsn: str) -> App:
    return App(dsn, streams=["orders"], shutdown_timeout=0.1)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def written(path: Path) -> list[str]:
    """The lines that handlers in other processes have written."""
    return path.read_text().splitlines() if path.exists() else []


def killed(pid: int) -> None:
    """Kill a process of this test, and wait until it is dead."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def lines(path: Path, count: int) -> list[str]:
    """Wait until a handler in another process has written this many lines."""

    async def look() -> list[str] | None:
        found = written(path)
        return found if len(found) >= count else None

    found: list[str] = await eventually(look)
    return found


@pytest.mark.asyncio
async def test_a_handler_in_a_process_gets_its_payload_and_the_fields_of_its_message(app: App, notes: Path) -> None:
    app.consumer("orders", runner="process", concurrency=1)(worker_functions.add)
    async with running(app):
        await app.publish("orders", "a", {"numbers": [1, 2], "into": str(notes)}, headers={"by": "us"})
        await app.publish("orders", "b", {"numbers": [3, 4], "into": str(notes)})
        await app.idle()
    first, second = (line.split() for line in written(notes))
    assert int(first[0]) != os.getpid()
    assert first[0] == second[0], "the process is kept"
    assert first[1:] == ["a", "1", "1", "3", "{'by':", "'us'}"]
    assert second[1:] == ["b", "2", "1", "7", "{}"]
    assert gone(int(first[0])), "and ends with the consumer"


@pytest.mark.asyncio
async def test_batches_run_in_processes_with_their_outcomes(app: App, notes: Path) -> None:
    app.consumer("orders", runner="process", concurrency=1, batch=3, batch_timeout="60s")(worker_functions.add_many)
    app.consumer("orders", runner="process", concurrency=1, batch=3, batch_timeout="60s")(
        worker_functions.reject_by_batch
    )
    async with running(app):
        await app.publish_many(
            "orders",
            [(key, {"numbers": [number], "into": str(notes)}) for key, number in zip("abc", (5, 6, 7), strict=True)],
        )
        await app.idle()
        (letter,) = await dead_letters(app, "add_many")
        (other,) = await dead_letters(app, "reject_by_batch")
    assert written(notes) == ["a 1 5 3", "b 2 6 3", "c 3 7 3"]
    assert (letter.seq, letter.error) == (2, "no sixes")
    assert (other.seq, other.error) == (2, "by the batch")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("how", "reason", "error"),
    [
        ("value error", "exhausted", "ValueError: a wrong value"),
        ("reject", "rejected", "not for us"),
        ("returned reject", "rejected", "not for us either"),
        ("unpicklable", "exhausted", "tests.runtime.worker_functions.Picky: too picky"),
        ("local", "exhausted", "Local: very local"),
        ("unpicklable result", "exhausted", "The return value of the handler 'fail' can't leave its process"),
        ("sys.exit", "exhausted", "SystemExit: 4"),
        ("exit", "exhausted", "The handler's process ended with exit code 3"),
        ("kill", "exhausted", "The handler's process was killed by SIGKILL"),
        ("ack", "exhausted", "A handler with runner='process' can't ack a message. Return instead."),
        ("publish", "exhausted", "can't publish a message. Declare publishes='a-stream'"),
    ],
)
async def test_failures_come_back_from_the_process(app: App, how: str, reason: str, error: str) -> None:
    app.consumer("orders", runner="process", concurrency=1, max_deliver=1)(worker_functions.fail)
    async with running(app):
        await app.publish_many("orders", [("a", {"how": how}), ("a", {"how": "not at all"})])
        await app.idle()
        (letter,) = await dead_letters(app, "fail")
    assert (letter.seq, letter.reason) == (1, reason)
    assert error in (letter.error or "")
    if how == "value error":
        assert 'raise ValueError("a wrong value")' in (letter.traceback or ""), "the traceback of the process is told"


@pytest.mark.asyncio
async def test_a_retry_keeps_its_delay_on_its_way_back(app: App) -> None:
    app.consumer("orders", runner="process", concurrency=1, backoff="1h")(worker_functions.fail)
    await work_off(app, ("a", {"how": "retry"}))


@pytest.mark.asyncio
async def test_a_process_that_dies_fails_only_its_own_attempt(app: App, notes: Path) -> None:
    app.consumer("orders", runner="process", concurrency=2, max_deliver=2, backoff=0, name="ship")(
        worker_functions.spin
    )
    async with running(app):
        await app.publish_many("orders", [(key, {"into": str(notes.with_name(key)), "once": True}) for key in "ab"])
        (first,) = await lines(notes.with_name("a"), 1)
        (second,) = await lines(notes.with_name("b"), 1)
        os.kill(int(first), signal.SIGKILL)
        await lines(notes.with_name("a"), 2)
        assert not gone(int(second))
        os.kill(int(second), signal.SIGKILL)
        await app.idle()
        assert await dead_letters(app, "ship") == []


@pytest.mark.asyncio
async def test_a_timeout_kills_a_busy_process_and_the_next_attempt_has_a_new_one(app: App, notes: Path) -> None:
    app.consumer("orders", runner="process", concurrency=1, timeout="300ms", backoff=0, name="ship")(
        worker_functions.spin
    )
    await work_off(app, ("a", {"into": str(notes), "once": True}))
    first, second = map(int, written(notes))
    assert first != second
    assert gone(first)


@pytest.mark.asyncio
@pytest.mark.parametrize("exits", [False, True], ids=["timeout", "exit"])
async def test_what_a_handler_has_started_ends_with_its_process(app: App, notes: Path, exits: bool) -> None:
    """Otherwise the program of the last attempt would work beside that of the next one."""
    app.consumer("orders", runner="process", concurrency=1, timeout=None if exits else "300ms", max_deliver=1)(
        worker_functions.start_another
    )
    async with running(app):
        await app.publish("orders", "a", {"into": str(notes), "exits": exits})
        await app.idle()
        (letter,) = await dead_letters(app, "start_another")
    assert ("exit code 3" if exits else "took longer than") in (letter.error or "")
    (program,) = written(notes)
    await eventually(lambda: as_async(lambda: gone(int(program))))


@pytest.mark.asyncio
async def test_the_end_of_a_drain_kills_a_busy_process_and_releases_its_message(app: App, notes: Path) -> None:
    app.consumer("orders", runner="process", concurrency=1, name="ship")(worker_functions.spin)
    async with app:
        async with running(app):
            await app.publish("orders", "a", {"into": str(notes)})
            (pid,) = await lines(notes, 1)
        assert gone(int(pid))
        (row,) = await parked(app)
    assert (row["seq"], row["attempts"]) == (1, 0)


@pytest.mark.asyncio
async def test_signals_to_the_whole_group_do_not_stop_a_process(app: App, notes: Path) -> None:
    """Ctrl-C in a terminal and service managers send signals to the whole group. The drain decides
    when a process ends."""
    app.consumer("orders", runner="process", concurrency=1, name="ship")(worker_functions.spin)
    async with running(app):
        await app.publish("orders", "a", {"into": str(notes)})
        (pid,) = await lines(notes, 1)
        os.kill(int(pid), signal.SIGINT)
        os.kill(int(pid), signal.SIGTERM)
        await app.publish("orders", "b", {"into": str(notes)})
        await eventually(lambda: waiting(app))
        assert not gone(int(pid))


@pytest.mark.asyncio
async def test_a_handler_in_a_process_may_end_processes_that_it_has_forked(app: App, notes: Path) -> None:
    app.consumer("orders", runner="process", concurrency=1, timeout="10s", max_deliver=1)(worker_functions.fork)
    async with running(app):
        await app.publish("orders", "a", {"into": str(notes)})
        await app.idle()
        assert await dead_letters(app, "fork") == []
    assert written(notes) == ["1 2"]


@pytest.mark.asyncio
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="elsewhere the forked process is waited for, too")
async def test_the_death_of_a_process_is_noticed_while_one_lives_that_it_has_forked(app: App, notes: Path) -> None:
    app.consumer("orders", runner="process", concurrency=1, max_deliver=1)(worker_functions.fork_and_die)
    async with running(app):
        await app.publish("orders", "a", {"into": str(notes)})
        try:
            await app.idle()
            (letter,) = await dead_letters(app, "fork_and_die")
        finally:
            os.kill(int(written(notes)[0]), signal.SIGKILL)
    assert letter.error == "ProcessFailed: The handler's process was killed by SIGKILL."


def test_a_signal_to_the_whole_group_does_not_stop_a_process_that_is_about_to_start() -> None:
    worker = Worker(Place("tests.runtime.worker_functions", "add"), batch=False)
    worker.start()
    try:
        os.kill(worker.pid, signal.SIGINT)
        os.kill(worker.pid, signal.SIGTERM)
        worker.ready()
        assert worker.alive
    finally:
        worker.end()
    assert not worker.alive


def test_a_process_that_can_not_import_the_handler_reports_why() -> None:
    worker = Worker(Place("tests.runtime.worker_functions", "no_such_handler"), batch=False)
    worker.start()
    with pytest.raises(ProcessFailed, match="no attribute 'no_such_handler'"):
        worker.ready()
    assert not worker.alive


async def waiting(app: App) -> bool:
    return bool(app.statistics()["consumers"]["orders:ship"]["waiting"])


@pytest.mark.asyncio
async def test_a_process_that_died_while_it_was_idle_is_replaced_and_costs_no_attempt(app: App, notes: Path) -> None:
    app.consumer("orders", runner="process", concurrency=1, max_deliver=1)(worker_functions.add)
    async with running(app):
        await app.publish("orders", "a", {"numbers": [1], "into": str(notes)})
        await app.idle()
        killed(int(written(notes)[0].split()[0]))
        await app.publish("orders", "a", {"numbers": [2], "into": str(notes)})
        await app.idle()
        assert await dead_letters(app, "add") == []
    assert len(written(notes)) == 2


def headrace_run(dsn: str, **environment: Any) -> subprocess.Popen[bytes]:
    """`headrace run` with uvloop, in a separate process group, as in a terminal."""
    command = [Path(sys.executable).with_name("headrace"), "run", "tests.runtime.spinning:app", "--database", dsn]
    return subprocess.Popen(
        command, env={**os.environ, **{name: str(value) for name, value in environment.items()}}, start_new_session=True
    )


def test_ctrl_c_in_a_terminal_lets_the_handler_in_a_process_finish(dsn: str, notes: Path) -> None:
    pipe = notes.with_name("pipe")
    os.mkfifo(pipe)
    worker = headrace_run(dsn, KEY="wait", NOTES=notes, PIPE=pipe)
    try:
        anyio.run(lines, notes, 1)
        os.killpg(worker.pid, signal.SIGINT)
        pipe.write_text("go on")
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()
    assert written(notes)[1] == "done"
    anyio.run(nothing_is_left, App(dsn))


async def nothing_is_left(app: App) -> None:
    async with app:
        info = await consumer(app, "wait")
    assert (info.lag, info.in_flight, info.parked) == (0, 0, 0)


@pytest.mark.asyncio
async def test_messages_that_a_handler_in_a_process_returns_are_published(app: App) -> None:
    app.consumer("orders", filter="a", runner="process", concurrency=1, publishes="orders")(worker_functions.forward)
    seen = Seen()

    @app.consumer("orders", filter="b")
    async def ship(number: int) -> None:
        seen.note(number)

    await work_off(app, ("a", 21))
    assert seen.notes == [42]


@pytest.mark.parametrize("key", ["spin", "start_another"])
def test_a_killed_worker_takes_its_busy_processes_with_it(dsn: str, notes: Path, key: str) -> None:
    """After kill -9 no process is left that would continue, not even one with a handler that spins, nor a program that a
    handler has started."""
    worker = headrace_run(dsn, KEY=key, NOTES=notes)
    try:
        (pid,) = anyio.run(lines, notes, 1)
    finally:
        worker.kill()
        worker.wait()
    anyio.run(eventually, lambda: as_async(lambda: gone(int(pid))))


async def as_async(question: Callable[[], bool]) -> bool:
    return question()


@pytest.mark.asyncio
async def test_a_plain_function_that_returns_an_awaitable_is_done_when_that_is(app: App) -> None:
    found: list[int] = []

    async def handle(number: int) -> None:
        await anyio.lowlevel.checkpoint()
        found.append(number)

    @app.consumer("orders")
    def ship(number: int) -> Any:
        return handle(number)

    await work_off(app, *numbered("ab"))
    assert sorted(found) == [1, 2]


class Thing:
    def __call__(self, number: int) -> None:
        """A handler that has no importable name."""


def test_a_handler_that_can_not_be_imported_can_not_run_in_a_process() -> None:
    def inside(number: int) -> None:
        """A function inside another one."""

    for function in (inside, lambda number: None, Thing()):
        with pytest.raises(ConfigurationError, match="Make it a function at the top of a module"):
            App().consumer("orders", runner="process", name="ship")(function)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(number: int) -> None:
        function(number)

    wrapper.__name__ = wrapper.__qualname__ = "unwrapped"
    return wrapper


def unwrapped(number: int) -> None:
    """The importer finds this function in place of the wrapper."""


@pytest.mark.asyncio
async def test_a_name_that_refers_to_another_object_is_refused_at_start(app: App) -> None:
    app.consumer("orders", runner="process", name="ship")(wrapped(unwrapped))
    with pytest.raises(ConfigurationError, match=r"Write @app\.consumer above all other decorators"):
        async with running(app):
            raise AssertionError("it started")


def with_dependency(number: int, thing: Depends[Thing]) -> None:
    """Take an argument that can't be pickled."""


def test_a_handler_in_a_process_takes_no_dependencies_no_transaction_and_is_no_coroutine() -> None:
    async def handle(message: Message) -> None:
        """A coroutine function."""

    with pytest.raises(ConfigurationError, match="can't leave this process"):
        App().consumer("orders", runner="process")(with_dependency)
    with pytest.raises(ConfigurationError, match="a transaction can't leave its process"):
        App().consumer("orders", runner="process", transactional=True)(unwrapped)
    with pytest.raises(ConfigurationError, match="don't go together"):
        App().consumer("orders", runner="process")(handle)
