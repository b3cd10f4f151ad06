"""What a process knows that another `headrace run` or `serve` has started: its number, its database, and whether its parent lives.

The parent holds the writing end of a pipe and never writes. The kernel closes it when the parent dies, however it dies, and
each child, which holds the reading end, reads the end of the file.
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
        number: which one of several, from 1; None if it is the only one.
        parent_fd: the reading end of the parent's pipe.
        database: a URL that was passed down.
        ready_file: where it tells that it is ready.
        listen_fd: the socket that a server shares with its siblings ...
        directory: ... and where they tell each other what they did.
    """

    number: int | None
    parent_fd: int
    database: str | None
    ready_file: str | None
    listen_fd: int | None = None
    directory: str | None = None

    def environment(self) -> dict[str, str]:
        """The environment for its process. Not its arguments, which everybody on the machine can read."""
        return {**os.environ, _VARIABLE: msgspec.json.encode(self).decode()}

    @property
    def ready_path(self) -> Path | None:
        return None if self.ready_file is None else Path(self.ready_file)


def from_environment() -> Member | None:
    """The member that this process is, if it is one. Taken out of the environment: it is not for processes that it starts."""
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
