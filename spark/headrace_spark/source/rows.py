"""The columns of a row: what a read returns, which of it the database sends, and how the rest is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.types import DataType, LongType, MapType, StringType, StructField, StructType, TimestampType

from headrace.model.errors import ConfigurationError, InvalidData
from headrace.model.log import Log
from headrace_spark.frames.pieces import STREAM
from headrace_spark.source.options import Options

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

log = Log("headrace.spark")

TYPES: dict[str, DataType] = {
    "key": StringType(),
    "seq": LongType(),
    "headers": StringType(),
    "created_at": TimestampType(),
    "data": StringType(),
}

HEADERS_MAP = MapType(StringType(), StringType())

_NULLABLE = ("seq", "headers", "created_at")
"""Columns that an `insert into` may leave out."""

SCHEMA = StructType([StructField(name, kind, name in _NULLABLE) for name, kind in TYPES.items()])
"""The schema of a message in Spark. `data` and `headers` are JSON text, and `headers` is null if there are none."""


class Rows:
    """The rows of a read.

    Args:
        schema: the columns, as the user or `columns_of` gives them.
        options: the options of the read.

    Attributes:
        fetched: the columns that the database sends. There is none if no column is wanted, and it then sends a count.
        pushable: the columns that the database has as Spark sees them, so that it can evaluate filters on them.

    Raises:
        ConfigurationError: a column is unknown or of another type.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        _check(schema, options)
        self._schema = schema
        self._mode = options.mode
        self._corrupt = options.corrupt_column
        self._typed = [field.name for field in schema if field.name in TYPES and field.dataType != TYPES[field.name]]
        self.pushable = tuple(name for name in TYPES if name not in self._typed)
        names = [name for name in schema.names if name in TYPES]
        if self._corrupt in schema.names and "data" not in names:
            names.append("data")
        if (self._typed or (schema.names and not names)) and "seq" not in names:
            names.append("seq")
        self.fetched = names

    def converted(self, batches: Iterator[pa.RecordBatch], stream: str) -> Iterator[pa.RecordBatch]:
        """The wanted rows, made of batches with the columns of `fetched`.

        Raises:
            InvalidData: a payload doesn't fit, and the mode is failfast.
        """
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        if not self.fetched:  # batches are made of columns, and would lose the number of their rows
            yield from batches
            return
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        if self._schema.names == self.fetched and not self._typed:
            for batch in batches:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=wanted)
            return
        make = _Conversion(self._schema, stream, self._mode, self._corrupt, self._typed, wanted)
        for batch in batches:
            yield make(batch)
        make.report()


class _Conversion:
    """Makes the rows of one stream in one task."""

    def __init__(
        self, schema: StructType, stream: str, mode: str, corrupt: str | None, typed: list[str], wanted: pa.Schema
    ) -> None:
        from headrace_spark.typed.payloads import Payloads

        self._stream, self._mode, self._corrupt, self._wanted = stream, mode, corrupt, wanted
        self._payloads = {name: Payloads(schema[name].dataType) for name in typed}
        self._misfits = 0
        self._first: tuple[int, str] | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        misfits: set[int] = set()
        columns = {name: batch.column(name) for name in batch.schema.names}
        seqs = columns.get("seq")
        for name, payloads in self._payloads.items():

            def misfit(index: int, error: Exception, name: str = name) -> None:
                self._refuse(seqs[index].as_py(), name, error)  # type: ignore[index]
                misfits.add(index)

            texts = columns[name]
            made = payloads.build(texts.fill_null("{}"), misfit)
            columns[name] = _nulled(made, texts) if texts.null_count else made
        columns[STREAM] = pa.repeat(pa.scalar(self._stream, pa.string()), batch.num_rows)
        if self._corrupt is not None:
            texts = batch.column("data").to_pylist() if misfits else []
            corrupt = [texts[index] if index in misfits else None for index in range(batch.num_rows)]
            columns[self._corrupt] = pa.array(corrupt, pa.string())
        made = pa.RecordBatch.from_arrays([columns[name] for name in self._wanted.names], schema=self._wanted)
        if misfits and self._mode == "dropmalformed":
            return made.filter(pa.array([index not in misfits for index in range(made.num_rows)]))
        return made

    def _refuse(self, seq: int, name: str, error: Exception) -> None:
        from headrace_spark.typed.payloads import reason

        problem = reason(error)
        if self._mode == "failfast":
            raise InvalidData(
                f"The {name} of the message {seq} of the stream {self._stream!r} does not fit the schema: {problem}. Correct the schema, or"
                " read with the mode permissive."
            ) from None
        self._misfits += 1
        self._first = self._first or (seq, problem)

    def report(self) -> None:
        """Log how many payloads did not fit."""
        if self._first is not None:
            log.warning(
                "payloads do not fit the schema",
                stream=self._stream,
                messages=self._misfits,
                seq=self._first[0],
                error=self._first[1],
                mode=self._mode,
            )


def _nulled(made: pa.Array, texts: pa.Array) -> pa.Array:
    """The array with a null wherever the text was null."""
    import pyarrow as pa
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    return pc.if_else(pc.is_valid(texts), made, pa.scalar(None, made.type))


def _check(schema: StructType, options: Options) -> None:
    fixed = {**TYPES, STREAM: StringType()}
    if options.corrupt_column is not None:
        fixed[options.corrupt_column] = StringType()
    known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in fixed.items())
    for field in schema.fields:
        allowed = field.name in fixed and (
            field.dataType == fixed[field.name]
            or field.name == "data"
            or (field.name == "headers" and field.dataType == HEADERS_MAP)
        )
        if not allowed:
            raise ConfigurationError(
                f"A stream has no column {field.name} {field.dataType.simpleString()}. The columns are {known}. data may have any type"
                " with a form in JSON, and headers may be a map<string,string>. Leave out .schema(…) to read all of them."
            )
