"""The whole history of a stream: its archive and what the stream has beyond it, as one DataFrame."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from headrace.model.errors import ConfigurationError, InvalidInput, UnknownStream
from headrace_spark.lake.files import files_at
from headrace_spark.lake.layout import CHECKPOINT, Identity, Layout
from headrace_spark.lake.merges import Merges, Part, current, day_of
from headrace_spark.lake.parquet import COLUMNS
from headrace_spark.pipelines.streams import Selection
from headrace_spark.positions.offsets import Position, parse
from headrace_spark.session import register, session
from headrace_spark.source.following import older
from headrace_spark.source.options import Edge, Edges, Options
from headrace_spark.source.queries import Queries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def history(
    stream: str,
    path: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    database: str | None = None,
    start: str | int | datetime = "earliest",
    end: str | int | datetime = "latest",
) -> DataFrame:
    """Read an archive and the stream behind it, without a gap or a double where they meet.

    The DataFrame holds what exists now, also if the archive grows meanwhile, and has the filter and the condition of
    the archive. An archive that is being written is read up to its last complete batch, and the rest from the stream.

    Args:
        stream: the name of the stream.
        path: the archive of this stream.
        spark: a session. None uses the process's own.
        database: a Postgres URL. None uses the settings.
        start: the first message: "earliest", a seq or a time.
        end: the last message: "latest", a seq, or a time, before which the last one was published.

    Returns:
        A DataFrame of `key`, `seq`, `headers`, `created_at` and `data`.

    Raises:
        UnknownStream: there is no such stream, or the archive is of a deleted one of this name.
        InvalidInput: the path holds no archive of this stream.
        ConfigurationError: `start` or `end` is no position.
        StoreUnavailable: the database can't be reached.
    """
    spark = spark or session()
    register(spark)
    layout = Layout(files_at(path, spark))
    identity = layout.identity()
    if identity is None or identity.stream != stream:
        held = "no archive" if identity is None else f"an archive of {identity}"
        raise InvalidInput(f"{layout.files.root!r} holds {held}, and not one of the stream {stream!r}.")
    edges = Options.of({"stream": stream, "start": _text(start), "end": _text(end)} | _given(database))
    first, last = _edge("start", edges.start), _edge("end", edges.end)
    merges = Merges(layout).all()  # before the batches, so that merged files have rows of these only
    done = _done(layout)  # before the batches, so that those up to it are complete
    batches = layout.complete()  # the stream still has the messages of the others
    drawn = _drawn(layout, edges)  # after these, since the archive may grow meanwhile
    seam = max(batches[-1].last if batches else 0, done)
    if seam > drawn:
        raise InvalidInput(
            f"The archive in {layout.files.root!r} has messages up to seq {seam}, and the last one of the stream {stream!r} is {drawn}. The"
            " database is older than the archive, as after a restore. Read the archive alone."
        )
    parts = [
        part
        for part in (
            _archived(spark, layout, current(batches, merges), first, last),
            _live(spark, edges.database, identity, seam, first, last) if drawn > seam else None,
        )
        if part is not None
    ]
    if not parts:  # the range ends before the first message
        parts = [_rows(spark, edges.database, identity, "latest", "latest").limit(0)]
    return _within(parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1]), first, last)


def _text(edge: str | int | datetime) -> str:
    if isinstance(edge, datetime):
        return (edge if edge.tzinfo else edge.replace(tzinfo=UTC)).isoformat()
    return str(edge)


def _edge(name: str, edge: Edges) -> Edge:
    if isinstance(edge, dict):
        raise ConfigurationError(
            f"A history is of one stream, so {name} is one position: earliest, latest, a seq or a time."
        )
    return edge


def _given(database: str | None) -> dict[str, str]:
    return {} if database is None else {"database": database}


def _done(layout: Layout) -> int:
    """The position behind the batches that Spark has done. Those without a row have no manifest, and the stream may not
    have their messages any more."""
    numbers = layout.numbers(f"{CHECKPOINT}/commits")
    text = layout.files.read(f"{CHECKPOINT}/offsets/{numbers[-1]}") if numbers else None
    return 0 if text is None else max((position.seq for position in _positions(text).values()), default=0)


def _positions(text: bytes) -> dict[str, Position]:
    """The positions in a file of offsets, by the unique id of the stream."""
    return parse(msgspec.json.decode(text.strip().rpartition(b"\n")[2]))


def _drawn(layout: Layout, options: Options) -> int:
    """Return the last seq that the stream has drawn. By the last offset in the archive's checkpoint, check that the
    stream is the one that was archived, and that the database is not older."""
    numbers = layout.numbers(f"{CHECKPOINT}/offsets")
    text = layout.files.read(f"{CHECKPOINT}/offsets/{numbers[-1]}") if numbers else None
    queries = Queries(options.place, patience=options.settle_timeout)
    try:
        (found,) = queries.streams(options)
        if text is None:
            return found.last
        archived = _positions(text).get(found.uid)
        if archived is None:
            raise UnknownStream(
                f"The archive in {layout.files.root!r} is of a stream {options.stream!r} that was deleted. The stream of this name was created"
                " later."
            )
        ((last, drawn),) = queries.witnesses([(found.name, archived.seq)])
    finally:
        queries.close()
    if (problem := older(msgspec.structs.replace(archived, name=found.name), last, drawn)) is not None:
        raise InvalidInput(f"{problem} Read the archive in {layout.files.root!r} alone.")
    return drawn


def _archived(spark: SparkSession, layout: Layout, parts: list[Part], first: Edge, last: Edge) -> DataFrame | None:
    """The archive's rows, of the files that may have some in the range."""
    places = [
        part.place
        for part in parts
        if not (isinstance(first, int) and part.last < first)
        and not (isinstance(last, int) and part.first > last)
        and _may_be_within(part.place, first, last)
    ]
    if not places:
        return None
    return spark.read.parquet(*layout.paths(places)).select(*COLUMNS)


