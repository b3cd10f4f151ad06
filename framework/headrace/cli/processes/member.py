"""What a child process of `headrace run` or `serve` gets from its parent: its number, its database, and
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

_VARIABLE = "HEADRACE_MEMBER"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A process with a parent.

    Attributes:
        number: the number of this process among several, from 1. None if it is the only one.
        parent_fd: the reading end of the parent's pipe.
        database: a URL that the parent passed down.
        ready_file: the ready file of this process.
        listen_fd: the socket that the server processes share.
        directory: where the server processes exchange their metrics.
    """

    number: int | None
    parent_fd: int
    database: str | None
    ready_file: str | None
    listen_fd: int | None = None
    directory: str | None = None

    def environment(self) -> dict[str, str]:
        """The environment for the child process. Arguments would be visible to every user of the machine."""
        return {**os.environ, _VARIABLE: msgspec.json.encode(self).decode()}

    @property
    def ready_path(self) -> Path | None:
        return None if self.ready_file is None else Path(self.ready_file)


def from_environment() -> Member | None:
    """The `Member` of this process, or None if it has no parent.

    The variable is removed from the environment, so that processes that this one starts don't inherit
    it.
    """
    text = os.environ.pop(_VARIABLE, None)
    if text is None:
        return None
    me = msgspec.json.decode(text, type=Member)
    for fd in (me.parent_fd, me.listen_fd):
        if fd is not None:
            os.set_inheritable(fd, False)
    return me


def end_with_parent(me: Member) -> None:
    """Drain, as at SIGTERM, when the parent has died."""
    threading.Thread(target=_watch, args=(me.parent_fd,), name="parent-watch", daemon=True).start()


def _watch(fd: int) -> None:
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
