"""Turns a batch of messages into a DataFrame of `key, seq, headers, created_at, data`.

decode ──▶ Arrow columns ──▶ sorted by key and seq ──▶ DataFrame
   │            │
   └────────────┴──▶ payloads that don't fit the schema, each reported with its message
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructField, StructType, TimestampType

from headrace.model.clock import POSTGRES_EPOCH
from headrace_spark.frames.columns import UNFIT, Column, arrow_type
from headrace_spark.frames.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH = (POSTGRES_EPOCH - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
"""Microseconds from the epoch of Arrow to that of Postgres."""

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""The errors that a decoder raises for a text that does not fit."""


class Incoming(Protocol):
    """The attributes of a message that are used here."""

    key: str
    seq: int
    created: int
    raw: str
    raw_headers: str | None


class Decoded(msgspec.Struct, frozen=True):
    """Messages with their payloads as a column.

    Without a schema there is no column, and the payloads stay JSON text.
    """

    messages: Sequence[Any]
    data: pa.Array | None = None

    def only(self, indexes: Sequence[int]) -> Decoded:
        """The messages at these indexes."""
        data = None if self.data is None else self.data.take(pa.array(indexes, pa.int64()))
        return Decoded([self.messages[index] for index in indexes], data)


Misfit = Callable[[Any, Exception], None]
"""A callback that gets each message that doesn't fit the schema, with the error."""


def row_type(data: DataType | None = None) -> StructType:
    """The Spark type of a message's row. `data` is the type of its payload, by default JSON text."""
    return StructType(
        [
            StructField("key", StringType(), False),
            StructField("seq", LongType(), False),
            StructField("headers", StringType(), True),
            StructField("created_at", TimestampType(), False),
            StructField("data", data or StringType(), False),
        ]
    )


def decode(messages: Sequence[Any], schema: Schema, misfit: Misfit) -> Decoded:
    """Decode payloads, and check that their values fit their columns.

    Args:
        messages: each is an `Incoming`.
        misfit: called with each message that doesn't fit.

    Returns:
        The messages that fit.
    """
    fit: list[Any] = []
    values: list[Any] = []
    for message in messages:
        try:
            values.append(schema.decode(message.raw))
        except DECODE_ERRORS as error:
            misfit(message, error)
        else:
            fit.append(message)
    try:
        return Decoded(fit, schema.column.build(values))
    except UNFIT:
        misfits = dict(unfit(values, 0, schema.column))
    for index, problem in misfits.items():
        misfit(fit[index], problem)
    kept = [index for index in range(len(fit)) if index not in misfits]
    return Decoded([fit[index] for index in kept], schema.column.build([values[index] for index in kept]))


def unfit(values: Sequence[Any], first: int, column: Column) -> Iterable[tuple[int, Exception]]:
    """The indexes of values that don't fit their column.

    They are found by bisection, since usually there are none.
    """
    if not values:
        return
    try:
        column.build(values)
    except UNFIT as error:
        if len(values) == 1:
            yield first, error
            return
        middle = len(values) // 2
        yield from unfit(values[:middle], first, column)
        yield from unfit(values[middle:], first + middle, column)


def table(decoded: Decoded, kind: DataType | None = None) -> pa.Table:
    """Build the rows as an Arrow table, sorted by key and seq.

    Args:
        kind: the type that the payloads were decoded into. Without it they stay JSON text.
    """
    messages = decoded.messages
    data = pa.array([m.raw for m in messages], pa.string()) if decoded.data is None else decoded.data
    arrays = [
        pa.array([m.key for m in messages], pa.string()),
        pa.array([m.seq for m in messages], pa.int64()),
        pa.array([m.raw_headers for m in messages], pa.string()),
        _times([m.created for m in messages]),
        data,
    ]
    fields = row_type(kind)
    schema = pa.schema([pa.field(field.name, arrow_type(field.dataType), field.nullable) for field in fields])
    rows = pa.Table.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
    )
    return rows.take(pc.sort_indices(rows, [("key", "ascending"), ("seq", "ascending")]))


def _times(created: Sequence[int]) -> pa.Array:
    """Times that Postgres counts in microseconds, without a Python object for each."""
    return pc.add(pa.array(created, pa.int64()), _EPOCH).cast(pa.timestamp("us", "UTC"))


def frame(spark: SparkSession, rows: pa.Table, data: DataType | None = None) -> DataFrame:
    """Create a DataFrame of the rows, with one partition per ten thousand rows.

    The size of a partition is `spark.sql.execution.arrow.maxRecordsPerBatch`.

    Args:
        data: the type of the payload. The default is JSON text.
    """
    with _LOCK:
        before = spark.conf.get(_THRESHOLD) or "0"
        spark.conf.set(_THRESHOLD, before if _has_many(data) else "0")
        try:
            return spark.createDataFrame(rows, row_type(data))
        finally:
            spark.conf.set(_THRESHOLD, before)


# Below this size Spark turns Arrow into rows on the driver, while it plans. Above it tasks do so.
# `from_json` and group by over 100,000 rows then took half the time. But Spark 4.3.0 can't copy an
# array with nulls among its numbers out of Arrow, so arrays and maps stay on the driver.
_THRESHOLD = "spark.sql.execution.arrow.localRelationThreshold"
_LOCK = Lock()


def _has_many(kind: DataType | None) -> bool:
    """Whether the type contains an array or a map."""
    if isinstance(kind, StructType):
        return any(_has_many(field.dataType) for field in kind)
    return isinstance(kind, (ArrayType, MapType))
