"""A data source in Python as bare as can be: what Spark itself takes to read and write a plain table through ADBC.

Nothing is planned but ranges of equal size, and each task of a write commits on its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from benchmarks.suite.spark_bare import RANGE, connect, create_copy
from benchmarks.suite.spark_crew import Done, Work
from benchmarks.suite.spark_rows import drained
from headrace_spark.source.reader import BATCH_BYTES

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    from pyspark.sql import SparkSession

_COPY = "plain_source_copy"


class PlainSource(DataSource):
    """Reads the plain table, and writes a copy of it. Options: `dsn`, `rows` and `tasks`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "plain"

    def schema(self) -> str:
        """The columns of a message."""
        return "key string, seq bigint, headers string, created_at timestamp, data string"

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of all rows."""
        return _Reader(self.options["dsn"], int(self.options["rows"]), int(self.options["tasks"]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of the columns `key` and `data`."""
        return _Writer(self.options["dsn"])


class _Reader(DataSourceReader):
    def __init__(self, dsn: str, rows: int, tasks: int) -> None:
        self._dsn, self._rows, self._tasks = dsn, rows, tasks

    def partitions(self) -> list[InputPartition]:
        edges = [self._rows * task // self._tasks for task in range(self._tasks + 1)]
        return [InputPartition((first + 1, last)) for first, last in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        hint = {"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)}
        with closing(connect(self._dsn)) as connection, connection.cursor(adbc_stmt_kwargs=hint) as cursor:
            cursor.execute(RANGE, partition.value)
            yield from cursor.fetch_record_batch()


class _Writer(DataSourceArrowWriter):
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with closing(connect(self._dsn, autocommit=False)) as connection, connection.cursor() as cursor:
            for batch in iterator:
                cursor.adbc_ingest(_COPY, batch, mode="append")
            connection.commit()
        return WriterCommitMessage()


def plain_read(spark: SparkSession, work: Work) -> Done:
    """Read every column of every row of the plain table, in a task for each core, and discard them."""
    spark.dataSource.register(PlainSource)
    start = time.monotonic()
    options = {"dsn": work.dsn, "rows": str(work.count), "tasks": str(spark.sparkContext.defaultParallelism)}
    found = drained(spark.read.format("plain").options(**options).load())
    return Done(time.monotonic() - start, found)


def plain_write(spark: SparkSession, work: Work) -> Done:
    """Write the Parquet files of the directory `path` into a copy of the plain table."""
    spark.dataSource.register(PlainSource)
    create_copy(work.dsn, _COPY)
    start = time.monotonic()
    rows = spark.read.parquet(work.given["path"]).select("key", "data")
    rows.write.format("plain").option("dsn", work.dsn).mode("append").save()
    return Done(time.monotonic() - start)


PLAIN_SOURCE: dict[str, Callable[[SparkSession, Work], Done]] = {"plain_read": plain_read, "plain_write": plain_write}
