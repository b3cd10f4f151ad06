"""Runs a program on Spark so that Ctrl-C and SIGTERM stop its queries, then its jobs, and then the program.

The program runs in a thread, and the main thread waits for signals. A signal that interrupted a
call to the JVM would leave its answer on the connection, and the next call would read it as its
own. Another thread has its own connection, so it can stop everything in order.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Generic, TypeVar

from headrace.model.log import Log
from headrace.runtime.stop_signals import handled_here, handled_signals
from headrace_spark.session import is_connect, stop
from headrace_spark.session.gateway import kill_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

log = Log("headrace.spark")

STOP_TIMEOUT = 20.0
"""Seconds that a program has to end after its queries and jobs were stopped."""
_STOP_INTERVAL = 0.5  # seconds between attempts, since a program may start another job meanwhile


class Stopped(BaseException):
    """A signal ended the program. `exit_code` is 128 plus the signal's number, as in shells."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class _Program(Generic[T]):
    """A program in a separate thread. `wake` is set when it ends. Signals set it too."""

    def __init__(self, work: Callable[[], T], wake: threading.Event) -> None:
        self.ended = threading.Event()
        self._work = work
        self._wake = wake
        self._result: T
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="program", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self.ended.set()
            self._wake.set()

    def result(self) -> T:
        """Return the program's result, or raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result


def until_stopped(work: Callable[[], T]) -> T:
    """Run a program to its end, and stop the Spark session afterwards.

    Args:
        work: the program. It may use `headrace_spark.session`.

    Returns:
        The program's result.

    Raises:
        Stopped: SIGINT, SIGTERM or SIGHUP was received. The program's queries and jobs are stopped. A
            second signal kills Java immediately.
        Any error that the program raises.
    """
    # py4j logs every call. The caller reports the errors.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    wake = threading.Event()
    with _signals(wake) as numbers:
        program = _Program(work, wake)
        while not program.ended.is_set() and not numbers:
            wake.wait()
        if numbers and not program.ended.is_set():
            _stop(program, numbers)
        with suppress(Exception):
            stop()
        if numbers:
            raise Stopped(numbers[0])
        return program.result()


@contextmanager
def _signals(wake: threading.Event) -> Iterator[list[int]]:
    numbers: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP and numbers:
            return  # a closed terminal sends it twice
        numbers.append(number)
        if len(numbers) > 1:
            kill_all()
        wake.set()

    with handled_here():
        previous = {number: signal.signal(number, on_signal) for number in handled_signals()}
        try:
            yield numbers
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _stop(program: _Program[T], numbers: list[int]) -> None:
    # A warning, since warnings are printed even if logging is not set up.
    log.warning("stopping queries and jobs", signal=signal.Signals(numbers[0]).name, hint="again to stop immediately")
    for _ in range(int(STOP_TIMEOUT / _STOP_INTERVAL)):
        with suppress(Exception):  # the session may be starting or stopping
            _stop_queries_and_jobs()
        if program.ended.wait(_STOP_INTERVAL) or len(numbers) > 1:
            return
    log.warning("program not ended after its jobs were stopped", seconds=STOP_TIMEOUT)


def _stop_queries_and_jobs() -> None:
    for spark in _sessions():
        for query in spark.streams.active:
            query.stop()
        if is_connect(spark):
            spark.interruptAll()
        else:
            spark.sparkContext.cancelAllJobs()


def _sessions() -> Iterator[SparkSession]:
    """The sessions that the program has made, at most one of each kind. Nothing is imported to find them."""
    for module, attribute in (
        ("pyspark.sql.session", "_instantiatedSession"),
        ("pyspark.sql.connect.session", "_default_session"),
    ):
        made = getattr(getattr(sys.modules.get(module), "SparkSession", None), attribute, None)
        if made is not None:
            yield made
