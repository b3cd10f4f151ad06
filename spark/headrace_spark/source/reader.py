"""Batch reader: a stream, or a range of it, as a DataFrame.

The driver plans the partitions. Tasks read them, and pass on Arrow batches as they come from
Postgres.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from headrace.model.errors import InvalidInput, SchemaError, StoreUnavailable, UnknownStream
from headrace.model.log import Log
from headrace_spark.positions.sharing import packed
from headrace_spark.source.connection import LONG_TRANSACTION, Place, batches, connect, translated
from headrace_spark.source.options import OTHERS, Options, check_order, edge_of
from headrace_spark.source.pushdown import Pushed
from headrace_spark.source.queries import Queries
from headrace_spark.source.ranges import Ranges, settle, task_count
from headrace_spark.source.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from adbc_driver_postgresql.dbapi import Connection  # type: ignore[import-untyped]

log = Log("headrace.spark")

FIRST_BYTES = 64 * 1024
"""Approximate size of the first Arrow batch of a query in bytes. Spark needs no other one for `take(1)`, and ends the
task."""

BATCH_BYTES = 4 * 1024 * 1024
"""Approximate size of an Arrow batch in bytes, after the first ones.

A million messages of 200 bytes took 0.8 s over one connection with this size, and 1.3 s with 1 or
16 MiB.
"""


_UNCOLUMNED_ROWS = 100_000
"""Maximum number of rows in a batch without columns."""


class Piece(msgspec.Struct, frozen=True):
    """A range of one stream, and the SQL that reads it."""

    stream: str
    query: str


class RangePartition(InputPartition):
    """The ranges of one task, with all that the task needs to read them on any machine, one after the other.

    Args:
        limit: maximum number of messages, or None.
    """

    def __init__(self, place: Place, pieces: Sequence[Piece], limit: int | None = None) -> None:
        self.place = place
        self.pieces = tuple(pieces)
        self.limit = limit


class Wanted(msgspec.Struct, frozen=True):
    """The range of one stream to read.

    Attributes:
        first: the first seq, or None for the earliest message.
        last: the last seq.
        uid: the unique id that the stream must have.
        tests: the filters that Spark pushes down.
    """

    ranges: Ranges
    first: int | None
    last: int
    uid: str
    tests: list[dict[str, object]] = []

    def seqs(self) -> int:
        """The number of seqs from the first message to the last."""
        first = self.first if self.first is not None else self.ranges.start("earliest") + 1
        return max(self.last - first + 1, 0)


def partitions_of(options: Options, rows: Rows, wanted: Sequence[Wanted]) -> list[RangePartition]:
    """Cut ranges of streams into partitions, each for one task and one connection.

    Small ranges of several streams share a task.

    Raises `InvalidInput` if retention has removed some of the messages, and `fail_on_data_loss` is set.
    """
    sizes = [one.seqs() for one in wanted]
    total = max(sum(sizes), 1)
    tasks = options.tasks(task_count(total))
    parts: list[tuple[int, Piece]] = []
    for one, size in zip(wanted, sizes, strict=True):
        share = max(round(tasks * size / total), 1)
        found = one.ranges.parts(one.first, one.last, rows.fetched or ["seq"], one.tests, one.uid, tasks=share)
        parts += [(part.last - part.first + 1, Piece(one.ranges.stream, part.query)) for part in found]
    return [RangePartition(options.place, pieces, options.limit) for pieces in packed(parts, tasks)]


def read(partition: RangePartition, rows: Rows) -> Iterator[pa.RecordBatch]:
    """Read the messages of a partition, in the order of their seqs.

    Raises:
        UnknownStream: the stream was deleted meanwhile.
        InvalidInput: retention removed some of these messages meanwhile.
        InvalidData: a payload doesn't fit the schema, and the mode is failfast.
        StoreUnavailable: the database can't be reached. A retry reads the same messages.
    """
    connection = connect(partition.place, autocommit=False)
    left = partition.limit
    try:
        for piece in partition.pieces:
            if left == 0:
                return
            query = piece.query if left is None else f"select * from ({piece.query}) as messages limit {left}"
            if not rows.fetched:
                query = f"select count(*) from ({query}) as messages"
            try:
                with translated(partition.place.url):
                    fetched = _Counted(_batches(connection, query) if rows.fetched else _uncolumned(connection, query))
                    yield from rows.converted(fetched, piece.stream)
                    connection.commit()
            except SchemaError as error:
                raise UnknownStream(
                    f"The stream {piece.stream!r} was deleted while it was read. Start the read again."
                ) from error
            left = None if left is None else left - fetched.count
    except GeneratorExit as ended:
        if isinstance(ended.__context__, ConnectionError):
            _end_in_silence()
        raise
    finally:
        connection.close()


class _Counted:
    """Batches, and the number of their rows so far."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.count = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        self.count += batch.num_rows
        return batch


def _batches(connection: Connection, query: str) -> Iterator[pa.RecordBatch]:
    """The rows of a query.

    The planner is kept from sorting. Each segment has an index in that order, even if the server does not know the
    segment's size yet. Nothing is compiled, which the costs of kinds of scans that are off would cause.
    """
    with connection.cursor(adbc_stmt_kwargs={"adbc.postgresql.batch_size_hint_bytes": str(FIRST_BYTES)}) as cursor:
        # With read committed the snapshot is taken after the lock, and what
        # `headrace_internal.require_range` sees is not older.
        cursor.executescript(
            "set transaction isolation level read committed; set local enable_seqscan = off; set local enable_bitmapscan = off; set local jit = off; set local max_parallel_workers_per_gather = 0; "
            + LONG_TRANSACTION
        )
        cursor.execute(query)
        yield from _growing(batches(cursor))


