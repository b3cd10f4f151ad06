"""File locks (flock), which the kernel frees when their holder dies, however it dies.

There are three kinds. The *start lock* serializes starting and stopping. A *user's lock* is held by
each process that uses the server. The *server's lock* is handed down to Postgres itself, and all
its processes inherit it. It is free again exactly when the last of them is gone. No process id has to be trusted,
which could belong to another program by now, or to a zombie that was never reaped.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.embedded.os_user import open_for_owner
from headrace.model.errors import EmbeddedPostgresError

POLL = 0.01
"""Seconds between two checks of something that is about to change."""

_ours: set[int] = set()  # descriptors that a forked child closes


def open_locked(path: Path) -> int | None:
    """Open the file (created if missing) and lock it exclusively. None when another process holds it."""
    fd = open_for_owner(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_still_there(fd, path):
            raise BlockingIOError  # it was deleted between our opening and locking it
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    _ours.add(fd)
    return fd


def release_lock(fd: int) -> None:
    """Unlock and close. The explicit unlock works even when a child process still has the file open."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    close_only(fd)


def close_in_children(fd: int) -> None:
    """Let forked children close this descriptor too, as they do with locks."""
    _ours.add(fd)


def close_only(fd: int) -> None:
    """Close our end of something that a child process continues to hold."""
    _ours.discard(fd)
    os.close(fd)


def is_held(path: Path) -> bool:
    """Whether any process holds the lock.

    The check takes a shared lock for a moment. Checks do not disturb each other, but a process that
    wants the lock must try again when it meets a check.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def open_locked_soon(path: Path, wait: float) -> int | None:
    """`open_locked`, retried for up to `wait` seconds."""
    deadline = time.monotonic() + wait
    while (fd := open_locked(path)) is None:
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL)
    return fd


@contextmanager
def exclusive(path: Path, wait: float) -> Iterator[None]:
    """Hold the lock inside the block.

    Raises `EmbeddedPostgresError` when another process still holds it after `wait` seconds.
    """
    fd = open_locked_soon(path, wait)
    if fd is None:
        raise EmbeddedPostgresError(
            f"Another process has been starting or stopping this Postgres for more than {wait:.0f} s "
            f"(it holds {path}). End that process, or wait for it, and try again."
        )
    try:
        yield
    finally:
        release_lock(fd)


def _is_still_there(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _close_in_child() -> None:
    # A fork shares its parent's locks. Closing (not unlocking) leaves them to the parent alone.
    for fd in _ours:
        os.close(fd)
    _ours.clear()


os.register_at_fork(after_in_child=_close_in_child)
