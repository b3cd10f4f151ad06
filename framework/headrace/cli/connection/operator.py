"""In whose name a command changes a database."""

from __future__ import annotations

import getpass
import socket

from headrace.model.watching.audit import Actor


def operator() -> Actor:
    """The system user that runs the command, and the machine, as in `ann@laptop`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id has no name, as in some containers
        return Actor(None, "cli")
    return Actor(f"{user}@{socket.gethostname()}", "cli")
