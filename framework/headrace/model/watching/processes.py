"""The name of a process in figures, errors and histories: `host:pid`."""

from __future__ import annotations

import os
import socket


def process_name(host: str | None, pid: int | None) -> str:
    """The name of a process. A part that is not known is `?`."""
    return f"{host or '?'}:{pid or '?'}"


def own_process_name() -> str:
    """The name of this process. Its heartbeat has the same host and process id."""
    return process_name(socket.gethostname(), os.getpid())