def _growing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches. Each is twice as large as the one before, up to `BATCH_BYTES`."""
    import pyarrow as pa

    parts: list[pa.RecordBatch] = []
    size, limit = 0, FIRST_BYTES
    for batch in batches:
        parts.append(batch)
        size += batch.nbytes
        if size >= limit:
            yield from pa.Table.from_batches(parts).combine_chunks().to_batches()
            parts, size, limit = [], 0, min(limit * 2, BATCH_BYTES)
    if parts:
        yield from pa.Table.from_batches(parts).combine_chunks().to_batches()


def _uncolumned(connection: Connection, query: str) -> Iterator[pa.RecordBatch]:
    """As many rows without columns as the query counts."""
    import pyarrow as pa

    (counted,) = _batches(connection, query)
    left = counted.column(0)[0].as_py()
    while left:
        rows = min(left, _UNCOLUMNED_ROWS)
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        left -= rows


def _end_in_silence() -> None:
    """Print no traceback when this process ends.

    Spark has closed its end of a task's pipe, since it has all the rows that it needs, as for `take(1)`. PySpark then
    ends the process, and prints that it could not flush (`pyspark.daemon.worker`).
    """
    sys.stderr = StringIO()


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
        self._rows = Rows(schema, options)
        self._pushed = Pushed(columns=self._rows.pushable)
        self.pushFilters = _PushFilters(self._push)  # type: ignore[method-assign]

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Push down the filters that the database evaluates with the same result."""
        queries = Queries(self._options.place)
        try:
            return list(self._pushed.push(filters, queries.compares_bytes))
        finally:
            queries.close()

    def partitions(self) -> list[InputPartition]:
        """Determine how far the streams are complete, and cut their ranges into partitions.

        Raises:
            UnknownStream: no stream has that name.
            InvalidInput: the start or the end is ahead of the stream, or was removed from it.
            StoreUnavailable: the database can't be reached, or a transaction still publishes below
                an explicit end.
        """
        options = self._options
        queries = Queries(options.place)
        try:
            streams = queries.streams(options)
            _check_edges(options, {stream.name for stream in streams})
            ranges = [(Ranges(queries, options, stream.name), stream.uid) for stream in streams]
            lasts = _lasts(queries, [one for one, _ in ranges], options, self._pushed.last)
            wanted = [self._wanted(one, uid, last) for (one, uid), last in zip(ranges, lasts, strict=True)]
            found = partitions_of(options, self._rows, [one for one in wanted if one is not None])
            return list(found) or [InputPartition(None)]
        finally:
            queries.close()

    def _wanted(self, ranges: Ranges, uid: str, last: int) -> Wanted | None:
        """The range of one stream to read, or None for nothing."""
        pushed = self._pushed
        if last < max(pushed.first, 1):
            return None
        start = edge_of(self._options.start, ranges.stream, "earliest")
        first = None if start == "earliest" else ranges.start(start) + 1
        if pushed.first > 1:
            first = max(first or ranges.start("earliest") + 1, pushed.first)
        return Wanted(ranges, first, last, uid, pushed.tests)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one partition."""
        return read(partition, self._rows) if isinstance(partition, RangePartition) else iter(())


def _check_edges(options: Options, names: set[str]) -> None:
    for option, edges in (("start", options.start), ("end", options.end)):
        if isinstance(edges, dict) and (unread := sorted(set(edges) - names - {OTHERS})):
            raise InvalidInput(
                f"{option} names {unread[0]!r}, which streamPattern={options.pattern!r} does not match. Correct one of them."
            )


def _lasts(queries: Queries, streams: Sequence[Ranges], options: Options, limit: int) -> list[int]:
    """The last seq of each stream to read, at most `limit`.

    It is the requested end, or else the position that is complete once the current publishers have
    ended or the settle timeout has passed.
    """
    edges = [edge_of(options.end, stream.stream, "latest") for stream in streams]
    wanted = [one.end(edge) for one, edge in zip(streams, edges, strict=True)]
    drawn = [stream.mark() for stream in streams]
    targets = [min(last if end is None else end, limit) for last, end in zip(drawn, wanted, strict=True)]
    settle(queries, list(zip(streams, targets, strict=True)), options.settle_timeout)
    lasts = []
    for one, edge, end, target in zip(streams, edges, wanted, targets, strict=True):
        if one.marks.position < target:
            _report_incomplete(one, options, target, end)
        # For a time, the end is before the first later message. An earlier message with such a time may
        # have appeared meanwhile.
        last = one.end(edge)
        lasts.append(min(target, one.marks.position, target if last is None else last))
    return lasts


def _report_incomplete(ranges: Ranges, options: Options, target: int, wanted: int | None) -> None:
    """Log that a transaction still publishes. Raises `StoreUnavailable` instead if the end was explicit."""
    publishers, position = ranges.holders(), ranges.marks.position
    if wanted is not None:
        raise StoreUnavailable(
            f"The stream {ranges.stream!r} is complete up to seq {position}, and not up to {target}, since a transaction"
            f" still publishes after {options.settle_timeout:g} s ({publishers}). Try again, or end that transaction."
        )
    log.warning(
        "stream not complete",
        stream=ranges.stream,
        seq=position,
        last_seq=target,
        seconds=options.settle_timeout,
        publishers=publishers,
        hint="the read ends at seq",
    )
