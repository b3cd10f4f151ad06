"""Messages on their way in: a batch as a DataFrame, with the columns `key, seq, headers, created_at, data`.

decode ──▶ columns of Arrow ──▶ sorted by key and seq ──▶ DataFrame
   │            │
   └────────────┴──▶ what doesn't fit the schema, told message by message
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructField, StructType, TimestampType

from headrace_spark.frames.columns import UNFIT, Column, arrow_type
from headrace_spark.frames.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BAD = (msgspec.MsgspecError, UnicodeError, RecursionError)


class Incoming(Protocol):
    """A message as far as it is needed here."""

    key: str
    seq: int
    created_at: datetime
    raw: str
    raw_headers: str | None


class Decoded(msgspec.Struct, frozen=True):
    """Messages with their payloads as a column; without a schema there is none, and they stay JSON text."""

    messages: Sequence[Any]
    data: pa.Array | None = None

    def only(self, places: Sequence[int]) -> Decoded:
        """Those at these places."""
        data = None if self.data is None else self.data.take(pa.array(places, pa.int64()))
        return Decoded([self.messages[place] for place in places], data)


Misfit = Callable[[Any, Exception], None]
"""Is told a message that doesn't fit the schema, and why."""


def row_type(data: DataType | None = None) -> StructType:
    """A message's row in Spark. Args: data: the type of its payload; JSON text by default."""
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
    """Decode payloads, and see whether their values have room in their columns.

    Args:
        messages: each an `Incoming`.
        misfit: told each message whose payload doesn't fit.

    Returns:
        Those that fit.
    """
    fit: list[Any] = []
    values: list[Any] = []
    for message in messages:
        try:
            values.append(schema.decode(message.raw))
        except _BAD as error:
            misfit(message, error)
        else:
            fit.append(message)
    try:
        return Decoded(fit, schema.column.build(values))
    except UNFIT:
        unfit = dict(_unfit(values, 0, schema.column))
    for place, problem in unfit.items():
        misfit(fit[place], problem)
    kept = [place for place in range(len(fit)) if place not in unfit]
    return Decoded([fit[place] for place in kept], schema.column.build([values[place] for place in kept]))


def _unfit(values: Sequence[Any], first: int, column: Column) -> Iterable[tuple[int, Exception]]:
    """The places of values that their column has no room for: found by halves, since mostly there is none."""
    if not values:
        return
    try:
        column.build(values)
    except UNFIT as error:
        if len(values) == 1:
            yield first, error
            return
        middle = len(values) // 2
        yield from _unfit(values[:middle], first, column)
        yield from _unfit(values[middle:], first + middle, column)


def table(decoded: Decoded, kind: DataType | None = None) -> pa.Table:
    """The rows as Arrow, sorted by key and seq.

    Args:
        kind: the type that the payloads were decoded into; without one they stay JSON text.
    """
    messages = decoded.messages
    data = pa.array([m.raw for m in messages], pa.string()) if decoded.data is None else decoded.data
    arrays = [
        pa.array([m.key for m in messages], pa.string()),
        pa.array([m.seq for m in messages], pa.int64()),
        pa.array([m.raw_headers for m in messages], pa.string()),
        pa.array([m.created_at for m in messages], pa.timestamp("us", "UTC")),
        data,
    ]
    fields = row_type(kind)
    schema = pa.schema([pa.field(field.name, arrow_type(field.dataType), field.nullable) for field in fields])
    rows = pa.Table.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
    )
    return rows.take(pc.sort_indices(rows, [("key", "ascending"), ("seq", "ascending")]))


def frame(spark: SparkSession, rows: pa.Table, data: DataType | None = None) -> DataFrame:
    """The rows as a DataFrame: one partition for each ten thousand, as `spark.sql.execution.arrow.maxRecordsPerBatch` says.

    Args:
        data: the type of the payload; JSON text by default.
    """
    with _LOCK:
        before = spark.conf.get(_THRESHOLD) or "0"
        spark.conf.set(_THRESHOLD, before if _has_many(data) else "0")
        try:
            return spark.createDataFrame(rows, row_type(data))
        finally:
            spark.conf.set(_THRESHOLD, before)


# Below this size Spark makes rows of Arrow on the driver, when it plans; above it tasks do so: `from_json` and group by over 100,000 rows took
# half the time then. But Spark 4.3.0 can't copy an array that has nulls among its numbers out of Arrow, so arrays and maps stay with the driver.
_THRESHOLD = "spark.sql.execution.arrow.localRelationThreshold"
_LOCK = Lock()


def _has_many(kind: DataType | None) -> bool:
    """Whether there is an array or a map somewhere in the type."""
    if isinstance(kind, StructType):
        return any(_has_many(field.dataType) for field in kind)
    return isinstance(kind, (ArrayType, MapType))
