"""The ready file: there, and fresh, while the process is ready; for probes that look at files, such as those of Kubernetes.

It is touched once a second, from the event loop: one that is there and old tells that the loop is blocked, or that the process was killed.
Of several processes each keeps one of its own, and their parent keeps the one that was asked for while all of theirs are fresh.
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
    """Keeps one file. An empty one that is there already was left behind, and is taken over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._troubled = False

    async def keep(self, ready: Callable[[], object]) -> None:
        """Keep it, by what `ready` says, until cancelled; then remove it. Raises `CantCreate` when it can't be made at all."""
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
            # Tried beside it: a probe must not see it for a moment.
            with tempfile.TemporaryFile(dir=self._path.parent):
                pass
        except OSError as error:
            raise CantCreate(f"The ready file {self._path} can't be made: {error.strerror}.") from error

    def tell(self, ready: object) -> None:
        """Have it there and fresh, or not there."""
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
    """The file of one process among several."""
    return path.with_name(f"{path.name}.{number}")


def all_fresh(paths: Iterable[Path]) -> bool:
    """Whether each of the files is there and fresh."""
    return all(_is_fresh(path) for path in paths)


def _is_fresh(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < FRESH
    except OSError:
        return False
