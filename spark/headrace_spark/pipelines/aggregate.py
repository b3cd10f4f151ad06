"""Aggregate pipeline: windows over a stream, by key or by columns of the data, published to another stream.

The checkpoint keeps a window's state until the watermark has passed the window's end. The watermark
is the latest time seen, minus the allowed delay of late events. With mode "update" a window's
result is published whenever a batch changes it, so the last message of a key counts. With mode
"append" it is published once, when nothing can change it any more.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from headrace.model.durations import Duration, seconds
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.model.keys import check_filters, check_key
from headrace_spark.lake.claims import claim
from headrace_spark.lake.files import Files, files_at
from headrace_spark.pipelines.database import open_database
from headrace_spark.pipelines.running import Progress, Report, follow, timed, translated_errors, triggered
from headrace_spark.pipelines.streams import Selection, stream_of
from headrace_spark.session import is_connect, register, session
from headrace_spark.session.callbacks import BatchCallback

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

Mode = Literal["update", "append"]

MAX_ROWS = 500_000
_IDENTITY = "aggregate.json"
_FIELD = re.compile(r"\{([^{}]*)\}")
_TIMES = ("window_start", "window_end")
_MAX_VALUE_BYTES = 96  # bytes, as in other keys


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of an aggregate, stored in its checkpoint. `id` identifies its writes.

    Settings that are not in it may change from run to run.
    """

    id: str
    stream: str
    into: str
    window: float
    slide: float
    by: tuple[str, ...]
    aggregates: dict[str, str]
    mode: str
    time: str


