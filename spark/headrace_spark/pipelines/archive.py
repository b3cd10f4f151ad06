"""Archive: a stream as Parquet files, a directory for each day, every message in them once.

The files are for any reader. A run that is killed, at any moment, is started again and goes on; see `layout` for how a batch is committed.
With a `consumer`, a stream with `retention="interest"` keeps what is not archived yet, and may drop it afterwards.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.model import conditions
from headrace.model.durations import Duration
from headrace.model.errors import ConfigurationError
from headrace.model.keys import check_filters
from headrace.model.specs import ConsumerSpec
from headrace_spark.pipelines.connected import Connected, connected
from headrace_spark.pipelines.files import files_at
from headrace_spark.pipelines.layout import Identity, Layout
from headrace_spark.pipelines.running import Report, follow, timed, triggered
from headrace_spark.pipelines.streams import Selection, confirm, prepare, stream_of
from headrace_spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("headrace.spark")

MAX_ROWS = 1_000_000
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
_ROW_GROUP = 32 * 1024 * 1024  # bytes that a task's writer holds for each file that it has open


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
    rows_per_file: int = 1_000_000,
    partitions: int | None = None,
    compression: str = "zstd",
    fail_on_data_loss: bool = True,
) -> Report:
    """Archive a stream, from where the archive ends.

    The columns are `key`, `seq`, `headers`, `created_at` and `data`, and `day`, by which the directories are named: the day of `created_at`
    in UTC. `data` and `headers` are JSON text. Of a stream with `one_message_per_key` a batch holds the versions that are there when it is read.

    Args:
        stream: the stream's name.
        path: a directory, or a URL of any file system that Spark knows. It is made, or is an archive of this stream already.
        spark: a session; None for the process's own.
        database: a Postgres URL; None for what the settings say.
        once: take what is there now, and end; otherwise go on until stopped.
        every: unless `once`: how often to look, in seconds or as text. A batch makes a file at least, so a short time makes many small ones.
        consumer: the name of a consumer that is made, unless it is there, and moved behind what is archived.
        filter: only messages whose keys match; or several filters.
        where: only messages that meet this condition.
        start: where a new archive begins: "earliest", "latest", a seq or a time.
        max_rows: how many seqs a batch spans at most.
        rows_per_file: how many rows a file holds at most.
        partitions: how many tasks read at a time; None for as many as are worth it.
        compression: of the files: zstd, snappy, gzip, lz4 or none.
        fail_on_data_loss: whether it is an error that messages were removed from the stream before they were archived.

    Returns:
        What was done.

    Raises:
        UnknownStream: there is no such stream.
        InvalidInput: the path holds an archive of something else; a filter or a condition that can't be; or messages are lost that should
            have been archived.
        CantKeepFiles: the path is a file, or holds something that is no archive.
        ConfigurationError: a setting that can't be.
        StoreUnavailable: the database can't be reached.
    """
    _check(compression, rows_per_file, max_rows)
    selection = Selection(
        stream=stream, filters=check_filters(filter), where=where, start=str(start), max_rows=max_rows,
        partitions=partitions, fail_on_data_loss=fail_on_data_loss, consumer=consumer,
    )  # fmt: skip
    spark = spark or session()
    prepare(spark)
    report = Report(pipeline="archive", stream=stream, into=os.fspath(path), written=0, files=0)
    with timed(report), connected(database) as base:
        base.stream(stream)
        layout = Layout(files_at(path, spark))
        archive_id = layout.open(Identity(stream=stream, filters=_told(selection.filters), where=selection.where))
        with base.alone(f"headrace archive {archive_id}") as alone:
            if not alone:
                raise layout.taken()
            layout.recover()
            writing = _Writing(layout.files.root, rows_per_file, compression)
            _work(spark, base, selection, layout, writing, report, once=once, every=every)
    return report


def _work(
    spark: SparkSession, base: Connected, selection: Selection, layout: Layout, writing: _Writing, report: Report, *,
    once: bool, every: Duration,
) -> None:  # fmt: skip
    if selection.consumer is not None:
        _keep_consumer(base, selection, selection.consumer)
    before = max(layout.batches(), default=-1)
    rows = stream_of(spark, base.url, selection)
    writer = rows.writeStream.queryName(f"archive_{selection.stream}").foreachBatch(writing)
    writer = triggered(writer.option("checkpointLocation", layout.checkpoint), once=once, every=every)
    try:
        follow(writer, lambda progress: None)
    finally:
        _count(layout, before, report)
    if selection.consumer is not None:
        _confirm(layout, base, selection.stream, selection.consumer)


class _Writing:
    """Writes a batch. It holds nothing but plain values, since Spark Connect sends it to the server."""

    def __init__(self, root: str, rows_per_file: int, compression: str) -> None:
        self._root = root
        self._rows_per_file = rows_per_file
        self._compression = compression

    def __call__(self, batch: DataFrame, number: int) -> None:
        spark = batch.sparkSession
        layout = Layout(files_at(self._root, spark))
        if (manifest := layout.manifest(number)) is not None:  # committed, and then we were killed
            layout.finish(manifest)
            return
        written = layout.begin(number)
        rows, first, last = self._write(batch, f"{layout.files.root}/{written}")
        if rows:
            layout.commit(number, written, rows, first, last)
        else:
            layout.files.remove(written)

    def _write(self, batch: DataFrame, place: str) -> tuple[int, int, int]:
        from pyspark.sql import Observation
        from pyspark.sql import functions as sql

        # The session is the query's own, so nobody else sees these.
        batch.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        batch.sparkSession.conf.set("spark.sql.maxConcurrentOutputFileWriters", "8")  # then nothing is sorted by day
        seen = Observation()
        counted = batch.withColumn("day", _day()).observe(
            seen, sql.count(sql.lit(1)).alias("rows"), sql.min("seq").alias("first"), sql.max("seq").alias("last")
        )
        (
            counted.write.partitionBy("day")
            .option("maxRecordsPerFile", self._rows_per_file)
            .option("compression", self._compression)
            .option("parquet.block.size", _ROW_GROUP)
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(place)
        )
        found: dict[str, Any] = seen.get
        return found["rows"], found["first"], found["last"]


def _day() -> Any:
    """The day in UTC, whatever the session's time zone is."""
    from pyspark.sql import functions as sql

    days = sql.floor(sql.unix_micros("created_at") / sql.lit(86_400_000_000)).cast("int")
    return sql.date_add(sql.lit("1970-01-01").cast("date"), days)


