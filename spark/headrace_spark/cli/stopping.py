"""Running a program on Spark so that Ctrl-C and SIGTERM stop it: its queries, its jobs, and then itself.

The program runs in a thread, and the main thread waits for signals. A signal that broke into a call of the JVM would leave its answer behind on the
connection, for the next call to take for its own; from another thread, whose connection is its own, everything can be stopped in order.
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

from headrace_spark.session import is_connect, stop
from headrace_spark.session.gateway import kill_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

logger = logging.getLogger("headrace.spark")

PATIENCE = 20.0
"""Seconds that a program has to end once its queries and jobs were stopped."""
_AGAIN = 0.5  # seconds between attempts: a program may begin another job meanwhile


class Stopped(BaseException):
    """A signal ended the program. `exit_code` is 128 and the signal's number, as shells have it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class _Program(Generic[T]):
    """A program in a thread of its own. `news` is set at its end, and by signals."""

    def __init__(self, work: Callable[[], T], news: threading.Event) -> None:
        self.ended = threading.Event()
        self._work = work
        self._news = news
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
            self._news.set()

    def result(self) -> T:
        """What it returned; or what it raised is raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result


def until_stopped(work: Callable[[], T]) -> T:
    """Run a program to its end, and the Spark session with it.

    Args:
        work: the program; it may use `headrace_spark.session`.

    Returns:
        What it returns.

    Raises:
        Stopped: SIGINT or SIGTERM came. Its queries and jobs are stopped. A second signal ends Java at once, whatever it is at.
        Whatever the program raises.
    """
    # It tells of every call; what fails there is told by who called.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    news = threading.Event()
    with _signals(news) as numbers:
        program = _Program(work, news)
        while not program.ended.is_set() and not numbers:
            news.wait()
        if numbers and not program.ended.is_set():
            _stop(program, numbers)
        with suppress(Exception):
            stop()
        if numbers:
            raise Stopped(numbers[0])
        return program.result()


@contextmanager
def _signals(news: threading.Event) -> Iterator[list[int]]:
    numbers: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        numbers.append(number)
        if len(numbers) > 1:
            kill_all()
        news.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield numbers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(program: _Program[T], numbers: list[int]) -> None:
    # A warning, since that is told also where logging was not set up.
    logger.warning("%s: stopping queries and jobs; again to stop at once", signal.Signals(numbers[0]).name)
    for _ in range(int(PATIENCE / _AGAIN)):
        with suppress(Exception):  # the session may be on its way up, or down
            _stop_what_runs()
        if program.ended.wait(_AGAIN) or len(numbers) > 1:
            return
    logger.warning("the program has not ended %g seconds after its jobs were stopped: it is left", PATIENCE)


def _stop_what_runs() -> None:
    for spark in _sessions():
        for query in spark.streams.active:
            query.stop()
        if is_connect(spark):
            spark.interruptAll()
        else:
            spark.sparkContext.cancelAllJobs()


def _sessions() -> Iterator[SparkSession]:
    """The sessions that the program has made, one of each kind at most; nothing is imported for it."""
    for module, attribute in (
        ("pyspark.sql.session", "_instantiatedSession"),
        ("pyspark.sql.connect.session", "_default_session"),
    ):
        made = getattr(getattr(sys.modules.get(module), "SparkSession", None), attribute, None)
        if made is not None:
            yield made
