"""The watchdog of transforms: stops a source whose transform does not return.

Transforms run on the event loop of their process, one message after the other, since a thread for each change would cost
more than most transforms do. One that never returns would hold up the process, and then every process that takes the
source over. A thread therefore watches the calls. When one takes too long,

1.  the call is interrupted: a signal makes Python run a handler in the main thread, between two steps of the function,
    and the handler raises an exception there. That ends endless loops and waits, and nothing else, since the handler
    does nothing outside of that call. The thread can't run beside a regular expression, which holds the interpreter's
    lock, so a timer of the kernel that counts CPU time sends a second signal.
2.  If the function still continues, because it catches every exception or waits in native code, the thread stores
    over its own connection that the source is stopped. Then it ends the process, if that is one of `headrace run` or
    `headrace serve`, which a supervisor starts again. In another program it keeps logging where the function is.

A stopped source stays stopped until it is resumed, whichever processes start meanwhile. Native code that holds the
interpreter's lock and ignores signals can't be stopped.

Thread and timer count their own ticks, not seconds. A process that was frozen, or whose machine slept, has therefore
not taken long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from headrace.model.log import Log
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.rules.transforms import Transform

log = Log("headrace")

TICK = 0.25
"""Seconds between two looks of the thread, and seconds of CPU time between two of the timer."""

RECORD_TIMEOUT = 10.0
"""Longest time in seconds to store that the source is stopped."""

EXIT_CODE = 75
"""EX_TEMPFAIL: the exit code of a process that a transform holds up. Another one may start immediately."""

_SIGNAL: signal.Signals | int | None = getattr(signal, "SIGRTMIN", None) and signal.SIGRTMIN + 7
"""A signal that programs rarely use. None where there are no such signals. Then only the second step is left."""

Record = Callable[[SourceStopped], Coroutine[Any, Any, None]]
"""Stores that the source is stopped. It runs in an event loop of its own."""

_may_end_process = False


def let_end_process() -> None:
    """Let a transform that can't be interrupted end this process. For processes that a supervisor starts again."""
    global _may_end_process
    _may_end_process = True


class TransformStuck(SourceStopped):
    """A transform did not return. The source is stopped until it is resumed."""


class _Interruption(BaseException):
    """Raised in a transform that takes too long. No `except Exception` catches it."""


