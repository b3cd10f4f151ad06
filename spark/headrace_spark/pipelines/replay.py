"""Replay pipeline: runs the history of a stream, or an archive, through a function into another stream.

The order of each key is kept. Batches are processed in the order of seq, and each batch's results
are published in one transaction, under an id made of the replay and the batch. A replay that is killed can therefore
be started again with the same checkpoint. It continues, and publishes nothing twice.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.model.keys import check_filters
from headrace_spark.frames.outgoing import check
from headrace_spark.lake.claims import claim
from headrace_spark.lake.files import Files, files_at
from headrace_spark.lake.layout import Layout, Manifest
from headrace_spark.lake.merges import Merges, current
from headrace_spark.pipelines.database import open_database
from headrace_spark.pipelines.functions import load_function, pickle_by_value
from headrace_spark.pipelines.running import Report, follow, timed, translated_errors, triggered
from headrace_spark.pipelines.streams import Selection, stream_of
from headrace_spark.session import is_connect, register, session
from headrace_spark.session.callbacks import BatchCallback

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Function = Callable[["DataFrame"], "DataFrame"]

_IDENTITY = "replay.json"
_DONE = "done"
MAX_ROWS = 500_000


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a replay, stored in its checkpoint. `id` identifies its writes."""

    id: str
    source: str
    into: str
    filters: tuple[str, ...] = (">",)
    where: str | None = None


def replay(
    function: Function | str,
    into: str,
    *,
    stream: str | None = None,
    path: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str],
    spark: SparkSession | None = None,
    database: str | None = None,
    filter: str | Sequence[str] = ">",  # noqa: A002 - as everywhere
    where: str | None = None,
    start: str | int = "earliest",
    max_rows: int = MAX_ROWS,
    partitions: int | None = None,
    fail_on_data_loss: bool = True,
) -> Report:
    """Run the messages of a stream, up to now, or of an archive through a function into another stream.

    The function gets a DataFrame of `key`, `seq`, `headers`, `created_at` and `data` for each
    batch. The rows of a key are all in one partition, in their order. The function returns a
    DataFrame with `key` and either `data` or other columns that become the data. If the result has
    `seq`, its rows are sorted by it again for each key, and `seq` does not become part of the data.
    Without `seq` the rows are published in their current order, so a function that shuffles must
    keep `seq`.

    Args:
        function: the function, or its name: `module:function`, or `file.py:function`. Over Spark
            Connect it runs on the server. With a name, its module is sent along, and the module's
            imports must exist there. A function object must be importable there, unless it is
            defined in the running program.
        into: the stream to publish to, which must exist.
        stream: the stream to read. Give either this or `path`.
        path: the directory to read: an archive, or any Parquet files with `key` and `data`. Files
            that are no archive are read as one batch.
        checkpoint: a directory for this replay alone, which is created. It holds the position.
        spark: a session. None uses the process's own.
        database: a Postgres URL. None uses the settings.
        filter: for a stream, one or several patterns. Only messages with matching keys are read.
        where: for a stream, a condition. Only messages that meet it are read.
        start: for a stream, where to begin: "earliest", a seq or a time.
        max_rows: for a stream, maximum number of its messages in a batch, before filters.
        partitions: how many tasks read in parallel. None chooses a number by the size of the range.
        fail_on_data_loss: whether to raise an error if messages were removed from the stream before
            they were read.

    Returns:
        A report of what was done.

    Raises:
        UnknownStream: the stream to read or to publish to does not exist.
        InvalidInput: the checkpoint is of another replay, or the function's result can't become
            messages.
        NoFunction: there is no such function.
        CantKeepFiles: another process runs this replay, with the same checkpoint.
        ConfigurationError: neither or both of `stream` and `path` are given, or the stream would be
            replayed into itself.
        PipelineFailed: the function raised.
    """
    if (stream is None) == (path is None):
        raise ConfigurationError("A replay reads either a stream or a path. Give exactly one of them.")
    if stream == into:
        raise ConfigurationError(
            f"The stream {into!r} can't be replayed into itself. Set another stream for the results."
        )
    selection = Selection(
        stream=stream or "",
        filters=check_filters(filter),
        where=where,
        start=str(start),
        max_rows=max_rows,
        partitions=partitions,
        fail_on_data_loss=fail_on_data_loss,
    )
    call = load_function(function) if isinstance(function, str) else function
    spark = spark or session()
    if isinstance(function, str) and is_connect(spark):
        pickle_by_value(call)
    register(spark)
    report = Report(pipeline="replay", stream=stream, into=into)
    with timed(report), open_database(database) as database_connection:
        database_connection.stream(into)
        files = files_at(checkpoint, spark)
        if stream is not None:
            database_connection.stream(stream)
            identity = _identity(files, selection, f"stream:{stream}", into)
            with database_connection.sole_use("replay", identity.id, files.root):
                _replay_stream(spark, _Step(call, database_connection.url, identity), selection, files, report)
        else:
            source = files_at(path or "", spark)
            identity = _identity(files, selection, source.root, into)
            with database_connection.sole_use("replay", identity.id, files.root):
                _replay_files(spark, _Step(call, database_connection.url, identity), Layout(source), files, report)
    return report


