"""Archive pipeline: writes a stream to Parquet files, one directory per day, each message exactly once.

Any reader of Parquet can read the files. A run that is killed at any moment can be started again
and continues. `layout` describes how a batch is committed. With a `consumer`, a stream with
`retention="interest"` keeps the messages that are not archived yet, and may drop them afterwards.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.model import conditions
from headrace.model.durations import Duration
from headrace.model.errors import ConfigurationError
from headrace.model.keys import check_filters
from headrace.model.specs import ConsumerSpec
from headrace_spark.lake.files import files_at
from headrace_spark.lake.following import Archive, check_formats, keep_tables, update_tables
from headrace_spark.lake.layout import Identity, Layout
from headrace_spark.lake.parquet import ROWS_PER_FILE, Form, write_files
from headrace_spark.pipelines.database import Database, open_database
from headrace_spark.pipelines.running import Report, follow, timed, triggered
from headrace_spark.pipelines.streams import Selection, confirm, stream_of
from headrace_spark.session import register, session
from headrace_spark.session.callbacks import BatchCallback

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("headrace.spark")

MAX_ROWS = 1_000_000


def archive(
    stream: str,
    path: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    database: str | None = None,
    once: bool = True,
    every: Duration = "1m",
    consumer: str | None = None,
    filter: str | Sequence[str] = ">",  # noqa: A002 - as everywhere
    where: str | None = None,
    start: str | int = "earliest",
    max_rows: int = MAX_ROWS,
    rows_per_file: int = ROWS_PER_FILE,
    partitions: int | None = None,
    compression: str = "zstd",
    fail_on_data_loss: bool = True,
    delta: bool = False,
    tables: Sequence[str] = (),
) -> Report:
    """Archive a stream, continuing where the archive ends.

    The columns are `key`, `seq`, `headers`, `created_at`, `data` and `day`. The directories are
    named by `day`, which is the day of `created_at` in UTC. `data` and `headers` are JSON text. For
    a stream with `one_message_per_key` a batch holds the versions that exist when it is read.

    Args:
        stream: the name of the stream.
        path: a directory, or a URL of any file system that Spark knows. It is created, or must be
            an archive of this stream.
        spark: a session. None uses the process's own.
        database: a Postgres URL. None uses the settings.
        once: read what exists now, then end. Otherwise continue until stopped.
        every: unless `once`, how often to look for messages, in seconds or as text. Each batch
            makes at least one file, so a short interval makes many small files.
        consumer: the name of a consumer, created unless it exists. Its cursor follows what is
            archived.
        filter: one or several patterns. Only messages with matching keys are read.
        where: a condition. Only messages that meet it are read.
        start: where a new archive begins: "earliest", "latest", a seq or a time.
        max_rows: maximum number of the stream's messages in a batch, before filters.
        rows_per_file: maximum number of rows in a file.
        partitions: how many tasks read in parallel. None chooses a number by the size of the range.
        compression: compression of the files: zstd, snappy, gzip, lz4 or none.
        fail_on_data_loss: whether to raise an error if messages were removed from the stream before
            they were archived.
        delta: the same as the table format `delta`.
        tables: formats of tables that the archive also keeps, with a version for each batch: "delta"
            (needs `headrace[delta]`) or "iceberg" (needs `headrace[iceberg]`) or
            "ducklake" (needs `headrace[ducklake]`).

    Returns:
        A report of what was done.

    Raises:
        UnknownStream: there is no such stream.
        InvalidInput: the path holds an archive of something else, a filter or a condition is
            invalid, or messages were lost before they were archived.
        CantKeepFiles: the path is a file, or holds something that is no archive.
        ConfigurationError: a setting is invalid.
        StoreUnavailable: the database can't be reached.
    """
    form = Form(rows_per_file, compression)
    if max_rows < 1:
        raise ConfigurationError(f"max_rows={max_rows} is invalid. It must be at least 1.")
    selection = Selection(
        stream=stream,
        filters=check_filters(filter),
        where=where,
        start=str(start),
        max_rows=max_rows,
        partitions=partitions,
        fail_on_data_loss=fail_on_data_loss,
        consumer=consumer,
    )
    spark = spark or session()
    register(spark)
    report = Report(pipeline="archive", stream=stream, into=os.fspath(path), written=0, files=0)
    with timed(report), open_database(database) as database_connection:
        database_connection.stream(stream)
        layout = Layout(files_at(path, spark))
        formats = (*dict.fromkeys((*tables, *(["delta"] if delta else []))),)
        check_formats(formats, layout.files.root)
        archive_id = layout.open(
            Identity(stream=stream, filters=_identity_filters(selection.filters), where=selection.where)
        )
        with database_connection.exclusive_lock(f"headrace archive {archive_id}") as locked:
            if not locked:
                raise layout.in_use_error()
            layout.recover()
            kept = Archive(id=archive_id, stream=stream, root=layout.files.root, database=database_connection.url)
            keep_tables(kept, layout, formats)
            update_tables(kept, layout, formats)
            batch_writer = _BatchWriter(kept, formats, form)
            if consumer is not None:
                _ensure_consumer(database_connection, selection, consumer)
            rows = stream_of(spark, database_connection.url, selection)
            writer = rows.writeStream.queryName(f"archive_{stream}").foreachBatch(BatchCallback(batch_writer))
            _run(triggered(writer, once=once, every=every), layout, report)
            if consumer is not None:
                _confirm(layout, database_connection, stream, consumer)
    return report


def _run(writer: DataStreamWriter, layout: Layout, report: Report) -> None:
    before = max(layout.batches(), default=-1)
    try:
        follow(writer.option("checkpointLocation", layout.checkpoint), lambda progress: None)
    except BaseException:
        with suppress(Exception):  # the files may be out of reach, as without Spark's Java, and that is the error
            _count(layout, before, report)
        raise
    _count(layout, before, report)


class _BatchWriter:
    """Writes a batch. It holds only plain values, since Spark Connect sends it to the server."""

    def __init__(self, kept: Archive, formats: Sequence[str], form: Form) -> None:
        self._archive = kept
        self._formats = formats
        self._form = form

    def __call__(self, batch: DataFrame, number: int) -> None:
        spark = batch.sparkSession
        layout = Layout(files_at(self._archive.root, spark))
        if (manifest := layout.manifest(number)) is not None:  # committed before the previous run was killed
            layout.finish(manifest)
        else:
            self._write_and_commit(batch, number, layout)
        update_tables(self._archive, layout, self._formats)

    def _write_and_commit(self, batch: DataFrame, number: int, layout: Layout) -> None:
        written = layout.begin(number)
        directory = f"{layout.files.root}/{written}"
        rows, first, last = write_files(batch.withColumn("day", _day()), directory, self._form, ["day"])
        if rows:
            layout.commit(number, written, rows, first, last)
        else:
            layout.files.remove(written)


def _day() -> Any:
    """The column of the day in UTC, in any session time zone."""
    from pyspark.sql import functions as sql

    days = sql.floor(sql.unix_micros("created_at") / sql.lit(86_400_000_000)).cast("int")
    return sql.date_add(sql.lit("1970-01-01").cast("date"), days)


def _identity_filters(filters: Sequence[str]) -> tuple[str, ...]:
    """The filters in the form of an archive's identity, which is empty for all messages."""
    return () if ">" in filters else tuple(sorted(filters))


def _ensure_consumer(database_connection: Database, selection: Selection, name: str) -> None:
    where = None if selection.where is None else conditions.parse(selection.where)
    database_connection.ensure_consumer(
        ConsumerSpec(stream=selection.stream, name=name, filters=selection.filters, where=where)
    )


def _count(layout: Layout, before: int, report: Report) -> None:
    for manifest in layout.manifests(before):
        report.add(manifest.rows)
        report.written = report.rows
        report.files = (report.files or 0) + len(manifest.files)
        report.extend_range(manifest.first, manifest.last)


def _confirm(layout: Layout, database_connection: Database, stream: str, consumer: str) -> None:
    """Move the consumer behind the last batch. Spark reports a batch to a source only when the next one comes."""
    numbers = layout.batches()
    if numbers and (manifest := layout.manifest(numbers[-1])) is not None:
        confirm(database_connection.url, stream, consumer, manifest.last)