def _check(compression: str, rows_per_file: int, max_rows: int) -> None:
    if compression not in COMPRESSIONS:
        raise ConfigurationError(f"compression={compression!r} must be one of {', '.join(COMPRESSIONS)}.")
    for name, value in (("rows_per_file", rows_per_file), ("max_rows", max_rows)):
        if value < 1:
            raise ConfigurationError(f"{name}={value} must be at least 1.")


def _told(filters: Sequence[str]) -> tuple[str, ...]:
    """The filters as an archive's identity has them: nothing for all messages."""
    return () if ">" in filters else tuple(sorted(filters))


def _keep_consumer(base: Connected, selection: Selection, name: str) -> None:
    where = None if selection.where is None else conditions.parse(selection.where)
    base.keep_consumer(ConsumerSpec(stream=selection.stream, name=name, filters=selection.filters, where=where))


def _count(layout: Layout, before: int, report: Report) -> None:
    for manifest in layout.manifests(before):
        report.add(manifest.rows)
        report.written = report.rows
        report.files = (report.files or 0) + len(manifest.files)
        report.saw(manifest.first, manifest.last)


def _confirm(layout: Layout, base: Connected, stream: str, consumer: str) -> None:
    """Move the consumer behind the last batch, of which Spark tells a source only when the next one comes."""
    numbers = layout.batches()
    if numbers and (manifest := layout.manifest(numbers[-1])) is not None:
        confirm(base.url, stream, consumer, manifest.last)
