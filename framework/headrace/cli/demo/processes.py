"""The worker processes of the demo."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO

import anyio
import anyio.abc

from headrace.cli.demo.worker_settings import WorkerSettings
from headrace.cli.errors import StoppedEarly
from headrace.cli.processes.child_info import ChildInfo
from headrace.cli.processes.children import parent_pipe

STOP_WITHIN = 10.0
"""Seconds that a process has to end after SIGTERM."""


class Workers:
    """Starts worker processes, and replaces those that are killed.

    Args:
        settings: what they are told.
        child: their database, and the pipe by which they notice that this process has died.
        errors: a file for what they print.
    """

    def __init__(self, settings: WorkerSettings, child: ChildInfo, errors: IO[bytes]) -> None:
        run = ("run", "headrace.cli.demo.worker:app", "--log-level", "error")
        self._command = (sys.executable, "-m", "headrace.cli.main", *run)
        self._environment = child.environment() | settings.environment()
        self._environment.pop("HEADRACE_SERVER", None)
        self._parent_fd = child.parent_fd
        self._errors = errors
        self.running: list[anyio.abc.Process] = []

    async def start(self) -> anyio.abc.Process:
        process = await anyio.open_process(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            env=self._environment,
            pass_fds=[self._parent_fd],
            start_new_session=True,
        )
        self.running.append(process)
        return process

    async def kill_one(self) -> int:
        """Kill the oldest process with SIGKILL, and start another. Returns the id of the killed one."""
        process = self.running.pop(0)
        process.kill()
        await process.wait()
        await self.start()
        return process.pid

    def check(self) -> None:
        """Raise `StoppedEarly`, with what it printed, if a process has ended by itself."""
        for process in self.running:
            if process.returncode is not None:
                self._errors.seek(0)
                text = self._errors.read().decode("utf-8", "replace").strip()
                raise StoppedEarly(
                    f"A worker process has ended with exit code {process.returncode}: {text}", process.returncode or 1
                )

    async def stop(self) -> None:
        """Stop all processes. Handlers finish first."""
        for process in self.running:
            if process.returncode is None:
                process.terminate()
        with anyio.move_on_after(STOP_WITHIN):
            for process in self.running:
                await process.wait()
        for process in self.running:
            if process.returncode is None:
                process.kill()
                await process.wait()


@asynccontextmanager
async def workers(settings: WorkerSettings, database: str, count: int) -> AsyncIterator[Workers]:
    """Run worker processes in the block."""
    with tempfile.TemporaryFile() as errors, parent_pipe() as parent_fd:
        child = ChildInfo(number=None, parent_fd=parent_fd, database=database, ready_file=None)
        them = Workers(settings, child, errors)
        try:
            for _ in range(count):
                await them.start()
            yield them
        finally:
            with anyio.CancelScope(shield=True):
                await them.stop()
