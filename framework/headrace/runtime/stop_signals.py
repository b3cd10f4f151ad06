"""The signals that stop a process, in the process that handles them and in the children that it forks.

Your code may fork: `multiprocessing` does, up to Python 3.13, unless it is told otherwise. A forked child inherits what its
parent does at a signal, and the file descriptor by which a signal wakes the event loop of the parent. So with
`Pool.terminate()` the parent would drain, and wait for a child that goes on. In a forked child SIGTERM does again what
it did before the parent handled it. SIGINT, which a terminal sends to the child, too, is left to the parent.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that reach a whole process group, from a terminal or a service manager."""

_before: list[Any] = []  # what SIGTERM did before each open context of `handled_here`, the outermost first
_forking = threading.local()


@contextmanager
def stop_signals() -> Iterator[AsyncIterator[signal.Signals]]:
    """Receive SIGTERM and SIGINT in an event loop of the main thread, see `handled_here`."""
    with handled_here(), anyio.open_signal_receiver(*STOP_SIGNALS) as received:
        yield received


@contextmanager
def handled_here() -> Iterator[None]:
    """Inside this context, this process handles SIGTERM and SIGINT, and the children that it forks do not. Enter it
    before the handlers are set."""
    _before.append(signal.getsignal(signal.SIGTERM))
    try:
        yield
    finally:
        _before.pop()


def leave_alone(*_: object) -> None:
    """Handle a signal by doing nothing. It is not ignored, since programs that the process starts would inherit that."""


def _before_fork() -> None:
    # A signal that comes before the child has its own handlers waits for them.
    if _before:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _after_fork() -> None:
    mask = _forking.__dict__.pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    if _before:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL if _before[0] is None else _before[0])
        signal.signal(signal.SIGINT, leave_alone)
        _before.clear()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
