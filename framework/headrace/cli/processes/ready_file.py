"""The ready file: it exists and is fresh while the process is ready. It serves probes that check files,
such as those of Kubernetes.

It is touched once a second from the event loop. An old file means that the loop is blocked or that the
process was killed. Each of several processes keeps its own file. Their parent keeps the file that
was named while all of theirs are fresh.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import anyio

from headrace.cli.errors import CannotCreate
from headrace.model.log import Log

log = Log("headrace")

TOUCH_INTERVAL = 1.0
"""Seconds between touches."""

MAX_AGE = 5.0
"""A file counts as fresh for this many seconds after it was touched."""


class ReadyFile:
    """Keeps one ready file. It replaces an empty file, which a killed process may have left."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failing = False

    async def keep(self, ready: Callable[[], object]) -> None:
        """Update the file from `ready` until cancelled, then remove it. Raises `CannotCreate` if it can't
        be created at first.
        """
        self._prepare()
        try:
            while True:
                self.update(ready())
                await anyio.sleep(TOUCH_INTERVAL)
        finally:
            self._path.unlink(missing_ok=True)

    def _prepare(self) -> None:
        try:
            if self._path.exists() and (not self._path.is_file() or self._path.stat().st_size):
                raise CannotCreate(f"The ready file {self._path} exists and is not an empty file. Give another path.")
            self._path.unlink(missing_ok=True)
            # Test with another file in the same directory, because a probe must not see the ready file
            # yet.
            with tempfile.TemporaryFile(dir=self._path.parent):
                pass
        except OSError as error:
            raise CannotCreate(
                f"The ready file {self._path} can't be created: {error.strerror}. Give another path."
            ) from error

    def update(self, ready: object) -> None:
        """Touch the file if ready, otherwise remove it."""
        try:
            if ready:
                self._path.touch()
            else:
                self._path.unlink(missing_ok=True)
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("ready file failed", path=str(self._path), error=error.strerror)
            self._failing = True


def child_ready_file(path: Path, number: int) -> Path:
    """Return the ready file of one process among several."""
    return path.with_name(f"{path.name}.{number}")


def all_fresh(paths: Iterable[Path]) -> bool:
    """Return whether all of the files exist and are fresh."""
    return all(_is_fresh(path) for path in paths)


def _is_fresh(path: Path) -> bool:
    try:
        return abs(time.time() - path.stat().st_mtime) < MAX_AGE  # the clock may have been set back
    except OSError:
        return False
