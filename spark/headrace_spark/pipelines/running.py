"""Running a streaming query to its end: following its progress, stopping it, and telling what went wrong in one sentence."""

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

_LOOK = 1  # seconds between looks at a query's progress

# The last line of a Python traceback, as Spark passes it on: `headrace.model.errors.UnknownStream: There is no …`.
_OURS = re.compile(r"^\s*headrace(?:_spark)?(?:\.\w+)*\.(\w+): (.+)$", re.MULTILINE)
_JAVA = re.compile(r"^: (?:[\w$]+\.)+[\w$]+: (.+)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
_GONE = re.compile(
    r"Py4JNetworkError|Connection refused|SparkContext was shut down|StatusCode.UNAVAILABLE|stopped SparkContext"
)


class PipelineFailed(HeadraceError):
    """A pipeline's own code, or Spark under it, failed. What was committed before stays; running it again goes on from there."""


class Report(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a pipeline did.

    Attributes:
        pipeline: its name.
        stream: the stream that it read; None where it read something else.
        into: what it wrote to: a stream or a path.
        rows: how many rows it read; None where Spark doesn't tell, as it doesn't of streaming queries over Spark Connect.
        written: how many messages or rows it wrote; None if that isn't known.
        batches: in so many steps, each of them committed by itself; None as for `rows`.
        first: the lowest seq of a row that it read; None if it read nothing, or what it read has no seq.
        last: the highest.
        files: how many files it wrote.
        late: rows that came too late for their window; see `aggregate`.
        seconds: how long it took, without the start of the session.
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
        """Count a batch of so many rows."""
        self.rows = (self.rows or 0) + rows
        self.batches = (self.batches or 0) + 1

    def uncounted(self) -> None:
        """What was counted is not what was done: it isn't known."""
        self.rows = self.batches = self.late = None

    def saw(self, first: int | None, last: int | None) -> None:
        """Widen the range of what was read."""
        if first is not None:
            self.first = first if self.first is None else min(self.first, first)
        if last is not None:
            self.last = last if self.last is None else max(self.last, last)


@contextmanager
def timed(report: Report) -> Iterator[Report]:
    """Note in the report how long the block takes."""
    begun = time.monotonic()
    try:
        yield report
    finally:
        report.seconds = round(time.monotonic() - begun, 3)


def triggered(writer: DataStreamWriter, *, once: bool, every: Duration) -> DataStreamWriter:
    """The writer of a query that takes all there is now and ends, or one that looks again every so many seconds."""
    if once:
        return writer.trigger(availableNow=True)
    period = seconds(every, "every")
    if not 0.1 <= period <= 86_400:
        raise ConfigurationError(f"every={every!r} must be from 0.1 seconds to a day.")
    return writer.trigger(processingTime=f"{int(period * 1000)} milliseconds")


Progress = Mapping[str, Any]


def follow(writer: DataStreamWriter, seen: Callable[[Progress], None]) -> None:
    """Start a query, and wait until it ends; however this ends, the query doesn't run on.

    Args:
        writer: the query, ready to start.
        seen: called with the progress of each micro-batch that had rows, as Spark tells it.

    Raises:
        HeadraceError: the query failed; see `told`.
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
    except Exception as error:  # the session may be gone, and then so is the query
        logger.debug("a query could not be stopped: %s", error)


@contextmanager
def telling() -> Iterator[None]:
    """What Spark raises in the block is told in one sentence; see `told`."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if (ours := told(error)) is None:
            raise
        raise ours from error


def told(error: BaseException) -> HeadraceError | None:
    """What an error of Spark's is about, in one sentence; None for an error that isn't Spark's.

    An error that Headrace raised somewhere in Spark, in a worker or in a callback, comes back as it was, by its name: a Java exception
    that holds a Python traceback as its text.
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
    """Headrace's errors by name, as far as they are known here and are made of a sentence alone."""
    found: dict[str, type[HeadraceError]] = {}
    kinds = [HeadraceError]
    while kinds:
        kind = kinds.pop()
        if not inspect.isfunction(kind.__init__):  # it has none of its own in Python
            found[kind.__name__] = kind
        kinds += kind.__subclasses__()
    return found


def _reason(text: str) -> str:
    """What was raised first, if there are tracebacks in it: the last of them is the innermost. Otherwise what Java says, or how it begins."""
    if java := _JAVA.search(text):
        text = text if _TRACEBACK in text else java[1]
    lines = text.rpartition(_TRACEBACK)[2].splitlines()
    plain = (line for line in lines if line.strip() and (_TRACEBACK not in text or not line.startswith((" ", "\t"))))
    return next(plain, "Spark did not say why.").strip()
