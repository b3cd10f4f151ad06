"""The signals that stop a process, in the process that handles them and in the children that it forks.

Your code may fork: `multiprocessing` does, up to Python 3.13, unless it is told otherwise. A forked child inherits what
its parent does at a signal, and the file descriptor by which a signal wakes the event loop of the parent. So with
`Pool.terminate()` the parent would drain, and wait for a child that continues. In a forked child SIGTERM does again
what it did before the parent handled it. SIGINT and SIGHUP, which a terminal sends to the child, too, are left to the
parent.

A terminal that is closed sends SIGHUP, often twice: the kernel sends one, and the shell another. So it counts as one signal.
`nohup` ignores SIGHUP, and then it stays ignored.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from headrace.model.log import Log

log = Log("headrace")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that reach a whole process group, from a terminal or a service manager."""

LAST = 3
"""The number of the signal that ends the process, whatever it does."""

REPORT_TIMEOUT = 2.0
"""Seconds that a process may take to report what it was at, before the last signal ends it."""

_before: list[Any] = []  # what SIGTERM did before each open context of `handled_here`, the outermost first
_forking = threading.local()


@asynccontextmanager
async def on_stop_signals(
    act: Callable[[signal.Signals, int], None], report: Callable[[], None] = lambda: None, *, last: int = LAST
) -> AsyncIterator[None]:
    """Handle the stop signals in an event loop of the main thread, see `handled_here`.

    Args:
        act: called in the event loop at each signal, with the number of signals so far.
        report: called before the last signal ends the process, in the main thread, where the loop may be blocked.
        last: the number of the signal that ends the process.
    """
    import anyio  # here, since commands without an event loop use the rest

    before = {number: signal.getsignal(number) for number in handled_signals()}
    with handled_here(), anyio.open_signal_receiver(*before) as received:

        async def receive() -> None:
            count = 0
            async for number in received:
                if _is_repeated(number, count):
                    continue
                count += 1
                act(number, count)
                if count >= last:
                    end(number)

        end = _end_at(last, report)
        receiving = asyncio.create_task(receive(), name="headrace stop signals")
        try:
            yield
        finally:
            receiving.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([receiving])
    for number, handler in before.items():
        if handler is not None:  # it was none of Python's
            signal.signal(number, handler)


def handled_signals() -> tuple[signal.Signals, ...]:
    """Return the stop signals that this process handles: all, but not SIGHUP if whoever started it ignores that."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return STOP_SIGNALS[:-1] if ignored else STOP_SIGNALS


def _is_repeated(number: int, count: int) -> bool:
    return number == signal.SIGHUP and count > 0


def log_stop(number: signal.Signals, count: int, *, starting: bool = False, processes: int | None = None) -> None:
    """Log the effect of a stop signal.

    Args:
        count: the number of stop signals so far.
        starting: whether the process has not begun its work.
        processes: the number of processes that are stopped, if there are several.
    """
    name = signal.Signals(number).name
    if count == 1 and starting:
        log.info("stopping during the start", signal=name)
    elif count == 1:
        log.info("draining", signal=name, processes=processes, hint="a second signal stops immediately")
    elif count == 2:
        log.info("stopping immediately", signal=name, processes=processes, hint="a third signal ends the process")
    else:
        log.info("killing processes" if processes else "ending the process", signal=name, processes=processes)


def _end_at(last: int, report: Callable[[], None]) -> Callable[[int], None]:
    """End the process at this signal, also if the event loop is blocked. The handlers replace those of the event loop, which
    still gets the signals through its file descriptor. Returns the function that ends the process, for a loop that has
    counted as many: of signals that follow each other closely, Python may handle two as one."""
    count, ending = 0, False

    def end(number: int) -> None:
        nonlocal ending
        if not ending:
            ending = True
            threading.Thread(target=_end_soon, args=(number,), daemon=True).start()
            with suppress(Exception):
                log.error("process ended by a signal before it had stopped", signal=signal.Signals(number).name)
                report()
            end_by(signal.Signals(number))

    def count_signal(number: int, _: FrameType | None) -> None:
        nonlocal count
        if _is_repeated(number, count):
            return
        count += 1
        if count >= last:
            end(number)

    for number in handled_signals():
        signal.signal(number, count_signal)
        signal.siginterrupt(number, False)
    return end


def _end_soon(number: int) -> NoReturn:
    time.sleep(REPORT_TIMEOUT)  # a lock that the report needs may be held for ever
    os._exit(128 + number)


def end_by(number: signal.Signals) -> NoReturn:
    """End this process by a signal, in the main thread, so that its parent sees what has ended it."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a container is not ended by its own signal


@contextmanager
def handled_here() -> Iterator[None]:
    """Inside this context, this process handles the stop signals, and the children that it forks do not. Enter it
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
        for number in handled_signals():
            if number is not signal.SIGTERM:
                signal.signal(number, leave_alone)
        _before.clear()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
