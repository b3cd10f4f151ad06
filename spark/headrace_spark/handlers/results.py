"""The results of a Spark handler, as messages: few rows through the driver, many from the executors.

few     plan ──▶ Arrow, on the driver ──▶ (key, data, headers) ──▶ published with the acks
many    plan ──▶ tasks COPY their rows into a staging table ──▶ what counts is published with the acks

No setting chooses the way. The first batch goes through the driver, up to a number of rows of each task. If a task has
more, the plan is run again, and the executors stage its rows. Each later batch goes the way that suited the one before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from headrace.model.errors import ConfigurationError, InvalidInput, StoreUnavailable
from headrace.model.log import Log
from headrace.runtime.messages.staged import StagedMessages
from headrace_spark.handlers.failures import BatchFailed
from headrace_spark.source import staging
from headrace_spark.source.connection import Place

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    from pyspark.sql import Column, DataFrame

log = Log("headrace.spark")

COLLECTED_ROWS = 20_000
"""Maximum number of rows that each task returns to the driver. If one has more, the rows of all are staged."""

COLLECTED_BYTES = 8_000_000
"""Bytes of results above which those of the next batch are staged."""

PAUSE = 300.0
"""Seconds for which results go through the driver after executors could not stage them."""

_TOO_MANY = "HEADRACE_TOO_MANY_RESULTS"
_TOO_LARGE = "spark.driver.maxResultSize"
_NOT_STAGED = "HEADRACE_NOT_STAGED"
_NO_CODE = "No module named 'headrace"
_PLACE = "place"
_PARTS = "partition int, attempt string, rows bigint, bytes bigint"

Message = tuple[str, msgspec.Raw] | tuple[str, msgspec.Raw, dict[str, Any]]


class Results:
    """Turns what the handler of one consumer returns into messages.

    Args:
        consumer: the consumer's full name, for the log.
        stream: the stream that they are published to.
        limit: maximum number of rows.
        database: returns the URL of the database, as executors reach it.
    """

    def __init__(self, consumer: str, stream: str, limit: int, database: Callable[[], str]) -> None:
        self._consumer = consumer
        self._stream = stream
        self._limit = limit
        self._database = database
        self._many = False  # whether the results of the last batch were
        self._staged_from = 0.0
        self._pending: staging.Write | None = None

    def of(self, result: DataFrame) -> list[Message] | StagedMessages | None:
        """Compute the results. Raises `BatchFailed` if there are too many, or their columns can't become messages."""
        from headrace_spark.frames.outgoing import outgoing

        try:
            plan = outgoing(result)
        except InvalidInput as error:  # the columns alone show it
            raise BatchFailed(str(error)) from error
        if time.monotonic() < self._staged_from:
            return _messages(self._collected(plan, self._limit))
        if not self._many:
            try:
                rows = self._collected(plan, min(COLLECTED_ROWS, self._limit))
            except _TooMany:
                self._many = True
            else:
                self._many = rows.num_rows > COLLECTED_ROWS or rows.nbytes > COLLECTED_BYTES
                return _messages(rows)
        try:
            return self._staged(plan)
        except _NotStaged as error:
            hint = "until then they go through this process. Executors need Headrace's code and a way to the database"
            log.warning("results not staged", consumer=self._consumer, error=error, seconds=PAUSE, hint=hint)
            self._staged_from = time.monotonic() + PAUSE
        return _messages(self._collected(plan, self._limit))

    def taken(self) -> None:
        """Called when the framework has got the messages. It then deletes what it can't publish."""
        self._pending = None

    def discard(self) -> None:
        """Delete what was staged for a batch that failed before the framework got its messages."""
        pending, self._pending = self._pending, None
        if pending is not None:
            staging.abort(pending)

    def _collected(self, plan: DataFrame, limit: int) -> pa.Table:
        """The rows, on the driver. Raises `_TooMany` if a task has more than `limit`, or `BatchFailed` if all have too many."""
        from headrace_spark.frames.outgoing import refuse_nulls

        few = limit < self._limit
        try:
            rows = (_first(plan, limit) if few else _guarded(plan, limit)).toArrow()
        except Exception as error:
            if _TOO_LARGE in str(error):
                raise _TooMany(self._too_many()) from error
            if _TOO_MANY in str(error):
                raise BatchFailed(self._too_many()) from error
            raise
        if few:
            rows = _all_of(rows, limit, self._too_many())
        if rows.num_rows > self._limit:
            raise BatchFailed(self._too_many())
        refuse_nulls(rows)
        return rows

    def _staged(self, plan: DataFrame) -> StagedMessages | None:
        """The rows, in a staging table. Raises `_NotStaged` if the executors can't write there."""
        write = staging.Write(place=Place(self._database()), stream=self._stream, id=f"handler:{uuid4()}")
        self._pending = write
        try:
            found = _guarded(plan, self._limit).mapInArrow(_stage(write), _PARTS).collect()
        except Exception as error:
            self.discard()
            text = str(error)
            if _TOO_MANY in text:
                raise BatchFailed(self._too_many()) from error
            if _NOT_STAGED in text or _NO_CODE in text:
                raise _NotStaged(_reason(text)) from error
            raise
        rows = sum(row.rows for row in found)
        if rows > self._limit:
            self.discard()
            raise BatchFailed(self._too_many())
        self._many = rows > COLLECTED_ROWS // 2 or sum(row.bytes for row in found) > COLLECTED_BYTES // 2
        if not rows:
            self.discard()
            return None
        parts = [{"partition": row.partition, "attempt": row.attempt, "rows": row.rows} for row in found]
        return StagedMessages(stream=self._stream, write=write.id, parts=msgspec.json.encode(parts).decode())

    def _too_many(self) -> str:
        return (
            f"The Spark handler returned more than max_results={self._limit} rows, or more than spark.driver.maxResultSize."
            ' Raise the limit, or write the rows with df.write.format("headrace").'
        )