def aggregate(
    stream: str,
    into: str,
    *,
    window: Duration,
    aggregates: Mapping[str, str],
    checkpoint: str | os.PathLike[str],
    slide: Duration | None = None,
    by: Sequence[str] = ("key",),
    time: str = "created_at",
    watermark: Duration = "10m",
    schema: str | None = None,
    key: str | None = None,
    mode: Mode = "update",
    spark: SparkSession | None = None,
    database: str | None = None,
    once: bool = True,
    every: Duration = "10s",
    filter: str | Sequence[str] = ">",  # noqa: A002 - as everywhere
    where: str | None = None,
    start: str | int = "earliest",
    max_rows: int = MAX_ROWS,
    partitions: int | None = None,
    fail_on_data_loss: bool = True,
) -> Report:
    """Aggregate a stream by windows of time, and publish the results.

    A result's data has `window_start`, `window_end`, the columns of `by`, and the aggregates. Each
    result is published exactly once, even if a run is killed and started again.

    Args:
        stream: the stream to read.
        into: the stream to publish to, which must exist. For mode "update" a stream with
            `one_message_per_key` keeps only the latest results.
        window: the length of a window, in seconds or as text.
        aggregates: names and expressions of Spark SQL, such as `{"orders": "count(*)", "total":
            "sum(data.total)"}`.
        checkpoint: a directory for this aggregate alone, which is created. It holds the state and
            the position.
        slide: the interval between the starts of windows. None for windows that don't overlap.
        by: what to group by, besides the window: columns, or fields such as `data.customer`. The
            last part of the path is the name in the result.
        time: the event time of a message: a column, a field such as `data.at`, or an expression. A
            message without it is in no window.
        watermark: how late an event may come. Later events for closed windows are dropped and
            counted.
        schema: the schema of `data` as Spark DDL, such as `customer string, total decimal(12, 2)`.
            Without it `data` is JSON text.
        key: a template of the results' keys, with `{window_start}`, `{window_end}` and the names of
            `by`. None for all of `by` and the start.
        mode: "update" or "append", as described above.
        spark: a session. None uses the process's own.
        database: a Postgres URL. None uses the settings.
        once: read what exists now, then end. Otherwise continue until stopped.
        every: unless `once`, how often to look for messages, in seconds or as text.
        filter, where, start, max_rows, partitions, fail_on_data_loss: what is read. See `archive`.

    Returns:
        A report of what was done. Its `late` is the number of late rows as Spark counts them. Spark
        first merges rows of the same window and group that one task has read together.

    Raises:
        UnknownStream: the stream to read or to publish to does not exist.
        InvalidInput: an expression, a column or a schema is invalid, or the checkpoint is of
            another aggregate.
        CantKeepFiles: another process runs this aggregate, with the same checkpoint.
        ConfigurationError: a setting is invalid.
    """
    if mode not in get_args(Mode):
        raise ConfigurationError(f"mode={mode!r} is invalid. It must be 'update' or 'append'.")
    if not aggregates:
        raise ConfigurationError("aggregates is empty. Give at least one, such as {'count': 'count(*)'}.")
    if stream == into:
        raise ConfigurationError(
            f"The stream {into!r} can't be aggregated into itself. Set another stream for the results."
        )
    length = _positive_seconds(window, "window")
    identity = Identity(
        id=uuid.uuid4().hex,
        stream=stream,
        into=into,
        window=length,
        slide=length if slide is None else _positive_seconds(slide, "slide"),
        by=tuple(by),
        aggregates=dict(aggregates),
        mode=mode,
        time=time,
    )
    if identity.slide > identity.window:
        raise ConfigurationError(f"slide={slide!r} is longer than window={window!r}. It must be at most as long.")
    names = _names(identity)
    template = key if key is not None else ".".join(f"{{{name}}}" for name in (*names, "window_start"))
    selection = Selection(
        stream=stream,
        filters=check_filters(filter),
        where=where,
        start=str(start),
        max_rows=max_rows,
        partitions=partitions,
        fail_on_data_loss=fail_on_data_loss,
    )
    spark = spark or session()
    register(spark)
    report = Report(pipeline="aggregate", stream=stream, into=into, late=0)
    with timed(report), open_database(database) as database_connection:
        database_connection.stream(stream)
        database_connection.stream(into)
        files = files_at(checkpoint, spark)
        with translated_errors():
            rows = stream_of(spark, database_connection.url, selection)
            results = _results(rows, identity, names, schema, seconds(watermark, "watermark"), template)
            results.schema  # noqa: B018 - it makes Spark check that everything named exists
        identity = _claim(files, identity)
        # Spark lets a data source in Python write only in append mode. `foreachBatch` works for
        # both modes.
        writer = results.writeStream.queryName(f"aggregate_{stream}").outputMode(mode)
        writer = writer.foreachBatch(BatchCallback(_Publishing(database_connection.url, identity)))
        writer = writer.option("checkpointLocation", f"{files.root}/checkpoint")

        def on_progress(progress: Progress) -> None:
            report.add(progress["numInputRows"])
            report.late = (report.late or 0) + sum(
                one["numRowsDroppedByWatermark"] for one in progress["stateOperators"]
            )

        with database_connection.sole_use("aggregate", identity.id, files.root):
            follow(triggered(writer, once=once, every=every), on_progress)
        if is_connect(spark):
            report.clear_counts()
    return report


def _results(
    rows: DataFrame, identity: Identity, names: Sequence[str], schema: str | None, watermark: float, template: str
) -> DataFrame:
    from pyspark.sql import functions as sql

    if schema is not None:
        rows = rows.withColumn("data", sql.from_json("data", schema))
    rows = rows.withColumn("event_time", sql.expr(identity.time).cast("timestamp"))
    rows = rows.withWatermark("event_time", _interval(watermark))
    windows = sql.window("event_time", _interval(identity.window), _interval(identity.slide))
    groups = [sql.expr(text).alias(name) for text, name in zip(identity.by, names, strict=True)]
    aggregate_columns = [sql.expr(text).alias(name) for name, text in identity.aggregates.items()]
    grouped = rows.groupBy(windows.alias("window"), *groups).agg(*aggregate_columns)
    columns = [sql.col("window.start").alias("window_start"), sql.col("window.end").alias("window_end")]
    columns += [sql.col(f"`{name}`") for name in (*names, *identity.aggregates)]
    data = sql.struct(*columns)
    keys = {name for text, name in zip(identity.by, names, strict=True) if text == "key"}
    types = {name: grouped.schema[name].dataType for name in names}
    return grouped.select(_key(template, types, keys).alias("key"), data.alias("data"))


