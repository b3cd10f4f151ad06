"""Backfill pipeline: reads a table in parallel, and publishes its rows as messages of a stream.

All tasks read under one snapshot, which the driver exports and holds. Together they thus see the table at one moment.
The driver locks the table first, as any reader does, and until the end. Without that lock, `VACUUM FULL` would move rows
between the ranges of the tasks, and a snapshot from before a rewrite may see no row after it.
Later changes are not seen, so this pipeline is for tables that don't change meanwhile or are not captured. For a
captured table use `headrace source postgres backfill`, which never publishes an older row after a newer change.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.errors import SchemaError, StoreUnavailable
from headrace.model.text.sql import literal
from headrace_spark.pipelines.database import open_database
from headrace_spark.pipelines.rowkeys import KeyShape, default_shape, shape_of
from headrace_spark.pipelines.running import Report, timed, translated_errors
from headrace_spark.pipelines.tables import Fetch, check_condition, find_locked_table, metadata, ranges, select_list
from headrace_spark.pipelines.values import SETTINGS
from headrace_spark.session import register, session
from headrace_spark.source.connection import LONG_TRANSACTION, batches, connect, fetch, translated

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from adbc_driver_postgresql.dbapi import Connection  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, SparkSession

_IDX_BITS = (
    32  # rows are numbered within a range, below the range's number. Together this fits the 53-bit integers of JSON
)
_BATCH_BYTES = 4 * 1024 * 1024  # bytes of a batch
_SCHEMA = "key string, data string"
LOCK_TIMEOUT = "10s"
"""How long a task waits for the lock that the driver has. If another transaction waits for an exclusive lock, then the task
waits behind it, and that one waits for the driver."""


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot that the driver holds. `lsn` is the position of the WAL, as a number."""

    id: str
    taken_at: str
    lsn: int