class _TooMany(BatchFailed):
    """There are more rows than should go through the driver."""


class _NotStaged(Exception):
    """The executors can't write to the database."""


def _stage(write: staging.Write) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a task that stages its rows, and returns what it has staged."""

    def staged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        size = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal size
            for batch in batches:
                size += batch.nbytes
                yield batch

        context = TaskContext.get()
        try:
            part = staging.stage(write, 0 if context is None else context.partitionId(), counted())
        except (StoreUnavailable, ConfigurationError) as error:
            raise RuntimeError(f"{_NOT_STAGED}: {error}") from None
        fields = [("partition", pa.int32()), ("attempt", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())]
        values = (part.partition, part.attempt, part.rows, size)
        yield pa.RecordBatch.from_arrays(
            [pa.array([value], kind) for value, (_, kind) in zip(values, fields, strict=True)], schema=pa.schema(fields)
        )

    return staged


def _reason(text: str) -> str:
    """The line of Spark's error that says why nothing was staged."""
    lines = [line.strip() for line in text.splitlines() if _NOT_STAGED in line or _NO_CODE in line]
    return lines[-1].partition(f"{_NOT_STAGED}: ")[2] or lines[-1]


def _first(plan: DataFrame, limit: int) -> DataFrame:
    """The first rows of each partition, up to one more than `limit`, with the place of each in its partition."""
    return plan.select("key", "headers", "data", _place().alias(_PLACE)).where(f"{_PLACE} <= {limit}")


def _all_of(rows: pa.Table, limit: int, problem: str) -> pa.Table:
    """The rows of `_first` without their places. Raises `_TooMany` if a partition had more than `limit`."""
    import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

    if (pc.max(rows[_PLACE]).as_py() or 0) >= limit:
        raise _TooMany(problem)
    return rows.drop_columns([_PLACE])


def _guarded(plan: DataFrame, limit: int) -> DataFrame:
    """A plan that fails as soon as one partition has more rows than `limit`, before they come to the driver."""
    from pyspark.sql import functions as sql

    key = sql.when(_place() >= limit, sql.raise_error(sql.lit(_TOO_MANY)).cast("string")).otherwise(sql.col("key"))
    return plan.select(key.alias("key"), "headers", "data")


def _place() -> Column:
    """The number of a row in its partition, from 0 on.

    `monotonically_increasing_id` has the partition in its upper bits, and this number in the lower 33.
    """
    from pyspark.sql import functions as sql

    return sql.monotonically_increasing_id().bitwiseAND(sql.lit((1 << 33) - 1))


def _messages(rows: pa.Table) -> list[Message]:
    """The rows as the messages that a handler with `publishes` returns."""
    keys, headers, data = (rows.column(name).to_pylist() for name in ("key", "headers", "data"))
    if rows.column("headers").null_count == rows.num_rows:
        return [(key, msgspec.Raw(text)) for key, text in zip(keys, data, strict=True)]
    return [
        (key, msgspec.Raw(text)) if head is None else (key, msgspec.Raw(text), _headers(head))
        for key, text, head in zip(keys, data, headers, strict=True)
    ]


def _headers(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"The `headers` of a row are not JSON: {text!r:.80} ({error}).") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"The `headers` of a row are not a JSON object: {text!r:.80}.")
    return found
