"""Batch reader: a stream, or a range of it, as a DataFrame.

The driver plans the partitions. Tasks read them, and pass on Arrow batches as they come from
Postgres.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimestampType

from headrace.model.errors import ConfigurationError, SchemaError, StoreUnavailable, UnknownStream
from headrace.model.log import Log
from headrace_spark.source.connection import Place, connect, translated
from headrace_spark.source.marks import Marks
from headrace_spark.source.options import Options, check_order
from headrace_spark.source.pushdown import Pushed
from headrace_spark.source.ranges import Ranges

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

log = Log("headrace.spark")

BATCH_BYTES = 4 * 1024 * 1024
"""Approximate size of an Arrow batch in bytes.

A million messages of 200 bytes took 0.8 s over one connection with this size, and 1.3 s with 1 or
16 MiB.
"""

TYPES: dict[str, DataType] = {
    "key": StringType(),
    "seq": LongType(),
    "headers": StringType(),
    "created_at": TimestampType(),
    "data": StringType(),
}

SCHEMA = StructType([StructField(name, kind, name == "headers") for name, kind in TYPES.items()])
"""The schema of a message in Spark. `data` and `headers` are JSON text, and `headers` is null if there are none."""


class RangePartition(InputPartition):
    """A range of seqs for one task, with all that the task needs to read it on any machine."""

    def __init__(self, place: Place, stream: str, query: str) -> None:
        self.place = place
        self.stream = stream
        self.query = query


def check_columns(schema: StructType) -> list[str]:
    """The names of the requested columns. Raises `ConfigurationError` for an unknown column or a wrong type."""
    known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in TYPES.items())
    for field in schema.fields:
        if TYPES.get(field.name) != field.dataType:
            raise ConfigurationError(
                f"A stream has no column {field.name} {field.dataType.simpleString()}. The columns are {known}. Leave out .schema(…) to read all of them."
            )
    if not schema.fields:
        raise ConfigurationError(
            f"The schema has no column. Name at least one of {known}, or leave out .schema(…) to read all of them."
        )
    return schema.fieldNames()


def read(partition: RangePartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Read the messages of a partition, in the order of their seqs.

    The planner is kept from sorting. Each segment has an index in that order, even if the server
    does not know the segment's size yet.

    Raises:
        UnknownStream: the stream was deleted meanwhile.
        InvalidInput: retention removed some of these messages meanwhile.
        StoreUnavailable: the database can't be reached. A retry reads the same messages.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(schema, timezone="UTC")
    url = partition.place.url
    connection = connect(partition.place, autocommit=False)
    try:
        with (
            translated(url),
            connection.cursor(adbc_stmt_kwargs={"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)}) as cursor,
        ):
            # With read committed the snapshot is taken after the lock, and what
            # `headrace_internal.require_range` sees is not older.
            cursor.executescript(
                "set transaction isolation level read committed; set local enable_seqscan = off; set local enable_bitmapscan = off; set local max_parallel_workers_per_gather = 0"
            )
            cursor.execute(partition.query)
            for batch in cursor.fetch_record_batch():
                yield pa.RecordBatch.from_arrays(batch.columns, schema=wanted)
    except SchemaError as error:
        raise UnknownStream(
            f"The stream {partition.stream!r} was deleted while it was read. Start the read again."
        ) from error
    finally:
        connection.close()


class _PushFilters:
    """The `pushFilters` of a reader, in a form that Spark does not take for an override.

    Spark refuses a reader that overrides `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is set, which is not the default. This reader also
    works without pushdown. Spark then evaluates the filters itself.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, push: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self._push = push

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(filters)


class HeadraceReader(DataSourceReader):
    """The batch reader behind `spark.read.format("headrace")`. It is planned once, with the query."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_order(options)
        self._options = options
        self._schema = schema
        self._columns = check_columns(schema)
        self._pushed = Pushed()
        self.pushFilters = _PushFilters(self._push)  # type: ignore[method-assign]

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Push down the filters that the database evaluates with the same result."""
        ranges = Ranges(self._options)
        try:
            return list(self._pushed.push(filters, ranges.compares_bytes))
        finally:
            ranges.close()

    def partitions(self) -> list[InputPartition]:
        """Determine how far the stream is complete, and cut that range into partitions.

        Raises:
            UnknownStream: no stream has that name.
            InvalidInput: the start or the end is ahead of the stream, or was removed from it.
            StoreUnavailable: the database can't be reached, or a transaction still publishes below
                an explicit end.
        """
        options, pushed = self._options, self._pushed
        ranges = Ranges(options)
        try:
            uid = ranges.uid()
            last = _last(ranges, options, pushed.last)
            if last < max(pushed.first, 1):
                return [InputPartition(None)]
            first = None if options.start == "earliest" else ranges.start(options.start) + 1
            if pushed.first > 1:
                first = max(first or ranges.start("earliest") + 1, pushed.first)
            parts = ranges.parts(first, last, self._columns, pushed.tests, uid)
            return [RangePartition(options.place, options.stream, part.query) for part in parts] or [
                InputPartition(None)
            ]
        finally:
            ranges.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one partition."""
        return read(partition, self._schema) if isinstance(partition, RangePartition) else iter(())


def _last(ranges: Ranges, options: Options, limit: int) -> int:
    """The last seq to read, at most `limit`.

    It is the requested end, or else the position that is complete once the current publishers have
    ended or the settle timeout has passed.
    """
    wanted = ranges.end(options.end)
    marks = Marks()
    drawn = ranges.mark(marks)
    target = min(drawn if wanted is None else wanted, limit)
    if not ranges.settle(marks, target, options.settle_timeout):
        _report_incomplete(ranges, options, marks, target, wanted)
        target = marks.position
    # For a time, the end is before the first later message. An earlier message with such a time may
    # have appeared meanwhile.
    last = ranges.end(options.end)
    return target if last is None else min(last, target)


def _report_incomplete(ranges: Ranges, options: Options, marks: Marks, target: int, wanted: int | None) -> None:
    """Log that a transaction still publishes. Raises `StoreUnavailable` instead if the end was explicit."""
    publishers = ranges.holders(marks)
    if wanted is not None:
        raise StoreUnavailable(
            f"The stream {options.stream!r} is complete up to seq {marks.position}, and not up to {target}, since a transaction"
            f" still publishes after {options.settle_timeout:g} s ({publishers}). Try again, or end that transaction."
        )
    log.warning(
        "stream not complete", stream=options.stream, seq=marks.position, last_seq=target,
        seconds=options.settle_timeout, publishers=publishers, hint="the read ends at seq",
    )  # fmt: skip
