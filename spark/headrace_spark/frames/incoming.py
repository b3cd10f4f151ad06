"""Messages on their way in: a batch as a DataFrame, with the columns `key, seq, headers, created_at, data`.

decode ──▶ columns of Arrow ──▶ sorted by key and seq ──▶ DataFrame
   │            │
   └────────────┴──▶ what doesn't fit the schema, told message by message
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimestampType

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
    """Messages with what their payloads were decoded into; without a schema that is nothing."""

    messages: Sequence[Any]
    values: Sequence[Any]


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
    unfit = dict(_unfit(values, 0, schema.column))
    if not unfit:
        return Decoded(fit, values)
    for place, problem in unfit.items():
        misfit(fit[place], problem)
    kept = [place for place in range(len(fit)) if place not in unfit]
    return Decoded([fit[place] for place in kept], [values[place] for place in kept])


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


def table(decoded: Decoded, column: Column | None = None) -> pa.Table:
    """The rows as Arrow, sorted by key and seq.

    Args:
        column: what the payloads become; without one they stay JSON text.
    """
    messages = decoded.messages
    data = pa.array([m.raw for m in messages], pa.string()) if column is None else column.build(decoded.values)
    arrays = [
        pa.array([m.key for m in messages], pa.string()),
        pa.array([m.seq for m in messages], pa.int64()),
        pa.array([m.raw_headers for m in messages], pa.string()),
        pa.array([m.created_at for m in messages], pa.timestamp("us", "UTC")),
        data,
    ]
    fields = row_type(None if column is None else column.kind)
    schema = pa.schema([pa.field(field.name, arrow_type(field.dataType), field.nullable) for field in fields])
    rows = pa.Table.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
    )
    return rows.take(_order(messages))


def _order(messages: Sequence[Any]) -> pa.Array:
    """Places by key and seq."""
    return pa.array(
        sorted(range(len(messages)), key=lambda place: (messages[place].key, messages[place].seq)), pa.int64()
    )


def frame(spark: SparkSession, rows: pa.Table, data: DataType | None = None) -> DataFrame:
    """The rows as a DataFrame: one partition for each ten thousand, as `spark.sql.execution.arrow.maxRecordsPerBatch` says.

    Args:
        data: the type of the payload; JSON text by default.
    """
    return spark.createDataFrame(rows, row_type(data))