def backfill(
    table: str,
    stream: str,
    *,
    spark: SparkSession | None = None,
    database: str | None = None,
    source: str | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    key: str | None = None,
    partitions: int | None = None,
    write_id: str | None = None,
) -> Report:
    """Publish the rows of a table to a stream, in the message format of change capture backfills (`action: "read"`).

    All rows are published in one transaction, or none.

    Args:
        table: `schema.table`, quoted where SQL needs it. It may also be a partitioned table, a view
            or a foreign table.
        stream: the stream to publish to, which must exist.
        spark: a session. None uses the process's own.
        database: the URL of Headrace's database. None uses the settings.
        source: the URL of the table's database. None for the same one. It must be neither a standby
            nor behind a transaction pooler.
        columns: the columns to read. None for all.
        where: a condition in the SQL of the table's database, with the table as `t`. Only rows that
            meet it are read.
        key: a template of the keys, such as `orders.{record.region}.{record.id}`. None for the
            schema, the table and the primary key.
        partitions: approximate number of tasks that read. None for two per core.
        write_id: a name for this backfill. A repetition under the same name within 7 days publishes
            nothing.

    Returns:
        A report of what was done. With a `write_id`, `written` is None, since the rows may have
        been published before.

    Raises:
        UnknownStream: there is no such stream.
        UnknownTable: there is no such table.
        InvalidInput: a column, a condition or a key is invalid.
        StoreUnavailable: a database can't be reached.
    """
    spark = spark or session()
    report = Report(pipeline="backfill", into=stream)
    with timed(report), open_database(database) as database_connection:
        database_connection.stream(stream)
        with _transaction(source or database_connection.url) as connection:

            def fetch_rows(sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
                return fetch(connection, source or database_connection.url, sql, *arguments)

            found = find_locked_table(fetch_rows, table)
            shape = (
                default_shape(found.schema, found.name, found.key)
                if key is None
                else shape_of(key, found.schema, found.name)
            )
            select = select_list(fetch_rows, found, found.columns_named(columns), shape)
            condition = "" if where is None else f" and ({where}\n)"
            parts = ranges(found, partitions or 2 * _cores(spark))
            if where is not None:
                check_condition(fetch_rows, f"{select} {parts[0]}{condition}", where)
            queries = [f"{select} {part}{condition}" for part in parts]
            snapshot = _exported_snapshot(fetch_rows)
            reader = _RangeReader(
                source or database_connection.url,
                queries,
                snapshot,
                metadata(found, snapshot.taken_at, snapshot.lsn),
                shape,
            )
            report.rows = _publish(spark, reader, database_connection.url, stream, write_id)
        report.batches = 1
        report.written = report.rows if write_id is None else None
    return report


@contextmanager
def _transaction(url: str) -> Iterator[Connection]:
    """Open a connection with a transaction. Its last statement takes a snapshot that is newer than its locks."""
    with connect(url, autocommit=False) as connection:
        fetch(connection, url, "set transaction isolation level read committed, read only")
        fetch(connection, url, LONG_TRANSACTION)
        _set_settings(connection, url, {})
        yield connection


def _exported_snapshot(fetch_rows: Fetch) -> Snapshot:
    """Export a snapshot. Other connections can use it until the transaction ends."""
    rows = fetch_rows(
        """select pg_export_snapshot(), to_char(statement_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                  (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint"""
    )
    return Snapshot(*rows[0])


def _set_settings(connection: Connection, url: str, more: Mapping[str, str]) -> None:
    settings = {**SETTINGS, **more}.items()
    set_each = ", ".join(f"set_config({literal(name)}, {literal(value)}, true)" for name, value in settings)
    fetch(connection, url, f"select {set_each}")


class _RangeReader:
    """Reads ranges of a table, in a task. It holds only plain values."""

    def __init__(self, url: str, queries: Sequence[str], snapshot: Snapshot, metadata: str, shape: KeyShape) -> None:
        self.url = url
        self.queries = queries
        self.snapshot = snapshot
        self.metadata = metadata
        self.shape = shape

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._range(number)

    def _range(self, number: int) -> Iterator[pa.RecordBatch]:
        rows = number << _IDX_BITS
        with connect(self.url, autocommit=False) as connection:
            fetch(connection, self.url, "set transaction isolation level repeatable read, read only")
            self._set_snapshot(connection)
            fetch(connection, self.url, LONG_TRANSACTION)
            _set_settings(connection, self.url, {"lock_timeout": LOCK_TIMEOUT})
            with (
                translated(self.url),
                connection.cursor(adbc_stmt_kwargs={"adbc.postgresql.batch_size_hint_bytes": _BATCH_BYTES}) as cursor,
            ):
                cursor.execute(self.queries[number])
                for batch in batches(cursor):
                    yield self._messages(batch, rows)
                    rows += batch.num_rows

    def _set_snapshot(self, connection: Connection) -> None:
        try:
            fetch(connection, self.url, f"set transaction snapshot {literal(self.snapshot.id)}")
        except SchemaError as error:
            raise StoreUnavailable(
                "The transaction of the backfill's driver has ended, and with it the snapshot that all tasks read."
                " Run the backfill again."
            ) from error

    def _messages(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        import pyarrow as pa
        import pyarrow.compute as pc  # type: ignore[import-untyped]

        records, *keys = batch.columns
        numbers = pa.array(range(first, first + batch.num_rows), pa.int64()).cast(pa.string())
        data = pc.binary_join_element_wise('{"record":', records, self.metadata, numbers, "}}", "")
        key = self.shape.keys(keys) if keys else pa.array([self.shape.literals[0]] * batch.num_rows, pa.string())
        return pa.RecordBatch.from_arrays([key, data], names=["key", "data"])


def _publish(spark: SparkSession, reader: Callable[..., Any], database: str, stream: str, write_id: str | None) -> int:
    from pyspark.sql import Observation
    from pyspark.sql import functions as sql

    register(spark)
    count = len(reader.queries)  # type: ignore[attr-defined]
    numbers = spark.range(0, count, 1, numPartitions=count)
    observed = Observation()
    rows: DataFrame = numbers.mapInArrow(reader, _SCHEMA).observe(observed, sql.count(sql.lit(1)).alias("rows"))
    options = {"database": database, "stream": stream, "writeId": write_id or str(uuid.uuid4())}
    with translated_errors():
        rows.write.format("headrace").mode("append").options(**options).save()
    return int(observed.get["rows"])


def _cores(spark: SparkSession) -> int:
    """The number of tasks that the session runs in parallel.

    Over Spark Connect it is unknown, and 8 is a harmless guess.
    """
    context = getattr(spark, "_sc", None)
    return int(context.defaultParallelism) if context is not None else 8
