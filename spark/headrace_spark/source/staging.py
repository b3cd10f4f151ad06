"""Staging of writes: tasks write rows to a staging table beside the stream, and one commit publishes them.

See `store/sql/functions/messages/writes.sql`. This module does not know Spark. A task attempt passes its
Arrow batches to `stage`. The caller that knows which attempts count passes their results to
`commit`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Self
from uuid import uuid4

import msgspec

from headrace.model.errors import HeadraceError, InvalidInput, StoreFull, StoreUnavailable
from headrace.model.log import Log
from headrace_spark.source.connection import Place, connect, fetch, translated
from headrace_spark.source.row_checks import are_usual, place_of_row, row_error, table_is_gone

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


SetAside = Callable[["pa.RecordBatch", HeadraceError], None]
"""Takes a row that can't be a message, and the reason. Threads call it, one at a time."""


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a write, which all of its tasks share.

    Attributes:
        place: the database.
        stream: the name of the stream.
        id: identifies the write, so that a repetition is recognized.
        batch: the number of the batch, from 0 on. A single write has 0.
        streaming: whether this is a streaming write, with one batch after the other.
    """

    place: Place
    stream: str
    id: str
    batch: int = 0
    streaming: bool = False


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one task attempt: the rows that it has staged.

    Attributes:
        partition: the number of the task.
        attempt: a random id.
        rows: number of rows.
    """

    partition: int
    attempt: str
    rows: int


def check(place: Place, stream: str) -> None:
    """Check that the stream exists and that the schema supports staging.

    Raises `UnknownStream` if there is no such stream, and `SchemaError` if the database lacks
    Headrace's schema or has an older one.
    """
    connection = connect(place)
    try:
        fetch(connection, place, "select (headrace_internal.require_stream($1)).id", stream)
        fetch(
            connection, place, "select 'headrace_internal.stage_write(text, text, bigint, boolean)'::regprocedure::text"
        )
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
        InvalidInput: a row can't be published, and none is set aside. The error names its key.
        StreamFull: the stream accepts nothing for now.
        StoreUnavailable: the database can't be reached, or the staged rows are gone. The task may
            be retried.
    """
    attempt = uuid4()
    rows = 0
    with _Sender(write, set_aside) as sender:
        for chunk in _chunks(batches, chunk_bytes):
            if sender.committed:
                rows += chunk.num_rows
                continue
            for messages in _encoded(chunk, set_aside):
                sender.send(_numbered(messages, attempt.bytes, rows))
                rows += messages.num_rows
        sender.finish()
    return Part(partition=partition, attempt=str(attempt), rows=rows - sender.refused)


def commit(write: Write, parts: Sequence[Part], *, retry_delays: Sequence[float] = RETRY_DELAYS) -> int:
    """Publish the staged rows of these attempts exactly once, all or nothing.

    A batch that was committed before changes nothing.

    Args:
        write: the write to commit.
        parts: one for each task.
        retry_delays: seconds before each further try, if the database could not do it.

    Returns:
        The number of messages published. It is 0 if the batch was committed before.

    Raises:
        StreamFull: the stream accepts nothing for now. The staged rows are kept for a day.
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
            sql = "select headrace_internal.abort_write($1, $2, $3)::text"
            fetch(connection, write.place, sql, write.stream, write.id, write.batch)
        finally:
            connection.close()
    except HeadraceError as error:
        hint = "they are deleted within a day"
        log.warning("staged rows not deleted", stream=write.stream, write=write.id, error=error, hint=hint)


def _commit(write: Write, parts: Sequence[Part]) -> int:
    connection = connect(write.place)
    try:
        ((count,),) = fetch(
            connection,
            write.place,
            "select headrace_internal.commit_write($1, $2, $3, $4::json)",
            write.stream,
            write.id,
            write.batch,
            json.dumps([msgspec.to_builtins(part) for part in parts]),
        )
        return int(count)
    finally:
        connection.close()


def _table(connection: Connection, write: Write) -> str | None:
    ((table,),) = fetch(
        connection,
        write.place,
        "select headrace_internal.stage_write($1, $2, $3, $4)",
        write.stream,
        write.id,
        write.batch,
        write.streaming,
    )
    return table if table is None else str(table)


