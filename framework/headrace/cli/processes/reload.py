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
from headrace.cli.problems import NoInput
from headrace.cli.processes.children import (
    command,
    described,
    lifeline,
    passed_on,
    start,
    tell,
)
from headrace.cli.processes.member import Member
from headrace.model.errors import ConfigurationError

logger = logging.getLogger("headrace")

GRACE = 5.0
"""Seconds that a process gets in addition to its shutdown_timeout before it is killed."""


def watched(target: str, besides: Iterable[Path]) -> list[Path]:
    """The directories to watch: the directory of a target's file, or the working directory for a
    module, and those in `besides`.

    Raises:
        ConfigurationError: watchfiles is not installed.
        NoInput: one of the directories doesn't exist.
    """
    if find_spec("watchfiles") is None:
        raise ConfigurationError("--reload needs watchfiles, which is not installed: pip install 'headrace[reload]'.")
    module = Path(target.rpartition(":")[0])
    found = [module.resolve().parent if module.suffix == ".py" else Path.cwd()]
    for directory in besides:
        if not directory.is_dir():
            raise NoInput(f"There is no directory {str(directory)!r} to watch.")
        found.append(directory.resolve())
    return list(dict.fromkeys(found))


async def run_reloading(target: str, directories: Sequence[Path], database: str | None, found: Settings) -> int:
    """Run and restart the application until SIGTERM or SIGINT. Returns the exit code, 0."""
    with lifeline() as fd:
        ready_file = None if found.ready_file is None else str(found.ready_file)
        member = Member(number=None, parent_fd=fd, database=database, ready_file=ready_file)
        await Reloader(command(found, "run", target), member, directories, found.shutdown_timeout + GRACE).run()
    return 0


class Reloader:
    """Runs one process at a time, and restarts it when files change.

    Args:
        words: the command line of the process.
        member: the `Member` of the process.
        directories: the directories to watch.
        patience: seconds that a process may take to end before it is killed.
    """

    def __init__(self, words: Sequence[str], member: Member, directories: Sequence[Path], patience: float) -> None:
        self._words = words
        self._member = member
        self._directories = directories
        self._patience = patience
        self._process: anyio.abc.Process | None = None
        self._changed = anyio.Event()
        self._stopping = False

    async def run(self) -> None:
        """Run until a signal comes and the process has ended."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            group.start_soon(self._obey_signals)
            while not self._stopping:
                # Set before the start, so that a change while the old code is being read causes another
                # restart.
                self._changed = anyio.Event()
                code = await self._live()
                if not self._changed.is_set():
                    logger.error("the app %s; it is started again when a file changes", described(code))
                    await self._changed.wait()
            group.cancel_scope.cancel()

    async def _live(self) -> int:
        """Run the process until it ends. Returns its exit code."""
        async with await start(self._words, self._member) as process, anyio.create_task_group() as group:
            self._process = process
            group.start_soon(self._end_when_changed, process)
            code = await process.wait()
            self._process = None
            group.cancel_scope.cancel()
        return code

    async def _end_when_changed(self, process: anyio.abc.Process) -> None:
        await self._changed.wait()
        if not self._stopping:
            tell(process, signal.SIGTERM)
            await anyio.sleep(self._patience)
            logger.warning("the app took longer than %g s to stop, and is killed", self._patience)
            tell(process, signal.SIGKILL)

    async def _watch(self) -> None:
        from watchfiles import PythonFilter, awatch

        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # at INFO it logs how many files change
        logger.info("watching %s for changes", ", ".join(map(str, self._directories)))
        async for changes in awatch(*self._directories, watch_filter=PythonFilter()):
            names = sorted({Path(path).name for _, path in changes})
            logger.info("%s changed; the app starts anew", ", ".join(names[:3]) + (", …" if len(names) > 3 else ""))
            self._changed.set()

    async def _obey_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
            count = 0
            async for number in received:
                count += 1
                told, how = passed_on(count)
                logger.info("%s: %s", number.name, how)
                self._stopping = True
                self._changed.set()
                if self._process is not None:
                    tell(self._process, told)