_watchdogs: set[TransformWatchdog] = set()
"""The watchdogs of the main thread that watch."""


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Handle the signal, in the main thread: interrupt a call that takes too long, and nothing else."""
    if any(watchdog._is_late for watchdog in _watchdogs):
        raise _Interruption


def _look(_number: int, _frame: FrameType | None) -> None:
    """Handle the signal of the timer, in the main thread."""
    for watchdog in _watchdogs:
        watchdog._look_at_cpu_time()


class TransformWatchdog:
    """Watches the transforms that one event loop runs.

    Args:
        timeout: seconds that a call may take, of those in which this process runs.
        grace: seconds from the interruption to the second step.
    """

    def __init__(self, timeout: float, grace: float) -> None:
        self._timeout = timeout
        self._grace = grace
        self._users = 0
        self._stop = threading.Event()
        self._calls = 0  # begun so far
        self._current: _Watched | None = None  # whose call is running
        self._interrupted = 0  # the number of the call that is to be interrupted
        self._seen, self._cpu_ticks, self._seen_at = 0, 0, 0.0  # the call that the timer saw, how often, and since when
        self._loop_thread = 0

    def __enter__(self) -> TransformWatchdog:
        """Watch until the end of the block, in the thread of the event loop."""
        self._users += 1
        if self._users == 1:
            self._loop_thread = threading.get_ident()
            self._stop = threading.Event()
            can_interrupt = self._install_handler()
            if can_interrupt:
                _watchdogs.add(self)
            threading.Thread(
                target=self._watch, args=(self._stop, can_interrupt), name="transform-watchdog", daemon=True
            ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if self._users == 0:
            self._stop.set()
            _watchdogs.discard(self)
            if not _watchdogs and signal.getsignal(signal.SIGVTALRM) is _look:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def watched(self, function: Transform, name: str, source: str, record: Record) -> Transform:
        """Return the function, with its calls watched.

        Args:
            function: the transform.
            name: its name, `module:name`.
            source: the name of its source.
            record: stores that the source is stopped, if the call can't be interrupted.

        Returns:
            A function that raises `TransformStuck` if a call does not return in time.
        """
        return _Watched(self, function, name, source, record)

    # --- in the thread of the event loop

    def _install_handler(self) -> bool:
        """Install the handler of the signal. Returns whether calls can be interrupted: only those of the main thread
        can, and only if the program does not use the signal itself.
        """
        if _SIGNAL is None or threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(_SIGNAL) not in (signal.SIG_DFL, _interrupt):
            return False
        signal.signal(_SIGNAL, _interrupt)  # it stays, since a late signal would end the process without a handler
        if signal.getsignal(signal.SIGVTALRM) in (signal.SIG_DFL, _look):
            signal.signal(signal.SIGVTALRM, _look)
            signal.siginterrupt(signal.SIGVTALRM, False)
            signal.setitimer(signal.ITIMER_VIRTUAL, TICK, TICK)
        return True

    def _look_at_cpu_time(self) -> None:
        """Interrupt a call that has taken too long, both of CPU time and of time."""
        if self._current is None or self._calls != self._seen:
            self._seen, self._cpu_ticks, self._seen_at = self._calls, 0, time.monotonic()
            return
        self._cpu_ticks += 1
        if self._cpu_ticks * TICK >= self._timeout and time.monotonic() - self._seen_at >= self._timeout:
            raise _Interruption

    @property
    def _is_late(self) -> bool:
        """Whether the call that is to be interrupted is still running."""
        return self._current is not None and self._calls == self._interrupted

    # --- in the thread of the watchdog

    def _watch(self, stop: threading.Event, can_interrupt: bool) -> None:
        call, ticks = 0, 0
        while not stop.wait(TICK):
            watched = self._current
            if watched is None or self._calls != call:
                call, ticks = self._calls, 0
                continue
            ticks += 1
            late = ticks * TICK - self._timeout
            if late < 0:
                continue
            if can_interrupt and late < self._grace:
                self._interrupted = call  # at each tick again, since the function may have caught the exception
                signal.pthread_kill(self._loop_thread, _SIGNAL or 0)
            elif ticks % round(60 / TICK) == 0 or late < (self._grace if can_interrupt else 0) + TICK:
                self._give_up(watched, call)

    def _give_up(self, watched: _Watched, call: int) -> None:
        """Store that the source is stopped, log where the function is, and end the process if it may be ended."""
        reason = watched.stuck(self._timeout)
        frame = sys._current_frames().get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame)[-20:]) if frame is not None else ""
        try:
            asyncio.run(asyncio.wait_for(watched.record(reason), RECORD_TIMEOUT))
        except Exception as error:
            log.error("stopped source not stored", source=watched.source, error=error)
        if self._current is not watched or self._calls != call:
            return  # it has returned meanwhile, and the source is stopped
        ends = _may_end_process
        log.error(
            "transform holds up the process",
            source=watched.source,
            error=reason.reason,
            hint=reason.mend,
            stack=stack,
            exit_code=EXIT_CODE if ends else None,
        )
        if ends:
            for handler in logging.getLogger().handlers:
                handler.flush()
            os._exit(EXIT_CODE)


class _Watched:
    """A transform whose calls are watched."""

    __slots__ = ("_function", "_watchdog", "name", "record", "source")

    def __init__(
        self, watchdog: TransformWatchdog, function: Transform, name: str, source: str, record: Record
    ) -> None:
        self._watchdog = watchdog
        self._function = function
        self.name = name
        self.source = source
        self.record = record

    def __call__(self, message: dict[str, Any]) -> Any:
        watchdog = self._watchdog
        watchdog._calls += 1
        try:
            watchdog._current = self
            return self._function(message)
        except _Interruption as interruption:
            watchdog._current = None  # before any call, in which another signal may arrive
            raise self.stuck(watchdog._timeout) from interruption
        finally:
            watchdog._current = None

    def stuck(self, timeout: float) -> TransformStuck:
        """Return the error of a call that does not return."""
        return TransformStuck(
            f"The transform {self.name!r} has not returned after {timeout:g} s. The source is stopped until it is resumed, since"
            " the transform holds up everything else in its process. Correct it, and restart the processes that capture.",
            f"headrace source postgres resume {self.source}",
        )
