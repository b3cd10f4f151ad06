"""A stream, or a range of it, as a DataFrame: planned on the driver, read by tasks that hand over Arrow as it comes from Postgres."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimestampType

from headrace.model.errors import ConfigurationError, SchemaError, StoreUnavailable, UnknownStream
from headrace_spark.source.connection import Place, connect, translated
from headrace_spark.source.marks import Marks
from headrace_spark.source.options import Options, check_order
from headrace_spark.source.pushdown import Pushed
from headrace_spark.source.ranges import Ranges

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

logger = logging.getLogger("headrace.spark")

BATCH_BYTES = 4 * 1024 * 1024
"""About how large an Arrow batch is. Over one connection a million messages of 200 bytes took 0.8 s so, and 1.3 s with 1 or 16 MiB."""

TYPES: dict[str, DataType] = {
    "key": StringType(),
    "seq": LongType(),
    "headers": StringType(),
    "created_at": TimestampType(),
    "data": StringType(),
}

SCHEMA = StructType([StructField(name, kind, name == "headers") for name, kind in TYPES.items()])
"""A message as Spark sees it: `data` and `headers` as JSON text, `headers` null when there are none."""


class RangePartition(InputPartition):
    """A range of seqs for one task, and all that it needs to read it, wherever it runs."""

    def __init__(self, place: Place, stream: str, query: str) -> None:
        self.place = place
        self.stream = stream
        self.query = query


def check_columns(schema: StructType) -> list[str]:
    """The columns that are wanted. Raises `ConfigurationError` when they are none of ours, or of other types."""
    ours = ", ".join(f"{name} {kind.simpleString()}" for name, kind in TYPES.items())
    for field in schema.fields:
        if TYPES.get(field.name) != field.dataType:
            raise ConfigurationError(
                f"A stream has no column {field.name} {field.dataType.simpleString()}: there are {ours}. Leave .schema(…) out for all of them."
            )
    if not schema.fields:
        raise ConfigurationError(
            f"The schema has no column: name at least one of {ours}, or leave .schema(…) out for all of them."
        )
    return schema.fieldNames()


def read(partition: RangePartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The messages of a partition, in the order of their seqs.

    The planner is kept from sorting: a segment has an index in that order, whether or not the server knows its size yet.

    Raises:
        UnknownStream: the stream was deleted meanwhile.
        InvalidInput: retention removed some of these messages meanwhile.
        StoreUnavailable: the database can't be reached. Trying again reads the same.
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
            # Its snapshot is then of after it has its lock, and what `headrace.hold_range` sees is not older.
            cursor.executescript(
                "set transaction isolation level read committed; set local enable_seqscan = off; set local enable_bitmapscan = off; set local max_parallel_workers_per_gather = 0"
            )
            cursor.execute(partition.query)
            for batch in cursor.fetch_record_batch():
                yield pa.RecordBatch.from_arrays(batch.columns, schema=wanted)
    except SchemaError as error:
        raise UnknownStream(f"The stream {partition.stream!r} was deleted while it was read: begin anew.") from error
    finally:
        connection.close()


class _Taking:
    """`pushFilters` of a reader, as Spark looks at it: unless `spark.sql.python.filterPushdown.enabled` is set, which it is not by default, it
    refuses a reader that has one of its own. Ours does as well without: Spark then makes the filters itself."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, take: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self._take = take

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._take(filters)


class HeadraceReader(DataSourceReader):
    """`spark.read.format("headrace")`: planned once, when the query is."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_order(options)
        self._options = options
        self._schema = schema
        self._columns = check_columns(schema)
        self._pushed = Pushed()
        self.pushFilters = _Taking(self._take)  # type: ignore[method-assign]

    def _take(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over the filters that the database makes with the same result."""
        ranges = Ranges(self._options)
        try:
            return list(self._pushed.take(filters, ranges.compares_bytes))
        finally:
            ranges.close()

    def partitions(self) -> list[InputPartition]:
        """Find out how far the stream is complete, and cut it.

        Raises:
            UnknownStream: there is none of that name.
            InvalidInput: the start or the end lies ahead of the stream, or was removed from it.
            StoreUnavailable: the database can't be reached; or an end was named up to which somebody still publishes.
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
        """The messages of one partition."""
        return read(partition, self._schema) if isinstance(partition, RangePartition) else iter(())


def _last(ranges: Ranges, options: Options, most: int) -> int:
    """The last seq to read: that which was asked for, or what is complete now, once those who are publishing have ended or had their time. None
    above `most` is wanted."""
    wanted = ranges.end(options.end)
    marks = Marks()
    drawn = ranges.mark(marks)
    target = min(drawn if wanted is None else wanted, most)
    if not ranges.settle(marks, target, options.settle_timeout):
        _tell(ranges, options, marks, target, wanted)
        target = marks.position
    # By a time the end is before the first message that came later; and there may be an earlier one of these by now.
    last = ranges.end(options.end)
    return target if last is None else min(last, target)


def _tell(ranges: Ranges, options: Options, marks: Marks, target: int, wanted: int | None) -> None:
    """That somebody still publishes. Raises `StoreUnavailable` if all up to there was asked for by name."""
    told = (
        f"The stream {options.stream!r} is complete up to seq {marks.position}, and not up to {target} after"
        f" {options.settle_timeout:g} s, since somebody still publishes ({ranges.holders(marks)})"
    )
    if wanted is not None:
        raise StoreUnavailable(f"{told}: try again, or end that transaction.")
    logger.warning("%s: this read ends there.", told)
