"""Users of the server. Each holds a lock on its own file, which the kernel frees when it dies, and has a survivor."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.embedded import locks, survivor
from headrace.embedded.paths import ServerDirectory


@dataclass(frozen=True, slots=True)
class User:
    """A use of the server by this process: its file with the lock on it, and the pipe to its survivor."""

    path: Path
    lock: int
    pipe: int

    def leave(self) -> None:
        """End the use. The server is not stopped."""
        self.path.unlink(missing_ok=True)
        locks.release_lock(self.lock)

    def dismiss(self) -> None:
        """End the survivor, once the server was stopped if no other uses it."""
        survivor.dismiss(self.pipe)


def register(server_dir: ServerDirectory, data_dir: Path) -> User:
    """Register this process as a user. The caller holds the start lock."""
    pipe = survivor.start(data_dir)
    try:
        while True:
            path = server_dir.users / f"{os.getpid()}-{secrets.token_hex(4)}"
            if (lock := locks.open_locked(path)) is not None:  # None: another process was checking the lock just then
                return User(path, lock, pipe)
    except BaseException:
        survivor.dismiss(pipe)
        raise


def users(server_dir: ServerDirectory) -> list[Path]:
    """The files of the living users."""
    try:
        return sorted(path for path in server_dir.users.iterdir() if locks.is_held(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def pids(server_dir: ServerDirectory) -> list[int]:
    """The process ids of the users, one for each process."""
    return sorted({int(path.name.partition("-")[0]) for path in users(server_dir)})


def remove_dead(server_dir: ServerDirectory) -> None:
    """Delete the files of killed users. The caller holds the start lock."""
    living_pid = set(users(server_dir))
    for path in server_dir.users.iterdir():
        if path not in living_pid:
            path.unlink(missing_ok=True)


class ServerHandle:
    """One use of the embedded server, from `acquire` to `release`. A context manager.

    The server stays up while any process has one. It ends with `release()`, with the block, with
    the interpreter, or when the process is killed. A forked child does not share it.
    """

    def __init__(self, url: str, user: User, release: Callable[[User], None]) -> None:
        self.url = url
        """The libpq URL to connect to, for asyncpg and psycopg."""
        self._user = user
        self._release = release
        self._pid = os.getpid()
        self._lock_once = threading.Lock()
        self._released = False
        atexit.register(self.release)

    def release(self) -> None:
        """Release the server. The last user to leave stops it, unless it was started explicitly.

        May be called again, and from any thread. Blocks for as long as stopping takes. Raises
        `EmbeddedPostgresError` if the server could not be stopped.
        """
        if os.getpid() != self._pid:
            return
        with self._lock_once:
            if self._released:
                return
            self._released = True
        atexit.unregister(self.release)
        self._release(self._user)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        # Without the URL, which may hold a password.
        return f"<Tenancy {'released' if self._released else 'held'}>"
