"""The data that a child process of `headrace run` or `serve` gets from its parent: its number, its database, and
a pipe to detect the parent's death.

The parent holds the writing end of the pipe and never writes. The kernel closes it when the parent
dies, for whatever reason. Each child holds the reading end and then reads the end of the file.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import msgspec

_VARIABLE = "HEADRACE_CHILD"


class ChildInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The data that a child process gets from its parent.

    Attributes:
        number: the number of this process among several, from 1. None if it is the only one.
        parent_fd: the reading end of the parent's pipe.
        database: a URL that the parent passed down.
        ready_file: the ready file of this process.
        listen_fd: the socket that the server processes share.
        metrics_directory: where the server processes exchange their metrics.
    """

    number: int | None
    parent_fd: int
    database: str | None
    ready_file: str | None
    listen_fd: int | None = None
    metrics_directory: str | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment for the child process. Every user of the machine could see arguments."""
        return {**os.environ, _VARIABLE: msgspec.json.encode(self).decode()}

    @property
    def ready_path(self) -> Path | None:
        """The path of `ready_file`."""
        return None if self.ready_file is None else Path(self.ready_file)


def from_environment() -> ChildInfo | None:
    """Return the `ChildInfo` of this process, or None if it has no parent.

    The variable is removed from the environment, so that processes that this one starts don't inherit
    it.
    """
    text = os.environ.pop(_VARIABLE, None)
    if text is None:
        return None
    child = msgspec.json.decode(text, type=ChildInfo)
    for fd in (child.parent_fd, child.listen_fd):
        if fd is not None:
            os.set_inheritable(fd, False)
    return child


def stop_with_parent(child: ChildInfo) -> None:
    """Drain, as at SIGTERM, when the parent has died."""
    threading.Thread(target=_wait_for_parent_death, args=(child.parent_fd,), name="parent-watch", daemon=True).start()


def _wait_for_parent_death(fd: int) -> None:
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
