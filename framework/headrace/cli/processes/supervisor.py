"""The parent process of `headrace run --processes N` and `headrace serve --processes N`. It starts the
processes, forwards signals, and replaces processes that die.

The parent stays connected to the database. It creates the schema before any of the processes starts,
and keeps the embedded Postgres running while a process is replaced.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

import anyio
import anyio.abc
import msgspec

from headrace.app.app import App
from headrace.app.settings import Settings
from headrace.cli.exit_codes import INTERRUPTED
from headrace.cli.processes.child_info import ChildInfo
from headrace.cli.processes.children import (
    KILL_DELAY,
    child_command,
    exit_fields,
    forwarded_signal,
    parent_pipe,
    send_signal,
    shell_exit_code,
    start_child,
)
from headrace.cli.processes.ready_file import ReadyFile, all_fresh, child_ready_file
from headrace.model.log import Log
from headrace.runtime.stop_signals import LAST, STOP_SIGNALS, log_stop, on_stop_signals

log = Log("headrace")

MIN_RESTART_DELAY, MAX_RESTART_DELAY = 0.2, 30.0
"""Bounds of the delay before a process is replaced, in seconds. It doubles with each early death in a row."""
HEALTHY_AFTER = 30.0
"""A process that lived for this many seconds was healthy. Its death counts as the first of a new row."""
PERMANENT_FAILURES = frozenset({64, 65, 66, 70, 73, 78})
"""Exit codes of errors that would recur at every restart: usage, data, input, configuration."""

_STOPPED = frozenset({*(-number for number in STOP_SIGNALS), INTERRUPTED})


async def run_processes(app: App, target: str, settings: Settings) -> int:
    """Run several processes until they are stopped or have all ended. Returns the exit code."""
    app.telemetry = False  # the parent has no metrics, and would occupy the metrics port of the first process
    async with app:
        with parent_pipe() as fd:
            child = ChildInfo(number=None, parent_fd=fd, database=app.dsn, ready_file=None)
            words = ["--no-migrate"] if app.migrate is False else []
            return await Supervisor(child_command(settings, "run", target, *words), settings, child).run()


class Supervisor:
    """Runs several processes that do the same work.

    Args:
        command: the command line of each process.
        settings: the number of processes, and their common ready file.
        pattern: the `ChildInfo` of each process, except for its number.
        on_stopping: called when all processes are to stop.
    """

    def __init__(
        self,
        command: Sequence[str],
        settings: Settings,
        pattern: ChildInfo,
        on_stopping: Callable[[], None] = lambda: None,
    ) -> None:
        self._command = command
        self._ready_file = settings.ready_file
        self._children = [self._child_info(number, pattern) for number in range(1, settings.processes + 1)]
        self._on_stopping = on_stopping
        self._processes: dict[int, anyio.abc.Process] = {}
        self._stopping = anyio.Event()
        self._signals = 0
        self._exit_code = 0

    def _child_info(self, number: int, pattern: ChildInfo) -> ChildInfo:
        ready_file = None if self._ready_file is None else str(child_ready_file(self._ready_file, number))
        return msgspec.structs.replace(pattern, number=number, ready_file=ready_file)

    async def run(self) -> int:
        """Run all processes until the last has ended. Returns the exit code of the first that failed, or 0."""
        async with on_stop_signals(self._forward, last=LAST + 1), anyio.create_task_group() as outer:
            self._outer = outer
            if self._ready_file is not None:
                outer.start_soon(ReadyFile(self._ready_file).keep, self._ready)
            async with anyio.create_task_group() as group:
                for number, child in enumerate(self._children, 1):
                    group.start_soon(self._keep_running, number, child)
            outer.cancel_scope.cancel()
        return self._exit_code

    def _ready(self) -> bool:
        return not self._stopping.is_set() and all_fresh(path for child in self._children if (path := child.ready_path))

    async def _keep_running(self, number: int, child: ChildInfo) -> None:
        """Keep one process running. Replace it when it dies, until all are to stop."""
        deaths = 0
        worked = False
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run_child(number, child)
            deaths = deaths + 1 if time.monotonic() - started < HEALTHY_AFTER else 1
            if not self._should_replace(number, code, worked=worked):
                return
            worked = worked or code not in PERMANENT_FAILURES
            delay = restart_delay(deaths)
            log.error("process died, starting another", number=number, **exit_fields(code), seconds=delay)
            with anyio.move_on_after(delay):
                await self._stopping.wait()

    async def _run_child(self, number: int, child: ChildInfo) -> int:
        """Start a process and wait until it ends. Returns its exit code."""
        async with await start_child(self._command, child) as process:
            self._processes[number] = process
            log.info("process started", number=number, pid=process.pid)
            if self._stopping.is_set():  # the signal came during the start
                send_signal(process, signal.SIGTERM)
            try:
                return await process.wait()
            finally:
                del self._processes[number]
                if child.ready_path is not None:  # a killed process leaves it behind
                    child.ready_path.unlink(missing_ok=True)

    def _should_replace(self, number: int, code: int, *, worked: bool) -> bool:
        """Return whether to replace a process that has ended. If not, record its exit code.

        Args:
            worked: whether a process with this number worked before. Then a failure that would recur came later, as
                when the schema was upgraded to a revision for which this code is too old. The other processes
                continue.
        """
        if code == 0:
            return False  # the process was stopped, or the application stopped on its own
        if self._stopping.is_set():
            if was_stopped(code, self._signals):
                return False
            log.error("process failed", number=number, **exit_fields(code))
            self._record_failure(code)
            return False
        if code in PERMANENT_FAILURES and not (worked and self._processes):
            log.error(
                "process failed, stopping all",
                number=number,
                **exit_fields(code),
                hint="another process would fail, too",
            )
            self._record_failure(code)
            self._stop_children(signal.SIGTERM)
            return False
        return True

    def _record_failure(self, code: int) -> None:
        self._exit_code = self._exit_code or shell_exit_code(code)

    def _forward(self, number: signal.Signals, count: int) -> None:
        self._signals = count
        log_stop(number, count, processes=len(self._processes))
        self._stop_children(forwarded_signal(count))
        if count == LAST:
            self._outer.start_soon(self._kill_children)

    async def _kill_children(self) -> None:
        await anyio.sleep(KILL_DELAY)
        self._stop_children(signal.SIGKILL)

    def _stop_children(self, number: signal.Signals) -> None:
        self._stopping.set()
        self._on_stopping()
        for process in self._processes.values():
            send_signal(process, number)


def was_stopped(code: int, signals: int) -> bool:
    """Return whether a process ended by a stop signal that came before it had installed its signal handlers, or after its
    drain. The last signal ends a process that has not drained. A process that an earlier one has ended may be seen after it.

    Args:
        code: the exit code.
        signals: the number of stop signals that the process was sent.
    """
    return code in _STOPPED and (signals < LAST or code != -forwarded_signal(LAST))


def restart_delay(deaths: int) -> float:
    """Return how many seconds to wait before replacing a process, after this many early deaths in a row."""
    return float(min(MIN_RESTART_DELAY * 2 ** (deaths - 1), MAX_RESTART_DELAY))
