"""Runs a streaming query to its end: follows its progress, stops it, and translates its errors."""

from __future__ import annotations

import inspect
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.durations import Duration, seconds
from headrace.model.errors import ConfigurationError, HeadraceError
from headrace_spark.session import SparkUnavailable

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("headrace.spark")

_LOOK = 1  # seconds between two looks at a query's progress

# The last line of a Python traceback in Spark's message: `headrace.model.errors.UnknownStream:
# There is no …`.
_OURS = re.compile(r"^\s*headrace(?:_spark)?(?:\.\w+)*\.(\w+): (.+)$", re.MULTILINE)
_JAVA = re.compile(r"^: (?:[\w$]+\.)+[\w$]+: (.+)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
_GONE = re.compile(
    r"Py4JNetworkError|Connection refused|SparkContext was shut down|StatusCode.UNAVAILABLE|stopped SparkContext"
)


class PipelineFailed(HeadraceError):
    """A pipeline's own code, or Spark, failed.

    What was committed before stays. The next run continues from there.
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

    def uncounted(self) -> None:
        """Reset the counts to unknown."""
        self.rows = self.batches = self.late = None

    def saw(self, first: int | None, last: int | None) -> None:
        """Extend the range of seqs that were read."""
        if first is not None:
            self.first = first if self.first is None else min(self.first, first)
        if last is not None:
            self.last = last if self.last is None else max(self.last, last)


@contextmanager
def timed(report: Report) -> Iterator[Report]:
    """Record the duration of the block in the report."""
    begun = time.monotonic()
    try:
        yield report
    finally:
        report.seconds = round(time.monotonic() - begun, 3)


def triggered(writer: DataStreamWriter, *, once: bool, every: Duration) -> DataStreamWriter:
    """Set the trigger: `once` reads what exists now and ends, otherwise the query looks again every `every` seconds."""
    if once:
        return writer.trigger(availableNow=True)
    period = seconds(every, "every")
    if not 0.1 <= period <= 86_400:
        raise ConfigurationError(f"every={every!r} must be from 0.1 seconds to a day.")
    return writer.trigger(processingTime=f"{int(period * 1000)} milliseconds")


Progress = Mapping[str, Any]


def follow(writer: DataStreamWriter, seen: Callable[[Progress], None]) -> None:
    """Start a query, and wait until it ends. If the wait is interrupted, the query is stopped.

    Args:
        writer: the query, ready to start.
        seen: called with Spark's progress report of each micro-batch that had rows.

    Raises:
        HeadraceError: the query failed. See `told`.
    """
    with telling():
        query = writer.start()
        try:
            _until_it_ends(query, seen)
        finally:
            _stop(query)


def _until_it_ends(query: StreamingQuery, seen: Callable[[Progress], None]) -> None:
    last = -1
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(_LOOK))
        for progress in query.recentProgress:
            if progress["batchId"] > last and progress["numInputRows"]:
                last = progress["batchId"]
                _log(progress)
                seen(progress)


def _log(progress: Progress) -> None:
    logger.info(
        "batch %d: %s rows in %.1f s", progress["batchId"], f"{progress['numInputRows']:,}",
        progress.get("batchDuration", 0) / 1000,
    )  # fmt: skip


def _stop(query: StreamingQuery) -> None:
    try:
        if query.isActive:
            query.stop()
    except Exception as error:  # the session may be gone, and the query with it
        logger.debug("a query could not be stopped: %s", error)


@contextmanager
def telling() -> Iterator[None]:
    """Translate Spark's errors in the block into Headrace's. See `told`."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if (ours := told(error)) is None:
            raise
        raise ours from error


def told(error: BaseException) -> HeadraceError | None:
    """Translate an error of Spark into a Headrace error with one sentence. Returns None for other errors.

    An error that Headrace raised in a worker or in a callback arrives as a Java exception with a
    Python traceback as its text. It is restored by the name of its class.
    """
    kind = type(error)
    if not kind.__module__.startswith(("pyspark", "py4j", "grpc")) and not isinstance(error, ConnectionError):
        return None
    text = str(error)
    if ours := _OURS.findall(text):
        name, sentence = ours[-1]
        return _kinds().get(name, PipelineFailed)(sentence.strip())
    if isinstance(error, ConnectionError) or _GONE.search(text) or _GONE.search(kind.__name__):
        return SparkUnavailable(
            "Spark has gone away in the middle of the work: run it again, and it goes on from what it has committed."
        )
    return PipelineFailed(f"The pipeline failed: {_reason(text)}")


def _kinds() -> dict[str, type[HeadraceError]]:
    """Headrace's error classes by name, limited to those that are loaded and take only a message."""
    found: dict[str, type[HeadraceError]] = {}
    kinds = [HeadraceError]
    while kinds:
        kind = kinds.pop()
        if not inspect.isfunction(kind.__init__):  # the class has no Python `__init__` of its own
            found[kind.__name__] = kind
        kinds += kind.__subclasses__()
    return found


def _reason(text: str) -> str:
    """The original error: that of the last, innermost traceback, or else the first line of Java's message."""
    if java := _JAVA.search(text):
        text = text if _TRACEBACK in text else java[1]
    lines = text.rpartition(_TRACEBACK)[2].splitlines()
    plain = (line for line in lines if line.strip() and (_TRACEBACK not in text or not line.startswith((" ", "\t"))))
    return next(plain, "Spark did not say why.").strip()
