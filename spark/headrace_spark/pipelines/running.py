"""Runs a streaming query to its end: follows its progress, stops it, and translates its errors."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.durations import Duration, seconds
from headrace.model.errors import ConfigurationError, HeadraceError
from headrace.model.log import Log
from headrace_spark.progress.lag import lags
from headrace_spark.session import SparkUnavailable, lacking

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = Log("headrace.spark")

_PROGRESS_INTERVAL = 1  # seconds between two looks at a query's progress

# The last line of a Python traceback in Spark's message: `headrace.model.errors.UnknownStream:
# There is no …`.
_HEADRACE_ERROR = re.compile(r"^\s*headrace(?:_spark)?(?:\.\w+)*\.(\w+): (.+)$", re.MULTILINE)
_JAVA_ERROR = re.compile(r"^: (?:[\w$]+\.)+[\w$]+: (.+)$", re.MULTILINE)
_CALLED = re.compile(r"An error occurred while calling \S+$")  # Java's error is in the next line
_TRACEBACK = "Traceback (most recent call last):"
_CONNECTION_LOST = re.compile(
    r"Py4JNetworkError|Connection refused|SparkContext was shut down|StatusCode.UNAVAILABLE|stopped SparkContext"
)


class PipelineFailed(HeadraceError):
    """A pipeline's own code, or Spark, failed.

    Committed batches stay. The next run continues from there.
    """


class Report(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The report of a pipeline run.

    Attributes:
        pipeline: the name of the pipeline.
        stream: the stream that it read, or None if it read something else.
        into: the stream or path that it wrote to.
        rows: number of rows read. None if Spark does not report it, as for streaming queries over
            Spark Connect.
        written: number of messages or rows written, or None if unknown.
        batches: number of batches, each with its own commit. None as for `rows`.
        first: the lowest seq that it read. None if it read nothing, or rows without a seq.
        last: the highest seq that it read.
        files: number of files written.
        late: number of rows that came too late for their window. See `aggregate`.
        seconds: duration in seconds, without the start of the session.
    """

    pipeline: str
    into: str
    stream: str | None = None
    rows: int | None = 0
    written: int | None = None
    batches: int | None = 0
    first: int | None = None
    last: int | None = None
    files: int | None = None
    late: int | None = None
    seconds: float = 0.0

    def add(self, rows: int) -> None:
        """Count a batch of `rows` rows."""
        self.rows = (self.rows or 0) + rows
        self.batches = (self.batches or 0) + 1

    def clear_counts(self) -> None:
        """Reset the counts to unknown."""
        self.rows = self.batches = self.late = None

    def extend_range(self, first: int | None, last: int | None) -> None:
        """Extend the range of seqs that were read."""
        if first is not None:
            self.first = first if self.first is None else min(self.first, first)
        if last is not None:
            self.last = last if self.last is None else max(self.last, last)


@contextmanager
def timed(report: Report) -> Iterator[Report]:
    """Record the duration of the block in the report."""
    started = time.monotonic()
    try:
        yield report
    finally:
        report.seconds = round(time.monotonic() - started, 3)


def triggered(writer: DataStreamWriter, *, once: bool, every: Duration) -> DataStreamWriter:
    """Set the trigger: `once` reads what exists now and ends, otherwise the query looks again every `every` seconds."""
    if once:
        return writer.trigger(availableNow=True)
    period = seconds(every, "every")
    if not 0.1 <= period <= 86_400:
        raise ConfigurationError(f"every={every!r} is invalid. It must be from 0.1 seconds to a day.")
    return writer.trigger(processingTime=f"{int(period * 1000)} milliseconds")


Progress = Mapping[str, Any]


def follow(writer: DataStreamWriter, on_progress: Callable[[Progress], None]) -> None:
    """Start a query, and wait until it ends. If the wait is interrupted, the query is stopped.

    Args:
        writer: the query, ready to start.
        on_progress: called with Spark's progress report of each micro-batch that had rows.

    Raises:
        HeadraceError: the query failed. See `translate`.
    """
    with translated_errors():
        query = writer.start()
        try:
            _await_end(query, on_progress)
        finally:
            _stop(query)


def _await_end(query: StreamingQuery, on_progress: Callable[[Progress], None]) -> None:
    last = -1
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(_PROGRESS_INTERVAL))
        for progress in query.recentProgress:
            if progress["batchId"] > last and progress["numInputRows"]:
                last = progress["batchId"]
                _log(progress)
                on_progress(progress)


def _log(progress: Progress) -> None:
    found = [lag for source in getattr(progress, "sources", ()) for lag in lags(source)]
    log.info(
        "batch done",
        batch=progress["batchId"],
        rows=progress["numInputRows"],
        seconds=progress.get("batchDuration", 0) / 1000,
        **({"lag": sum(one.lag for one in found)} if found else {}),
    )


def _stop(query: StreamingQuery) -> None:
    try:
        if query.isActive:
            query.stop()
    except Exception as error:  # the session may be gone, and the query with it
        log.debug("query not stopped", error=error)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate Spark's errors in the block into Headrace's. See `translate`."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if (headrace_error := translate(error)) is None:
            raise
        raise headrace_error from error


def translate(error: BaseException) -> HeadraceError | None:
    """Translate an error of Spark into a Headrace error with one sentence. Returns None for other errors.

    An error that Headrace raised in a worker or in a callback arrives as a Java exception with a
    Python traceback as its text. It is restored by the name of its class.
    """
    error_class = type(error)
    if not error_class.__module__.startswith(("pyspark", "py4j", "grpc")) and not isinstance(error, ConnectionError):
        return None
    text = str(error)
    if headrace_error := _HEADRACE_ERROR.findall(text):
        name, sentence = headrace_error[-1]
        return _error_classes().get(name, PipelineFailed)(sentence.strip())
    if (
        isinstance(error, ConnectionError)
        or _CONNECTION_LOST.search(text)
        or _CONNECTION_LOST.search(error_class.__name__)
    ):
        return SparkUnavailable(
            "The connection to Spark was lost during the run. Run it again. It continues from what it has committed."
        )
    return PipelineFailed(lacking(text) or f"The pipeline failed: {_reason(text)}")


def _error_classes() -> dict[str, type[HeadraceError]]:
    """Headrace's error classes by name, limited to those that are loaded and take only a message."""
    classes: dict[str, type[HeadraceError]] = {}
    pending = [HeadraceError]
    while pending:
        error_class = pending.pop()
        if _takes_a_message(error_class):
            classes[error_class.__name__] = error_class
        pending += error_class.__subclasses__()
    return classes


def _takes_a_message(error_class: type[HeadraceError]) -> bool:
    try:
        inspect.signature(error_class.__init__).bind(None, "")
    except TypeError:
        return False
    return True


def _reason(text: str) -> str:
    """The original error: that of the last, innermost traceback, or else the first line of Java's message."""
    if java := _JAVA_ERROR.search(text):
        text = text if _TRACEBACK in text else java[1]
    lines = text.rpartition(_TRACEBACK)[2].splitlines()
    plain = [line for line in lines if line.strip() and (_TRACEBACK not in text or not line.startswith((" ", "\t")))]
    if len(plain) > 1 and _CALLED.search(plain[0]) and (called := _JAVA_ERROR.match(plain[1])):
        return called[1].strip()
    return plain[0].strip() if plain else "Spark gives no reason."
