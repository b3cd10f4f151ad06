"""The parent process of `headrace run --reload`. It runs the application in a child process and
restarts it when files change.

The parent never imports the application, so code that can't be imported ends only the child. Its error
is shown, and the parent waits for the next change. The library watchfiles, from the extra `reload`,
watches the files.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import anyio
import anyio.abc

from headrace.app.settings import Settings
from headrace.cli.errors import UnreadableInput
from headrace.cli.processes.child_info import ChildInfo
from headrace.cli.processes.children import (
    KILL_DELAY,
    child_command,
    exit_fields,
    forwarded_signal,
    parent_pipe,
    send_signal,
    start_child,
)
from headrace.model.errors import ConfigurationError
from headrace.model.log import Log
from headrace.runtime.stop_signals import LAST, log_stop, on_stop_signals

log = Log("headrace")

KILL_GRACE = 5.0
"""Seconds that a process gets in addition to its shutdown_timeout before it is killed."""


def directories_to_watch(target: str, additional: Iterable[Path]) -> list[Path]:
    """Return the directory of a target's file, or the working directory for a module, and the additional
    directories.

    Raises:
        ConfigurationError: watchfiles is not installed.
        UnreadableInput: one of the directories doesn't exist.
    """
    if find_spec("watchfiles") is None:
        raise ConfigurationError(
            "--reload needs watchfiles, which is not installed. Install it with: pip install 'headrace[reload]'"
        )
    module = Path(target.rpartition(":")[0])
    directories = [module.resolve().parent if module.suffix == ".py" else Path.cwd()]
    for directory in additional:
        if not directory.is_dir():
            raise UnreadableInput(f"The directory {str(directory)!r} of --reload-dir does not exist.")
        directories.append(directory.resolve())
    return list(dict.fromkeys(directories))


async def run_with_reload(
    target: str, directories: Sequence[Path], database: str | None, settings: Settings, *words: str
) -> int:
    """Run and restart the application until SIGTERM, SIGINT or SIGHUP. Returns the exit code, 0.

    Args:
        words: further words of the command line.
    """
    with parent_pipe() as fd:
        ready_file = None if settings.ready_file is None else str(settings.ready_file)
        child = ChildInfo(number=None, parent_fd=fd, database=database, ready_file=ready_file)
        command = child_command(settings, "run", target, *words)
        await Reloader(command, child, directories, settings.shutdown_timeout + KILL_GRACE).run()
    return 0


class Reloader:
    """Runs one process at a time, and restarts it when files change.

    Args:
        command: the command line of the process.
        child: the `ChildInfo` of the process.
        directories: the directories to watch.
        kill_after: seconds that a process may take to end before it is killed.
    """

    def __init__(
        self, command: Sequence[str], child: ChildInfo, directories: Sequence[Path], kill_after: float
    ) -> None:
        self._command = command
        self._child = child
        self._directories = directories
        self._kill_after = kill_after
        self._process: anyio.abc.Process | None = None
        self._changed = anyio.Event()
        self._stopping = False

    async def run(self) -> None:
        """Run until a signal comes and the process has ended."""
        async with on_stop_signals(self._forward, last=LAST + 1), anyio.create_task_group() as group:
            self._group = group
            group.start_soon(self._watch)
            while not self._stopping:
                # Set before the start, so that a change while the old code is being read causes another
                # restart.
                self._changed = anyio.Event()
                code = await self._run_child()
                if not self._changed.is_set():
                    log.error("app ended", **exit_fields(code), hint="it restarts when a file changes")
                    await self._changed.wait()
            group.cancel_scope.cancel()

    async def _run_child(self) -> int:
        """Run the process until it ends. Returns its exit code."""
        async with await start_child(self._command, self._child) as process, anyio.create_task_group() as group:
            self._process = process
            if self._stopping:  # the signal came during the start
                send_signal(process, signal.SIGTERM)
            group.start_soon(self._stop_on_change, process)
            code = await process.wait()
            self._process = None
            group.cancel_scope.cancel()
        return code

    async def _stop_on_change(self, process: anyio.abc.Process) -> None:
        await self._changed.wait()
        if not self._stopping:
            send_signal(process, signal.SIGTERM)
            await anyio.sleep(self._kill_after)
            log.warning("app did not stop, killing it", seconds=self._kill_after)
            send_signal(process, signal.SIGKILL)

    async def _watch(self) -> None:
        from watchfiles import PythonFilter, awatch

        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # at INFO it logs how many files change
        log.info("watching for changes", directories=", ".join(map(str, self._directories)))
        async for changes in awatch(*self._directories, watch_filter=PythonFilter()):
            names = sorted({Path(path).name for _, path in changes})
            log.info("files changed, restarting", files=", ".join(names[:3]) + (", …" if len(names) > 3 else ""))
            self._changed.set()

    def _forward(self, number: signal.Signals, count: int) -> None:
        log_stop(number, count)
        self._stopping = True
        self._changed.set()
        if self._process is not None:
            send_signal(self._process, forwarded_signal(count))
            if count == LAST:
                self._group.start_soon(self._kill, self._process)

    async def _kill(self, process: anyio.abc.Process) -> None:
        await anyio.sleep(KILL_DELAY)
        send_signal(process, signal.SIGKILL)
