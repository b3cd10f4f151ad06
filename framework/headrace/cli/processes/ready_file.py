"""The ready file: it exists and is fresh while the process is ready. It serves probes that check files,
such as those of Kubernetes.

It is touched once a second from the event loop. An old file means that the loop is blocked or that the
process was killed. Each of several processes keeps a file of its own. Their parent keeps the file that
was named while all of theirs are fresh.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import anyio

from headrace.cli.problems import CantCreate

logger = logging.getLogger("headrace")

INTERVAL = 1.0
"""Seconds between touches."""

FRESH = 5.0
"""Seconds for which a file counts as fresh to the parent of several processes."""


class ReadyFile:
    """Keeps one ready file. An empty file that exists already is taken as a leftover and replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._troubled = False

    async def keep(self, ready: Callable[[], object]) -> None:
        """Update the file from `ready` until cancelled, then remove it. Raises `CantCreate` if it can't
        be created at first.
        """
        self._begin()
        try:
            while True:
                self.tell(ready())
                await anyio.sleep(INTERVAL)
        finally:
            self._path.unlink(missing_ok=True)

    def _begin(self) -> None:
        try:
            if self._path.exists() and (not self._path.is_file() or self._path.stat().st_size):
                raise CantCreate(f"{self._path} is not an empty file, so it is no ready file: name another.")
            self._path.unlink(missing_ok=True)
            # Test with another file in the same directory, because a probe must not see the ready file
            # yet.
            with tempfile.TemporaryFile(dir=self._path.parent):
                pass
        except OSError as error:
            raise CantCreate(f"The ready file {self._path} can't be made: {error.strerror}.") from error

    def tell(self, ready: object) -> None:
        """Touch the file if ready, otherwise remove it."""
        try:
            if ready:
                self._path.touch()
            else:
                self._path.unlink(missing_ok=True)
            self._troubled = False
        except OSError as error:
            if not self._troubled:
                logger.warning("the ready file %s can't be kept: %s", self._path, error.strerror)
            self._troubled = True


def of_member(path: Path, number: int) -> Path:
    """The ready file of one process among several."""
    return path.with_name(f"{path.name}.{number}")


def all_fresh(paths: Iterable[Path]) -> bool:
    """Whether all of the files exist and are fresh."""
    return all(_is_fresh(path) for path in paths)


def _is_fresh(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < FRESH
    except OSError:
        return False
