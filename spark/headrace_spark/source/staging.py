"""Staging of writes: tasks write rows to a staging table beside each stream, and one commit publishes them.

See `store/sql/functions/messages/writes.sql`. This module does not know Spark. A task attempt passes its
Arrow batches to `stage`. The caller that knows which attempts count passes their results to
`commit`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import msgspec

from headrace.model.errors import HeadraceError, InvalidData, InvalidInput, StoreFull, StoreUnavailable, UnknownStream
from headrace.model.log import Log
from headrace_spark.frames.pieces import by_stream, check_number, chunks
from headrace_spark.source.connection import LONG_TRANSACTION, Place, connect, fetch, translated
from headrace_spark.source.row_checks import RowRefused, are_usual, place_of_row, row_error, table_is_gone

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    from adbc_driver_postgresql.dbapi import Connection  # type: ignore[import-untyped, unused-ignore]

log = Log("headrace.spark")

CHUNK_BYTES = 8_000_000
"""Approximate bytes of a task's rows that are encoded and sent at a time, by one COPY.

This bounds the memory of a task to two such pieces, whatever the size of Spark's batches. A COPY of 50,000 rows of 200
bytes took 3.5 µs a row, and five of 10,000 rows, as Spark sends them, took 3.9.
"""

RETRY_DELAYS = 0.2, 1.0, 3.0, 10.0
"""Pauses in seconds before the retries of a commit, after a failure or a lost answer."""


SetAside = Callable[["pa.RecordBatch", HeadraceError, str | None], None]
"""Takes a row that can't be a message, the reason, and the stream that the row names. Threads call it, one at a time."""


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a write, which all of its tasks share.

    Attributes:
        place: the database.
        stream: the name of the stream. None if each row names its own in the column `stream`.
        id: identifies the write, so that a repetition is recognized.
        batch: the number of the batch, from 0 on. A single write has 0.
        streaming: whether this is a streaming write, with one batch after the other.
    """

    place: Place
    stream: str | None
    id: str
    batch: int = 0
    streaming: bool = False


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one task attempt: the rows that it has staged.

    Attributes:
        partition: the number of the task.
        attempt: a random id.
        streams: number of rows of each stream, at least one.
    """

    partition: int
    attempt: str
    streams: dict[str, int]

    @property
    def rows(self) -> int:
        """The number of all rows."""
        return sum(self.streams.values())

    def in_database(self) -> list[dict[str, Any]]:
        """The part of each stream, as the functions that publish it take it."""
        part = {"partition": self.partition, "attempt": self.attempt}
        return [{**part, "stream": stream, "rows": rows} for stream, rows in self.streams.items()]


def check(place: Place, stream: str | None) -> None:
    """Check that the stream exists, if one is given, and that the schema supports staging.

    Raises `UnknownStream` if there is no such stream, and `SchemaError` if the database lacks
    Headrace's schema or has an older one.
    """
    connection = connect(place)
    try:
        fetch(connection, place, "select 'headrace_internal.commit_writes(text, bigint, json)'::regprocedure::text")
        if stream is not None:
            fetch(connection, place, "select (headrace_internal.require_stream($1)).id", stream)
    finally:
        connection.close()


def stage(
    write: Write,
    partition: int,
    batches: Iterable[pa.RecordBatch],
    *,
    chunk_bytes: int = CHUNK_BYTES,
    set_aside: SetAside | None = None,
) -> Part:
    """Stage a task's messages. `commit` publishes them if this attempt is among those that count.

    Args:
        write: the write that the task belongs to.
        partition: the number of the task.
        batches: rows that `headrace_spark.frames.encoding.encode` accepts. They are read to the
            end, and never held all together.
        chunk_bytes: size of the pieces in which rows are sent. Large batches are cut, and small ones joined.
        set_aside: called for each row that can't be a message. Without it such a row is an error.

    Returns:
        The part for `commit`. Nothing is staged for a batch that is already committed.

    Raises:
        InvalidInput: a row can't be published, and none is set aside. The error names its key. Or the rows name more than
            `MAX_STREAMS` streams.
        UnknownStream: a row names a stream that does not exist, and none is set aside.
        StreamFull: the stream accepts nothing for now.
        StoreUnavailable: the database can't be reached, or the staged rows are gone. The task may
            be retried.
    """
    attempt = uuid4()
    streams: Counter[str] = Counter()
    with _Sender(write, set_aside) as sender:
        for chunk in chunks(batches, chunk_bytes):
            for stream, rows in _by_stream(write, chunk, set_aside):
                if sender.committed:
                    streams[stream] += rows.num_rows
                    continue
                for messages in _encoded(stream, rows, set_aside):
                    sender.send(stream, _numbered(messages, attempt.bytes, streams[stream]))
                    streams[stream] += messages.num_rows
                check_number(streams)
        sender.finish()
    streams.subtract(sender.refused)
    return Part(partition=partition, attempt=str(attempt), streams=dict(+streams))


