"""What went wrong in a Spark handler, and whose fault that is: the batch's as a whole, some message's, or nobody's but the cluster's."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from headrace import Batch
from headrace.model.errors import HeadraceError
from headrace_spark.session import SparkUnavailable, is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Wholesale(HeadraceError):
    """The batch fails as a whole, and halves of it would, too: what the handler does can't be right for any."""


class SparkFailed(HeadraceError):
    """Spark failed at the job, or at a function in it; here is what it said, in short."""


class SparkGone(SparkUnavailable):
    """The session died in mid-job: its Java process, its cluster, or its server."""


def judged(error: Exception, spark: SparkSession | None) -> Exception:
    """An exception of a handler as what it means. What isn't Spark's stays what it is.

    Args:
        spark: the session that it worked with; None if it got none.
    """
    if isinstance(error, HeadraceError) and not isinstance(error, SparkGone):
        return error
    if spark is not None and gone(spark):
        return SparkGone(f"Spark was lost in the midst of a job ({_line(str(error))}).")
    from py4j.protocol import Py4JError  # type: ignore[import-untyped, unused-ignore]
    from pyspark.errors import AnalysisException, PySparkException

    if isinstance(error, AnalysisException):  # Spark looks at a plan before it runs anything
        return Wholesale(f"Spark can't make sense of what the handler asks for: {_line(_message(error))}")
    if isinstance(error, PySparkException):
        return SparkFailed(_told(_message(error)))
    if isinstance(error, Py4JError):
        return SparkFailed(_told(str(error)))
    return error


def gone(spark: SparkSession) -> bool:
    """Whether the session is dead. It is asked, since what it fails with when it dies in mid-job can be anything."""
    try:
        if is_connect(spark):
            return spark.is_stopped or not spark.version  # type: ignore[attr-defined]
        context = spark.sparkContext
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Exception:
        return True


def _message(error: Exception) -> str:
    return getattr(error, "getMessage", lambda: None)() or str(error)


def _told(text: str) -> str:
    """What was raised in a Python function that Spark ran, or else the first line of what Spark says."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "Spark failed at the job, and doesn't say why."
    for place in range(len(lines) - 1, -1, -1):
        if "Traceback (most recent call last)" in lines[place]:
            raised = next((line for line in lines[place + 1 :] if not line.startswith((" ", "\t"))), None)
            if raised is not None:
                return f"{raised[:500]} (in a Python function of the Spark job)"
    return f"Spark failed at the job: {lines[0][:500]}"


def _line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "it doesn't say why")[:500]


class Halves:
    """Whether halving a batch leads anywhere.

    One bad message among many is found by halves, of which most pass. If from the first call on none passes, it is hardly the messages: then
    what fails is no longer halved, until something passes. Otherwise a function with a bug would be called twice for each message.

    What a call returns is published later, and that may fail, too. Then halves of its batch come, and it has not passed.
    """

    def __init__(self) -> None:
        self._members: frozenset[Hashable] = frozenset()
        self._failures = 0
        self._passed = False
        self._costly = False
        self._returned: frozenset[Hashable] = frozenset()  # of the last call, if that went well so far
        self._of_these = False  # whether these are of the members

    def begins(self, batch: Batch) -> bool:
        """A call with these messages is due. Returns whether to make it.

        So many before it may have taken all of their time, or have been in vain, that it needn't even be tried.
        """
        returned, self._returned = self._returned, frozenset()
        if _id(batch[0]) in returned:
            self._count(batch, returned)
            self._costly = True
        elif returned and self._of_these:
            self._passed = True
        return not (self._costly and self._knows(batch) and not self._promising)

    def returned(self, batch: Batch) -> None:
        """A call with these messages went well. For a large batch that takes a moment: not on the event loop.

        What becomes of a single message is not seen here: it has no halves.
        """
        self._returned = _ids(batch) if len(batch) > 1 else frozenset()
        self._of_these = self._knows(batch)

    def failed(self, batch: Batch) -> bool:
        """A call with these messages failed. Returns whether to try halves of it."""
        self._count(batch, None)
        return self._promising

    def stopped(self, batch: Batch) -> None:
        """A call with these messages was stopped, by its timeout say. Then halves are tried in any case."""
        self._count(batch, None)
        self._costly = True

    def _count(self, batch: Batch, members: frozenset[Hashable] | None) -> None:
        if not self._knows(batch):
            self._members = _ids(batch) if members is None else members
            self._failures, self._passed, self._costly = 0, False, False
        self._failures += 1
        self._returned = frozenset()

    @property
    def _promising(self) -> bool:
        return self._passed or self._failures <= 2 * math.log2(len(self._members)) + 2

    def _knows(self, batch: Batch) -> bool:
        return _id(batch[0]) in self._members


def _id(message: Any) -> Hashable:
    return (message.lease.id, message.seq)


def _ids(batch: Batch) -> frozenset[Hashable]:
    return frozenset(map(_id, batch))