def _may_be_within(place: str, first: Edge, last: Edge) -> bool:
    """Return whether a file of a day may have messages in a range of times."""
    day = datetime.combine(day_of(place), datetime.min.time(), UTC)
    return not (isinstance(first, datetime) and day + timedelta(days=1) <= first) and not (
        isinstance(last, datetime) and day >= last
    )


def _live(
    spark: SparkSession, database: str, identity: Identity, seam: int, first: Edge, last: Edge
) -> DataFrame | None:
    """The stream's rows from behind the archive on."""
    start = max(seam + 1, first) if isinstance(first, int) else seam + 1
    if isinstance(last, int) and last < start:
        return None
    return _rows(spark, database, identity, "earliest" if start == 1 else start, last)


def _rows(spark: SparkSession, database: str, identity: Identity, start: str | int, end: Edge) -> DataFrame:
    selection = Selection(
        stream=identity.stream, filters=identity.filters or (">",), where=identity.where, start=str(start)
    )
    options = selection.options(database)
    if end != "latest" and not (
        isinstance(end, datetime) and end >= datetime.now(UTC)
    ):  # all there is lies before that
        options["end"] = _text(end)
    return spark.read.format("headrace").options(**options).load().select(*COLUMNS)


def _within(rows: DataFrame, first: Edge, last: Edge) -> DataFrame:
    from pyspark.sql import functions as sql

    time, seq = sql.col("created_at"), sql.col("seq")
    if isinstance(first, datetime):
        rows = rows.where(time >= sql.lit(first))
    if isinstance(last, datetime):
        rows = rows.where(time < sql.lit(last))
    if isinstance(first, int):
        rows = rows.where(seq >= first)
    if isinstance(last, int):
        rows = rows.where(seq <= last)
    return rows