def _identity(files: Files, selection: Selection, source: str, into: str) -> Identity:
    result = Identity(id=uuid.uuid4().hex, source=source, into=into, filters=selection.filters, where=selection.where)
    known = claim(files, _IDENTITY, result, "checkpoint of a replay")
    if msgspec.structs.replace(result, id=known.id) != known:
        raise InvalidInput(
            f"The checkpoint {files.root!r} is of a replay of {known.source} into {known.into!r}, with other settings. Give another"
            " directory."
        )
    return known


def _replay_stream(spark: SparkSession, step: _Step, selection: Selection, files: Files, report: Report) -> None:
    rows = stream_of(spark, step.database, selection)
    writer = rows.writeStream.queryName(f"replay_{selection.stream}").foreachBatch(BatchCallback(step))
    writer = triggered(writer.option("checkpointLocation", f"{files.root}/checkpoint"), once=True, every="1m")

    def on_progress(progress: Any) -> None:
        report.add(progress["numInputRows"])

    follow(writer, on_progress)
    if is_connect(spark):
        report.clear_counts()


def _replay_files(spark: SparkSession, step: _Step, source: Layout, files: Files, report: Report) -> None:
    """Replay files, batch by batch as the archive was written.

    A finished batch is recorded in the checkpoint. A batch that may have been published is
    recognized by its write id.
    """
    archived = source.identity() is not None
    if not archived and not source.files.below(""):
        raise InvalidInput(
            f"There is nothing to replay in {source.files.root!r}. Give an archive, or a directory of Parquet files."
        )
    batches = source.complete() if archived else [None]
    done = set(files.names(_DONE))
    for batch in batches:
        number = 0 if batch is None else batch.batch
        if str(number) in done:
            continue
        with translated_errors():
            rows = spark.read.parquet(source.files.root) if batch is None else _rows_of(spark, source, batch)
            missing = [name for name in ("key", "data") if name not in rows.columns]
            if missing:
                raise InvalidInput(
                    f"The files in {source.files.root!r} have no column {missing[0]!r}. A message needs key and data. Their columns are {', '.join(rows.columns)}."
                )
            columns = [name for name in ("key", "seq", "headers", "created_at", "data") if name in rows.columns]
            step(rows.select(*columns), number)
            report.add(step.rows(rows))
        files.create(f"{_DONE}/{number}", b"")


def _rows_of(spark: SparkSession, source: Layout, batch: Manifest) -> DataFrame:
    """The rows of a batch. The merges are read again for each batch, because a replay may last longer than replaced
    files stay."""
    from pyspark.sql import functions as sql

    places = [part.place for part in current([batch], Merges(source).all())]
    rows = spark.read.parquet(*source.paths(places))
    return rows.where(sql.col("seq").between(batch.first, batch.last))  # merged files have those of other batches


class _Step:
    """Processes a batch. It holds only the function and plain values, since Spark Connect sends it to the server."""

    def __init__(self, function: Function, database: str, identity: Identity) -> None:
        self.function = function
        self.database = database
        self.identity = identity

    def __call__(self, batch: DataFrame, number: int) -> None:
        register(batch.sparkSession)
        result = self._call_function(_in_order(batch))
        if "seq" in result.columns:
            result = _in_order(result).drop("seq")
        if "data" in result.columns:
            result = result.select(*[name for name in ("key", "headers", "data") if name in result.columns])
        result.write.format("headrace").mode("append").options(
            database=self.database, stream=self.identity.into, writeId=f"replay:{self.identity.id}:{number}"
        ).save()

    def rows(self, batch: DataFrame) -> int:
        """The number of rows in a batch of files, from the files' footers."""
        return batch.count()

    def _call_function(self, batch: DataFrame) -> DataFrame:
        result = self.function(batch)
        if not hasattr(result, "sparkSession"):
            raise InvalidInput(
                f"The function {_name(self.function)} returned {type(result).__name__}, and must return a DataFrame."
            )
        check(result.schema)
        return result


def _in_order(rows: DataFrame) -> DataFrame:
    """Put the rows of each key into one partition, sorted by seq. Without `seq` the rows are not sorted."""
    partitioned = rows.repartition("key")
    return partitioned.sortWithinPartitions("seq") if "seq" in rows.columns else partitioned


def _name(function: Callable[..., Any]) -> str:
    return repr(getattr(function, "__qualname__", type(function).__name__))
