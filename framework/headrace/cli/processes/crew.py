"""The parent process of `headrace run --processes N` and `headrace serve --processes N`. It starts the
processes, forwards signals, and replaces processes that die.

The parent stays connected to the database. It creates the schema before any of the processes starts,
and keeps the embedded Postgres running while a process is replaced.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Sequence

import anyio
import anyio.abc
import msgspec

from headrace.app.app import App
from headrace.app.settings import Settings
from headrace.cli.processes.children import (
    command,
    described,
    exit_code,
    lifeline,
    passed_on,
    start,
    tell,
)
from headrace.cli.processes.member import Member
from headrace.cli.processes.ready_file import ReadyFile, all_fresh, of_member

logger = logging.getLogger("headrace")

FIRST_DELAY, LONGEST_DELAY = 0.2, 30.0
"""Bounds of the delay before a process is replaced, in seconds. It doubles with each early death in a row."""
EARLY = 30.0
"""A process that lived for this many seconds was healthy. Its death counts as the first of a new row."""
HOPELESS = frozenset({64, 65, 66, 70, 73, 78})
"""Exit codes of errors that would recur at every restart: usage, data, input, configuration."""


async def run_processes(app: App, target: str, found: Settings) -> int:
    """Run several processes until they are stopped or have all ended. Returns the exit code."""
    app.telemetry = False  # the parent has no metrics, and would occupy the metrics port of the first process
    async with app:
        with lifeline() as fd:
            member = Member(number=None, parent_fd=fd, database=app.dsn, ready_file=None)
            return await Crew(command(found, "run", target), found, member).run()


class Crew:
    """Several processes that do the same work.

    Args:
        words: the command line of each process.
        found: the settings with the number of processes and their common ready file.
        pattern: the `Member` of each process, except for its number.
        stopping: called when all processes are to stop.
    """

    def __init__(
        self, words: Sequence[str], found: Settings, pattern: Member, stopping: Callable[[], None] = lambda: None
    ) -> None:
        self._command = words
        self._ready_file = found.ready_file
        self._members = [self._member(number, pattern) for number in range(1, found.processes + 1)]
        self._tell_stopping = stopping
        self._processes: dict[int, anyio.abc.Process] = {}
        self._stopping = anyio.Event()
        self._signals = 0
        self._code = 0

    def _member(self, number: int, pattern: Member) -> Member:
        own = None if self._ready_file is None else str(of_member(self._ready_file, number))
        return msgspec.structs.replace(pattern, number=number, ready_file=own)

    async def run(self) -> int:
        """Run all processes until the last has ended. Returns the exit code of the first that failed, or 0."""
        async with anyio.create_task_group() as outer:
            outer.start_soon(self._obey_signals)
            if self._ready_file is not None:
                outer.start_soon(ReadyFile(self._ready_file).keep, self._ready)
            async with anyio.create_task_group() as group:
                for number, member in enumerate(self._members, 1):
                    group.start_soon(self._keep, number, member)
            outer.cancel_scope.cancel()
        return self._code

    def _ready(self) -> bool:
        return not self._stopping.is_set() and all_fresh(
            path for member in self._members if (path := member.ready_path)
        )

    async def _keep(self, number: int, member: Member) -> None:
        """Keep one process running. Replace it when it dies, until all are to stop."""
        deaths = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._live(number, member)
            deaths = deaths + 1 if time.monotonic() - started < EARLY else 1
            if not self._replaces(number, code):
                return
            delay = delay_after(deaths)
            logger.error("process %d %s; another takes its place in %.1f s", number, described(code), delay)
            with anyio.move_on_after(delay):
                await self._stopping.wait()

    async def _live(self, number: int, member: Member) -> int:
        """Start a process and wait until it ends. Returns its exit code."""
        async with await start(self._command, member) as process:
            self._processes[number] = process
            logger.info("process %d runs with id %d", number, process.pid)
            if self._stopping.is_set():  # the signal came during the start
                tell(process, signal.SIGTERM)
            try:
                return await process.wait()
            finally:
                del self._processes[number]
                if member.ready_path is not None:  # a killed process leaves it behind
                    member.ready_path.unlink(missing_ok=True)

    def _replaces(self, number: int, code: int) -> bool:
        """Whether to replace a process that has ended. If not, record its exit code."""
        if code == 0:
            return False  # the process was stopped, or the application stopped on its own
        if self._stopping.is_set():
            if code == -signal.SIGTERM:
                return False  # it was stopped before it installed its signal handlers
            logger.error("process %d %s", number, described(code))
            self._fail(code)
            return False
        if code in HOPELESS:
            logger.error("process %d %s: another would fare no better, so all stop", number, described(code))
            self._fail(code)
            self._pass_on(signal.SIGTERM)
            return False
        return True

    def _fail(self, code: int) -> None:
        self._code = self._code or exit_code(code)

    async def _obey_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
            async for number in received:
                self._signals += 1
                told, how = passed_on(self._signals)
                logger.info("%s to %d processes: %s", number.name, len(self._processes), how)
                self._pass_on(told)

    def _pass_on(self, number: signal.Signals) -> None:
        self._stopping.set()
        self._tell_stopping()
        for process in self._processes.values():
            tell(process, number)


def delay_after(deaths: int) -> float:
    """Seconds to wait before replacing a process, after this many early deaths in a row."""
    return float(min(FIRST_DELAY * 2 ** (deaths - 1), LONGEST_DELAY))
