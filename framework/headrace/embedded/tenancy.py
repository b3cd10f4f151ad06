"""Who uses the server. Each user holds a lock on a file of its own, which the kernel frees when it dies."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.embedded import locks
from headrace.embedded.places import Seat


def register(seat: Seat) -> tuple[Path, int]:
    """Makes this process a user; returns its file and the lock on it. The caller holds the start lock."""
    while True:
        path = seat.users / f"{os.getpid()}-{secrets.token_hex(4)}"
        if (lock := locks.open_locked(path)) is not None:  # None: somebody was looking just then
            return path, lock


def users(seat: Seat) -> list[Path]:
    """The files of those that live."""
    try:
        return sorted(path for path in seat.users.iterdir() if locks.is_held(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def pids(seat: Seat) -> list[int]:
    """The process ids of the users, one for each process."""
    return sorted({int(path.name.partition("-")[0]) for path in users(seat)})


def sweep(seat: Seat) -> None:
    """Deletes what killed users left behind. The caller holds the start lock."""
    living = set(users(seat))
    for path in seat.users.iterdir():
        if path not in living:
            path.unlink(missing_ok=True)


class Tenancy:
    """One use of the embedded server, from `acquire` to `release`; a context manager.

    The server stays up while anybody has one. It ends with `release()`, with the block, with the
    interpreter, or when the process is killed. A forked child does not share it.
    """

    def __init__(self, url: str, path: Path, lock: int, leave: Callable[[Path, int], None]) -> None:
        self.url = url
        """Where to connect: a libpq URL, as asyncpg and psycopg take it."""
        self._path = path
        self._lock = lock
        self._leave = leave
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._released = False
        atexit.register(self.release)

    def release(self) -> None:
        """Leaves. The last user to leave stops the server, unless it was started explicitly.

        May be called again, and from any thread. Blocks for as long as stopping takes.
        Raises `EmbeddedPostgresError` if the server could not be stopped.
        """
        if os.getpid() != self._pid:
            return
        with self._guard:
            if self._released:
                return
            self._released = True
        atexit.unregister(self.release)
        self._leave(self._path, self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        # Without the URL, which may hold a password.
        return f"<Tenancy {'released' if self._released else 'held'}>"
