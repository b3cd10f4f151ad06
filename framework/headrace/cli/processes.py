"""The parent of `headrace run --processes N`: starts the processes, passes signals on, and replaces those that die.

Each process is a `headrace run` of its own, in a session of its own, so that a terminal's Ctrl-C reaches it once, by way of
the parent. The parent stays connected: it has made the schema before any of them starts, and keeps the embedded
Postgres up while one of them is replaced.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.abc

from headrace.app.app import App
from headrace.cli.logs import LogLevel
from headrace.cli.member import Member

logger = logging.getLogger("headrace")

FIRST_DELAY, LONGEST_DELAY = 0.2, 30.0
"""Bounds of the wait before a process is replaced, in seconds. It doubles with each early death in a row."""
EARLY = 30.0
"""A process that lived for so many seconds was well, and its death is the first of a new row."""
HOPELESS = frozenset({64, 65, 66, 70, 73, 78})
"""Exit codes of errors that come again however often it is tried: usage, data, input, configuration."""


async def run_processes(app: App, target: str, count: int, log_level: LogLevel) -> int:
    """Run `count` processes until they are stopped or have ended by themselves. Returns the exit code."""
    async with app:
        with _lifeline() as lifeline:
            crew = Crew(target, count, log_level, app.dsn, lifeline)
            return await crew.run()


@contextmanager
def _lifeline() -> Iterator[int]:
    """The reading end of a pipe whose writing end only this process has."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


class Crew:
    """Several processes of one application."""

    def __init__(self, target: str, count: int, log_level: LogLevel, database: str | None, lifeline: int) -> None:
        self._command = [sys.executable, "-m", "headrace.cli.main", "run", target, "--log-level", log_level]
        self._members = [Member(number, lifeline, database) for number in range(1, count + 1)]
        self._lifeline = lifeline
        self._processes: dict[int, anyio.abc.Process] = {}
        self._stopping = anyio.Event()
        self._signals = 0
        self._code = 0

    async def run(self) -> int:
        """Run them all until the last has ended; the exit code is that of the first which failed, or 0."""
        async with anyio.create_task_group() as outer:
            outer.start_soon(self._obey_signals)
            async with anyio.create_task_group() as group:
                for member in self._members:
                    group.start_soon(self._keep, member)
            outer.cancel_scope.cancel()
        return self._code

    async def _keep(self, member: Member) -> None:
        """Keep one process running: replace it when it dies, until all are to stop."""
        deaths = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._live(member)
            deaths = deaths + 1 if time.monotonic() - started < EARLY else 1
            if not self._replaces(member, code):
                return
            delay = delay_after(deaths)
            logger.error("process %d %s; another takes its place in %.1f s", member.number, described(code), delay)
            with anyio.move_on_after(delay):
                await self._stopping.wait()

    async def _live(self, member: Member) -> int:
        """One life of a process; returns how it ended."""
        async with await anyio.open_process(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=None,
            stderr=None,
            env=member.environment(),
            pass_fds=[self._lifeline],
            start_new_session=True,
        ) as process:
            self._processes[member.number] = process
            logger.info("process %d runs with id %d", member.number, process.pid)
            if self._stopping.is_set():  # the signal came while it was being started
                self._tell(process, signal.SIGTERM)
            try:
                return await process.wait()
            finally:
                del self._processes[member.number]

    def _replaces(self, member: Member, code: int) -> bool:
        """Whether a process that has ended is to be replaced; otherwise notes its exit code."""
        if code == 0:
            return False  # it was stopped, or the application has stopped itself
        if self._stopping.is_set():
            if code == -signal.SIGTERM:
                return False  # it was stopped before it had begun
            logger.error("process %d %s", member.number, described(code))
            self._fail(code)
            return False
        if code in HOPELESS:
            logger.error("process %d %s: another would fare no better, so all stop", member.number, described(code))
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
                how = {1: "draining; again to stop at once", 2: "stopping at once"}.get(self._signals, "killing")
                logger.info("%s: %s %d processes", number.name, how, len(self._processes))
                self._pass_on(signal.SIGTERM if self._signals < 3 else signal.SIGKILL)

    def _pass_on(self, number: signal.Signals) -> None:
        self._stopping.set()
        for process in self._processes.values():
            self._tell(process, number)

    def _tell(self, process: anyio.abc.Process, number: signal.Signals) -> None:
        if process.returncode is None:
            process.send_signal(number)


def delay_after(deaths: int) -> float:
    """Seconds to wait before a process is replaced that has died early so many times in a row."""
    return float(min(FIRST_DELAY * 2 ** (deaths - 1), LONGEST_DELAY))


def described(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def exit_code(code: int) -> int:
    """An exit code for us after a process that ended with `code`: 128 + the signal, as shells have it."""
    return code if code >= 0 else 128 - code