def _key(template: str, types: Mapping[str, DataType], keys: Collection[str]) -> Column:
    """The key of a result.

    Args:
        template: its text, with fields.
        types: the types of the columns that may be fields, besides those of the window.
        keys: the names that hold message keys, which may have many tokens.
    """
    from pyspark.sql import functions as sql
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    from headrace_spark.frames.outgoing import json_text

    known = (*_TIMES, *types)
    pieces = _FIELD.split(template)
    check_key("x".join(pieces[::2]))
    parts: list[Column] = [sql.lit(pieces[0])]
    for field, text in zip(pieces[1::2], pieces[2::2], strict=True):
        if field not in known:
            raise ConfigurationError(
                f"The key template {template!r} has the unknown field {{{field}}}. The fields are {', '.join(f'{{{name}}}' for name in known)}."
            )
        if field in _TIMES:
            moment = sql.col("window.start" if field == "window_start" else "window.end")
            parts.append(_in_utc(moment, "yyyy-MM-dd'T'HH:mm:ss'Z'"))
        else:
            value, kind = sql.col(f"`{field}`"), types[field]
            if field in keys:
                parts.append(value)
            elif isinstance(kind, TimestampType):
                parts.append(_token(_in_utc(value, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")))
            else:
                # The text of a struct would have its times in the session's zone.
                nested = isinstance(kind, (ArrayType, MapType, StructType))
                parts.append(_token(json_text(field, kind) if nested else value.cast("string")))
        parts.append(sql.lit(text))
    return sql.concat(*parts)


def _in_utc(moment: Column, form: str) -> Column:
    """An instant as text in UTC.

    It doesn't go through the session's local time, in which two instants are the same when summer time ends.
    """
    from pyspark.sql import functions as sql

    return sql.to_csv(sql.struct(moment), {"timeZone": "UTC", "timestampFormat": form})


def _token(value: Column) -> Column:
    """A value as one token of a key, by the rules of all keys."""
    from pyspark.sql import functions as sql

    plain = sql.regexp_replace(value, r"[.*>\p{C}\p{Z}]", "_")
    hashed = sql.upper(sql.sha2(value, 256))
    return (
        sql.when(value.isNull() | (value == ""), "_")
        .when(sql.octet_length(value) > _MAX_VALUE_BYTES, hashed)
        .otherwise(plain)
    )


def _names(identity: Identity) -> tuple[str, ...]:
    """The names of the columns of `by` in a result."""
    names = tuple(text.rpartition(".")[2].strip("`") for text in identity.by)
    all_names = (*_TIMES, *names, *identity.aggregates)
    duplicate = next((name for name in all_names if all_names.count(name) > 1), None)
    if duplicate is not None:
        raise ConfigurationError(f"The result has two columns named {duplicate!r}. Give one of them another name.")
    return names


def _claim(files: Files, identity: Identity) -> Identity:
    """Claim the checkpoint, or return the identity that it has, with its id."""
    known = claim(files, _IDENTITY, identity, "checkpoint of an aggregate")
    if msgspec.structs.replace(identity, id=known.id) != known:
        raise InvalidInput(
            f"The checkpoint {files.root!r} is of another aggregate, of {known.stream!r}. Its state doesn't fit these settings. Give"
            " another directory."
        )
    return known


class _Publishing:
    """Publishes the results of a batch, once.

    It holds only plain values, since Spark Connect sends it to the server.
    """

    def __init__(self, database: str, identity: Identity) -> None:
        self._database = database
        self._identity = identity

    def __call__(self, batch: DataFrame, number: int) -> None:
        register(batch.sparkSession)
        batch.write.format("headrace").mode("append").options(
            database=self._database, stream=self._identity.into, writeId=f"aggregate:{self._identity.id}:{number}"
        ).save()


def _positive_seconds(value: Any, name: str) -> float:
    found = seconds(value, name)
    if found <= 0:
        raise ConfigurationError(f"{name}={value!r} is invalid. It must be greater than zero.")
    return found


def _interval(length: float) -> str:
    return f"{round(length * 1_000_000)} microseconds"
