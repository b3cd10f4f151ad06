"""Classifies errors of Spark handlers: the whole batch fails, single messages fail, or the cluster fails."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from headrace import Batch
from headrace.model.errors import HeadraceError
from headrace_spark.session import SparkUnavailable, lacking, liveness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_OBJECT = "Target Object ID does not exist for this gateway"


class BatchFailed(HeadraceError):
    """The batch fails as a whole, and its halves would fail too, since the handler can't work with any message."""


class SparkFailed(HeadraceError):
    """Spark, or a function in a Spark job, failed. The message is a short form of Spark's."""


class SparkGone(SparkUnavailable):
    """The session has died: its Java process, its cluster, or its server."""


def classified(error: Exception, spark: SparkSession | None) -> Exception:
    """Translate a handler's exception into what it means. An error that is not from Spark is returned unchanged.

    Args:
        spark: the session of the job, or None if it got none.
    """
    if isinstance(error, HeadraceError) and not isinstance(error, SparkGone):
        return error
    if spark is not None and liveness.gone(spark):
        return SparkGone(f"The Spark session was lost during a job: {_first_line(str(error))}.")
    if (cause := _gateway_error(error)) is not None:
        return SparkGone(
            f"The connection to Spark's Java failed, or an object of a session that has ended was used: {_first_line(str(cause))}."
        )
    from py4j.protocol import Py4JError  # type: ignore[import-untyped, unused-ignore]
    from pyspark.errors import AnalysisException, PySparkException

    if isinstance(error, AnalysisException):  # Spark analyzes a plan before it runs anything
        return BatchFailed(f"Spark can't plan the handler's query: {_first_line(_message(error))}")
    if isinstance(error, (PySparkException, Py4JError)) and (reason := lacking(str(error))) is not None:
        return BatchFailed(reason)
    if isinstance(error, PySparkException):
        return SparkFailed(_python_error(_message(error)))
    if isinstance(error, Py4JError):
        return SparkFailed(_python_error(str(error)))
    return error


def _gateway_error(error: BaseException | None) -> BaseException | None:
    """The error of the connection to Java that caused this one, or None.

    It is also raised while the session is well, for an object that a module has kept from an earlier one, such as a function
    that was made by `udf`.
    """
    from py4j.protocol import Py4JNetworkError

    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, Py4JNetworkError) or _NO_OBJECT in str(error):
            return error
        if isinstance(error, (OSError, EOFError)) and _raised_in(error).split(".")[0] == "py4j":
            return error
        error = error.__cause__ or error.__context__
    return None


def _raised_in(error: BaseException) -> str:
    """The module that raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))


def _message(error: Exception) -> str:
    return getattr(error, "getMessage", lambda: None)() or str(error)


def _python_error(text: str) -> str:
    """The error raised in a Python function that Spark ran, or else the first line of Spark's message."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "The Spark job failed without a message."
    for place in range(len(lines) - 1, -1, -1):
        if "Traceback (most recent call last)" in lines[place]:
            raised = next((line for line in lines[place + 1 :] if not line.startswith((" ", "\t"))), None)
            if raised is not None:
                return f"{raised[:500]} (in a Python function of the Spark job)"
    return f"The Spark job failed: {lines[0][:500]}"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason is given")[:500].rstrip(".")


class Bisection:
    """Decides whether to bisect a failed batch.

    To find one bad message among many, a batch is halved, and most of the halves pass. If none
    passes from the first call on, the messages are probably not the cause. Then failed batches are
    no longer halved until a call passes. Otherwise a function with a bug would be called twice for
    each message.

    The result of a call is published later, and that may fail too. Then halves of its batch follow,
    and the call does not count as passed.
    """

    def __init__(self) -> None:
        self._members: frozenset[Hashable] = frozenset()
        self._failures = 0
        self._passed = False
        self._expensive = False
        self._returned: Batch | None = None  # that of the last call, if it returned
        self._returned_are_members = False  # whether its messages are members

    def should_call(self, batch: Batch) -> bool:
        """Record that a call with these messages is due. Returns whether to make it.

        The call is skipped if earlier calls timed out or failed after returning, and so many calls
        have failed that it is unlikely to pass.
        """
        returned, self._returned = self._returned, None
        if returned is not None and _has(returned, batch[0]):
            self._count(batch, _ids(returned))
            self._expensive = True
        elif returned is not None and self._returned_are_members:
            self._passed = True
        return not (self._expensive and self._knows(batch) and not self._worth_trying)

    def returned(self, batch: Batch) -> None:
        """Record that a call returned. A batch of a single message is not recorded, since it has no halves."""
        self._returned = batch if len(batch) > 1 else None
        self._returned_are_members = self._knows(batch)

    def failed(self, batch: Batch) -> bool:
        """Record that a call failed. Returns whether to try halves of the batch."""
        self._count(batch, None)
        return self._worth_trying

    def stopped(self, batch: Batch) -> None:
        """Record that a call was stopped, for example by its timeout. Halves are then tried in any case."""
        self._count(batch, None)
        self._expensive = True

    def _count(self, batch: Batch, members: frozenset[Hashable] | None) -> None:
        if not self._knows(batch):
            self._members = _ids(batch) if members is None else members
            self._failures, self._passed, self._expensive = 0, False, False
        self._failures += 1
        self._returned = None

    @property
    def _worth_trying(self) -> bool:
        return self._passed or self._failures <= 2 * math.log2(len(self._members)) + 2

    def _knows(self, batch: Batch) -> bool:
        return _id(batch[0]) in self._members


def _id(message: Any) -> Hashable:
    return (message.lease.id, message.seq)


def _has(batch: Batch, message: Any) -> bool:
    """Whether it is among the messages of the batch. This makes no object for each of them."""
    seq, lease = message.seq, message.lease.id
    return any(one.seq == seq and one.lease.id == lease for one in batch)


def _ids(batch: Batch) -> frozenset[Hashable]:
    return frozenset(map(_id, batch))
