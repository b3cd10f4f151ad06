"""The raw limits of `spark`: the same on the plain table with ADBC, pyarrow and the same session, without Headrace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import PLAIN
from benchmarks.suite.spark_crew import Done, Work

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    from pyspark.sql import SparkSession

_COLUMNS = "key, id as seq, null::text as headers, created_at, data::text as data"
RANGE = f"select {_COLUMNS} from {PLAIN} where id between $1 and $2 order by id"
_ALL = f"select {_COLUMNS} from {PLAIN} order by id"
_RESULTS = "create table plain_results (key text not null, data json not null)"


def bare_handle(spark: SparkSession, work: Work) -> Done:
    """Transform the table in ranges of `max_rows`, each a DataFrame, and insert the results into another table."""
    from pyspark.sql import functions as sql

    from benchmarks.suite.spark_jobs import sums

    step, groups = work.given["max_rows"], work.given["groups"]
    with closing(connect(work.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(_RESULTS)
        start = time.monotonic()
        for first in range(1, work.count + 1, step):
            cursor.execute(RANGE, (first, first + step - 1))
            frame = spark.createDataFrame(cursor.fetch_arrow_table())
            results = sums(frame, groups)
            data = sql.to_json(sql.struct(*[name for name in results.columns if name != "key"]))
            cursor.adbc_ingest("plain_results", results.select("key", data.alias("data")).toArrow(), mode="append")
        return Done(time.monotonic() - start)


def bare_lease(spark: SparkSession, work: Work) -> Done:
    """Time one range, from the query to a DataFrame."""
    first = work.given["first"]
    with closing(connect(work.dsn)) as connection, connection.cursor() as cursor:
        start = time.monotonic()
        cursor.execute(RANGE, (first, first + work.count - 1))
        spark.createDataFrame(cursor.fetch_arrow_table())
        return Done(time.monotonic() - start)


def bare_read(spark: SparkSession, work: Work) -> Done:
    """Read every column of every row over one connection, and discard them."""
    start = time.monotonic()
    rows = sum(batch.num_rows for batch in _batches(work.dsn))
    return Done(time.monotonic() - start, {"rows": rows})


def bare_archive(spark: SparkSession, work: Work) -> Done:
    """Write the table over one connection into one Parquet file."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped, unused-ignore]

    start = time.monotonic()
    batches = _batches(work.dsn)
    first = next(batches)
    with pq.ParquetWriter(work.given["path"], first.schema, compression="zstd") as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    return Done(time.monotonic() - start)


def bare_write(spark: SparkSession, work: Work) -> Done:
    """Write the Parquet files of the directory `path` into a table: a COPY per pyarrow batch, over one connection."""
    import pyarrow.dataset as ds  # type: ignore[import-untyped, unused-ignore]

    files = ds.dataset(Path(work.given["path"]), partitioning="hive", format="parquet")
    create_copy(work.dsn, "plain_copy")
    with closing(connect(work.dsn)) as connection, connection.cursor() as cursor:
        start = time.monotonic()
        for batch in files.to_batches(columns=["key", "data"], batch_size=10_000):
            cursor.adbc_ingest("plain_copy", batch, mode="append")
        return Done(time.monotonic() - start)


def connect(dsn: str, *, autocommit: bool = True) -> Any:
    """Open an ADBC connection."""
    from adbc_driver_postgresql import dbapi  # type: ignore[import-untyped, unused-ignore]

    return dbapi.connect(dsn, autocommit=autocommit)


def create_copy(dsn: str, table: str) -> None:
    """Create an empty table like the plain one, which numbers its rows."""
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(f"create table {table} (like {PLAIN} including all)")
        cursor.execute(f"alter table {table} alter id set default nextval('plain_log_id_seq')")


def _batches(dsn: str) -> Iterator[pa.RecordBatch]:
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(_ALL)
        yield from cursor.fetch_record_batch()


BARE: dict[str, Callable[[SparkSession, Work], Done]] = {
    "bare_handle": bare_handle,
    "bare_lease": bare_lease,
    "bare_read": bare_read,
    "bare_archive": bare_archive,
    "bare_write": bare_write,
}