def commit(write: Write, parts: Sequence[Part], *, retry_delays: Sequence[float] = RETRY_DELAYS) -> int:
    """Publish the staged rows of these attempts exactly once, all or nothing.

    A batch that was committed before changes nothing. That of a write with several streams was if any of them has it.

    Args:
        write: the write to commit.
        parts: one for each task, or several.
        retry_delays: seconds before each further try, if the database could not do it.

    Returns:
        The number of messages published. It is 0 if the batch was committed before.

    Raises:
        UnknownStream: a stream was deleted meanwhile.
        StreamFull: a stream accepts nothing for now. The staged rows are kept for a day.
        StagedRowsGone: the staged rows are gone, so the write must be repeated.
        StoreUnavailable: the database can't be reached.
    """
    wanted = sum(part.rows for part in parts)
    if not wanted:
        return 0
    delays = iter(retry_delays)
    while True:
        try:
            count = _commit(write, parts)
            break
        except StoreFull:
            raise
        except StoreUnavailable as error:
            delay = next(delays, None)
            if delay is None:
                raise
            log.warning(
                "commit failed", stream=write.stream, write=write.id, error=error, seconds=delay, hint="it is retried"
            )
            time.sleep(delay)
    if count == 0:
        hint = "it was committed before, or no payload has changed"
        report = (
            log.info if write.streaming else log.warning
        )  # a batch that a restarted query repeats is nothing unusual
        report("write published nothing", stream=write.stream, write=write.id, hint=hint)
    return count


def abort(write: Write) -> None:
    """Delete the staged rows, if the batch is not committed.

    If the database fails, that is only logged. The rows are then deleted within a day.
    """
    try:
        connection = connect(write.place)
        try:
            if write.stream is None:
                sql = "select headrace_internal.abort_writes($1, $2)::text"
                fetch(connection, write.place, sql, write.id, write.batch)
            else:
                sql = "select headrace_internal.abort_write($1, $2, $3)::text"
                fetch(connection, write.place, sql, write.stream, write.id, write.batch)
        finally:
            connection.close()
    except HeadraceError as error:
        hint = "they are deleted within a day"
        log.warning("staged rows not deleted", stream=write.stream, write=write.id, error=error, hint=hint)


def _commit(write: Write, parts: Sequence[Part]) -> int:
    staged = json.dumps([of_stream for part in parts for of_stream in part.in_database()])
    connection = connect(write.place, autocommit=False)
    try:
        fetch(connection, write.place, LONG_TRANSACTION)
        if write.stream is None:
            sql = "select headrace_internal.commit_writes($1, $2, $3::json)"
            ((count,),) = fetch(connection, write.place, sql, write.id, write.batch, staged)
        else:
            sql = "select headrace_internal.commit_write($1, $2, $3, $4::json)"
            ((count,),) = fetch(connection, write.place, sql, write.stream, write.id, write.batch, staged)
        with translated(write.place.url):
            connection.commit()
        return int(count)
    finally:
        connection.close()


