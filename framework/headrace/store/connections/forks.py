"""Connections in the children that a process forks, as handlers do with `multiprocessing` up to Python 3.13.

A child has the sockets of its parent. If the parent is killed while a child lives, the server doesn't notice, and keeps the
sessions of the parent. A child that continues in the parent's code would write into them. So a child gives them up.
"""

from __future__ import annotations

import os
import stat
from typing import Protocol
from weakref import WeakSet


class HasDescriptor(Protocol):
    """A connection. `descriptor` is the number of its socket, None if that is closed."""

    @property
    def descriptor(self) -> int | None: ...


_connections: WeakSet[HasDescriptor] = WeakSet()


def give_up_in_children(connection: HasDescriptor) -> None:
    """Let the children that are forked from now on give up a connection."""
    _connections.add(connection)


def _in_child() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for connection in _connections:
        number = connection.descriptor
        # The number is not free afterwards, since the child closes it when it collects what holds it.
        if number is not None and stat.S_ISSOCK(os.fstat(number).st_mode):
            os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_in_child)