class _Sender:
    """Sends a task's rows to the staging table in a thread, as a context manager.

    The task reads and encodes the next piece meanwhile, and no more: at most two are held.

    Attributes:
        committed: whether the batch turned out to be committed already, so that nothing needs to be sent.
        refused: number of rows that the database has refused, and that were set aside.
    """

    def __init__(self, write: Write, set_aside: SetAside | None = None) -> None:
        self.committed = False
        self.refused = 0
        self._write = write
        self._set_aside = set_aside
        self._thread = ThreadPoolExecutor(1, "headrace-staging")
        self._sending: Future[None] | None = None
        self._connection: Connection | None = None
        self._table: str | None = None

    def __enter__(self) -> Self:
        return self

    def send(self, rows: pa.RecordBatch) -> None:
        """Send these rows as soon as those before are staged. Raises the error of those before."""
        self.finish()
        self._sending = self._thread.submit(self._send, rows)

    def finish(self) -> None:
        """Wait until all rows are staged. Raises their error."""
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()  # the connection must not be closed while rows are sent
        if self._connection is not None:
            self._connection.close()

    def _send(self, rows: pa.RecordBatch) -> None:
        if self._connection is None:
            self._connection = connect(self._write.place)
            self._table = _table(self._connection, self._write)
            self.committed = self._table is None
        if self._table is None:
            return
        while rows.num_rows:
            try:
                _ingest(self._connection, self._write, self._table, rows)
                return
            except _RowRefused as refused:
                if self._set_aside is None:
                    raise refused.error from refused.__cause__
                place, error = refused.place, refused.error
            if place:
                _ingest(self._connection, self._write, self._table, rows.slice(0, place))
            self._set_aside(rows.slice(place, 1).select(["key", "headers", "data"]), error)
            self.refused += 1
            rows = rows.slice(place + 1)


def _encoded(rows: pa.RecordBatch, set_aside: SetAside | None) -> Iterator[pa.RecordBatch]:
    """The rows as messages. Those that can't be encoded are found by halves, and set aside."""
    from headrace_spark.frames.encoding import encode

    try:
        yield encode(rows)
    except InvalidInput as error:
        if set_aside is None:
            raise
        if rows.num_rows == 1:
            set_aside(rows, error)
            return
        middle = rows.num_rows // 2
        yield from _encoded(rows.slice(0, middle), set_aside)
        yield from _encoded(rows.slice(middle), set_aside)


class _RowRefused(Exception):
    """The database refuses the row at this place, for the reason of this error. Nothing of its COPY is staged."""

    def __init__(self, place: int, error: HeadraceError) -> None:
        super().__init__(str(error))
        self.place, self.error = place, error


def _chunks(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of about `size` bytes: large batches are cut, and small ones joined."""
    held: list[pa.RecordBatch] = []
    total = 0
    for batch in batches:
        whole = batch.get_total_buffer_size()
        step = max(1, batch.num_rows * size // max(whole, size))
        for start in range(0, batch.num_rows, step):
            piece = batch.slice(start, step)
            piece_bytes = whole * piece.num_rows // batch.num_rows
            if held and (total + piece_bytes > size or piece.schema != held[0].schema):
                yield _joined(held)
                held, total = [], 0
            held.append(piece)
            total += piece_bytes
    if held:
        yield _joined(held)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    if len(batches) == 1:
        return batches[0]
    return pa.RecordBatch.from_struct_array(pa.concat_arrays([batch.to_struct_array() for batch in batches]))


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
        _RowRefused: a row can't be a message. The connection can be used again.
        StoreUnavailable: the staging table is gone, or the database can't be reached.
    """
    schema, _, name = table.partition(".")
    usual = are_usual(rows)
    with translated(write.place.url), connection.cursor() as cursor:
        if usual:
            connection.adbc_connection.set_autocommit(False)
            fetch(connection, write.place, "select headrace_internal.trust_staging()::text")
        try:
            cursor.adbc_ingest(name.strip('"'), rows, mode="append", db_schema_name=schema)
            if usual:
                connection.adbc_connection.set_autocommit(True)  # commits
        except Exception as error:
            if table_is_gone(error):
                raise StoreUnavailable(
                    f"The staged rows of the write {write.id!r} to the stream {write.stream!r} are gone, since it was committed or aborted"
                    " meanwhile."
                ) from error
            place = place_of_row(error, rows)
            if place is None:
                raise
            if usual:
                connection.adbc_connection.rollback()
                connection.adbc_connection.set_autocommit(True)
            raise _RowRefused(place, row_error(error, rows, place)) from error