def _by_stream(write: Write, rows: pa.RecordBatch, set_aside: SetAside | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each stream. Those that name none are set aside."""
    if write.stream is not None:
        yield write.stream, rows
        return
    for stream, of_stream in by_stream(rows):
        if stream is not None:
            yield stream, of_stream
            continue
        error = InvalidInput(
            f"{of_stream.num_rows} of {rows.num_rows} rows of the DataFrame have a null `stream`. Fill in the name of a stream, or set the option"
            " stream for all rows."
        )
        if set_aside is None:
            raise error
        for place in range(of_stream.num_rows):
            set_aside(of_stream.slice(place, 1), error, None)


class _Sender:
    """Sends a task's rows to the staging tables of their streams in a thread, as a context manager.

    The task reads and encodes the next piece meanwhile, and no more: at most two are held.

    Attributes:
        committed: whether the batch turned out to be committed already, so that nothing needs to be sent.
        refused: number of rows of each stream that the database has refused, and that were set aside.
    """

    def __init__(self, write: Write, set_aside: SetAside | None = None) -> None:
        self.committed = False
        self.refused: Counter[str] = Counter()
        self._write = write
        self._set_aside = set_aside
        self._thread = ThreadPoolExecutor(1, "headrace-staging")
        self._sending: Future[None] | None = None
        self._connection: Connection | None = None
        self._tables: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        return self

    def send(self, stream: str, rows: pa.RecordBatch) -> None:
        """Send these rows of a stream as soon as those before are staged. Raises the error of those before."""
        self.finish()
        self._sending = self._thread.submit(self._send, stream, rows)

    def finish(self) -> None:
        """Wait until all rows are staged. Raises their error."""
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()  # the connection must not be closed while rows are sent
        if self._connection is not None:
            self._connection.close()

    def _send(self, stream: str, rows: pa.RecordBatch) -> None:
        if self._connection is None:
            self._connection = connect(self._write.place)
        try:
            table = self._table(self._connection, stream)
        except (UnknownStream, InvalidData) as error:  # a text with a NUL names no stream either
            if self._set_aside is None or self._write.stream is not None:
                raise
            for place in range(rows.num_rows):
                self._refuse(stream, rows, place, error)
            return
        while table is not None and rows.num_rows:
            try:
                _ingest(self._connection, self._write, table, rows)
                return
            except RowRefused as refused:
                if self._set_aside is None:
                    raise refused.error from refused.__cause__
                place, reason = refused.place, refused.error
            if place:
                _ingest(self._connection, self._write, table, rows.slice(0, place))
            self._refuse(stream, rows, place, reason)
            rows = rows.slice(place + 1)

    def _table(self, connection: Connection, stream: str) -> str | None:
        """The staging table of a stream, or None if the batch is committed already."""
        if stream not in self._tables:
            write = self._write
            sql = "select headrace_internal.stage_write($1, $2, $3, $4)"
            ((table,),) = fetch(connection, write.place, sql, stream, write.id, write.batch, write.streaming)
            self._tables[stream] = table
            self.committed = self.committed or table is None
        return self._tables[stream]

    def _refuse(self, stream: str, rows: pa.RecordBatch, place: int, error: HeadraceError) -> None:
        assert self._set_aside is not None
        self._set_aside(rows.slice(place, 1).select(["key", "headers", "data"]), error, stream)
        self.refused[stream] += 1


def _encoded(stream: str, rows: pa.RecordBatch, set_aside: SetAside | None) -> Iterator[pa.RecordBatch]:
    """The rows as messages. Those that can't be encoded are found by halves, and set aside."""
    from headrace_spark.frames.encoding import encode

    try:
        yield encode(rows)
    except InvalidInput as error:
        if set_aside is None:
            raise
        if rows.num_rows == 1:
            set_aside(rows, error, stream)
            return
        middle = rows.num_rows // 2
        yield from _encoded(stream, rows.slice(0, middle), set_aside)
        yield from _encoded(stream, rows.slice(middle), set_aside)


def _numbered(messages: pa.RecordBatch, attempt: bytes, first: int) -> pa.RecordBatch:
    """The rows with the columns of the staging table."""
    import pyarrow as pa

    count = messages.num_rows
    return pa.record_batch(
        {
            "attempt": pa.repeat(pa.scalar(attempt, pa.binary()), count),
            "place": pa.array(range(first, first + count), pa.int64()),
            "key": messages.column("key"),
            "data": messages.column("data"),
            "headers": messages.column("headers"),
        }
    )


def _ingest(connection: Connection, write: Write, table: str, rows: pa.RecordBatch) -> None:
    """Write rows to the staging table by one COPY in one transaction, so a long task keeps none open.

    Raises:
        RowRefused: a row can't be a message. The connection can be used again.
        StoreUnavailable: the staging table is gone, or the database can't be reached.
    """
    schema, _, name = table.partition(".")
    with translated(write.place.url), connection.cursor() as cursor:
        connection.adbc_connection.set_autocommit(False)
        fetch(connection, write.place, LONG_TRANSACTION)
        if are_usual(rows):
            fetch(connection, write.place, "select headrace_internal.trust_staging()::text")
        try:
            cursor.adbc_ingest(name.strip('"'), rows, mode="append", db_schema_name=schema)
            connection.adbc_connection.set_autocommit(True)  # commits
        except Exception as error:
            if table_is_gone(error):
                raise StoreUnavailable(
                    f"The staged rows of the write {write.id!r} in {table} are gone, since it was committed or aborted meanwhile."
                ) from error
            place = place_of_row(error, rows)
            if place is None:
                raise
            connection.adbc_connection.rollback()
            connection.adbc_connection.set_autocommit(True)
            raise RowRefused(place, row_error(error, rows, place)) from error
