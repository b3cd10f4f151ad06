"""Staging of writes: tasks write rows to a staging table beside the stream, and one commit publishes them.

See `store/sql/functions/messages/writes.sql`. This module does not know Spark. A task attempt passes its
Arrow batches to `stage`. The caller that knows which attempts count passes their results to
`commit`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import msgspec

from headrace.model.errors import HeadraceError, InvalidData, InvalidInput, InvalidKey, StoreFull, StoreUnavailable
from headrace.model.log import Log
from headrace_spark.source.connection import Place, connect, fetch, translated

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


def stage(write: Write, partition: int, batches: Iterable[pa.RecordBatch], *, chunk_bytes: int = CHUNK_BYTES) -> Part:
    """Stage a task's messages. `commit` publishes them if this attempt is among those that count.

    Args:
        write: the write that the task belongs to.
        partition: the number of the task.
        batches: rows that `headrace_spark.frames.encoding.encode` accepts. They are read to the
            end, and never held all together.
        chunk_bytes: size of the pieces in which rows are sent. Large batches are cut, and small ones joined.

    Returns:
        The part for `commit`. Nothing is staged for a batch that is already committed.

    Raises:
        InvalidInput: a row can't be published. The error names its key.
        StreamFull: the stream accepts nothing for now.
        StoreUnavailable: the database can't be reached, or the staged rows are gone. The task may
            be retried.
    """
    from headrace_spark.frames.encoding import encode

    attempt = uuid4()
    rows = 0
    with _Sender(write) as sender:
        for chunk in _chunks(batches, chunk_bytes):
            if not sender.committed:
                sender.send(_numbered(encode(chunk), attempt.bytes, rows))
            rows += chunk.num_rows
        sender.finish()
    return Part(partition=partition, attempt=str(attempt), rows=rows)


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
    """

    def __init__(self, write: Write) -> None:
        self.committed = False
        self._write = write
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
        if self._table is not None:
            _ingest(self._connection, self._write, self._table, rows)


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
    """Write rows to the staging table by one COPY in one transaction, so a long task keeps none open."""
    schema, _, name = table.partition(".")
    usual = _are_usual(rows)
    with translated(write.place.url), connection.cursor() as cursor:
        if usual:
            connection.adbc_connection.set_autocommit(False)
            fetch(connection, write.place, "select headrace_internal.trust_staging()::text")
        try:
            cursor.adbc_ingest(name.strip('"'), rows, mode="append", db_schema_name=schema)
            if usual:
                connection.adbc_connection.set_autocommit(True)  # commits
        except Exception as error:
            headrace_error = _row_error(error, write, rows)
            if headrace_error is None:
                raise
            raise headrace_error from error


_KEY = r"^[!-)+,/-=?-~-]+(\.[!-)+,/-=?-~-]+)*$"


def _are_usual(rows: pa.RecordBatch) -> bool:
    """Whether all rows are what nearly all rows are, and surely messages: small, without headers or an escaped NUL, and with
    a key of printable ASCII characters without wildcards. That the data is JSON is left to the server.

    The staging table has the same test, which takes 0.8 µs a row there, and 0.2 µs here. It trusts tasks whose role owns the
    schema, and so could write anything.
    """
    import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

    key, data = rows.column("key"), rows.column("data")
    return bool(
        rows.column("headers").null_count == rows.num_rows
        and pc.max(pc.binary_length(data)).as_py() <= 700_000
        and pc.max(pc.binary_length(key)).as_py() <= 1024
        and pc.all(pc.match_substring_regex(key, _KEY)).as_py()
        and not _contains(data, b"\\u0000")
    )


def _contains(texts: pa.StringArray, part: bytes) -> bool:
    """Whether one of the texts contains this, or two of them joined."""
    first, last = texts.offset, texts.offset + len(texts)
    _, offsets, values = texts.buffers()
    bounds = memoryview(offsets).cast("i")
    whole = values.slice(bounds[first], bounds[last] - bounds[first]).to_pybytes() if values is not None else b""
    # A single byte is found five times as fast, and most payloads have no backslash.
    return part[:1] in whole and part in whole


def _row_error(error: Any, write: Write, rows: pa.RecordBatch) -> HeadraceError | None:
    """The Headrace error for a row that the database refuses, with its key, or for a staging table that is gone."""
    state = getattr(error, "sqlstate", None) or ""
    # The driver looks up the table itself, and then reports no error code.
    if state == "42P01" or (not state and "headrace_staging" in str(error) and "does not exist" in str(error)):
        return StoreUnavailable(
            f"The staged rows of the write {write.id!r} to the stream {write.stream!r} are gone, since it was committed or aborted meanwhile."
        )
    if state[:2] not in ("22", "23", "54"):
        return None
    where = _detail(error, "CONTEXT")
    line = re.search(r"^COPY .*, line (\d+)(?:, column (\w+))?", where, re.MULTILINE)
    place = int(line[1]) - 1 if line else -1
    if not 0 <= place < rows.num_rows:
        return None
    key, constraint = rows.column("key")[place].as_py(), _detail(error, "CONSTRAINT_NAME")
    start = f"The row with the key {_short(key)} can't be published:"
    if constraint == "valid_key":
        return InvalidKey(
            f"{start} a key has 1 to 1024 bytes, and its tokens, separated by dots, are neither empty nor exactly '*' or '>'"
            " and have no blanks or control characters."
        )
    if constraint == "no_nul" or state == "22021":
        return InvalidData(f"{start} it has a NUL character, which Postgres can't return as text.")
    if constraint == "message_size":
        return InvalidData(f"{start} a message, including its headers, has at most 200 MB.")
    if constraint == "headers_are_objects":
        return InvalidData(f'{start} its headers are not a JSON object, such as {{"trace": "abc"}}.')
    if line and line[2] in ("data", "headers") and state == "22P02":
        detail = _detail(error, "MESSAGE_DETAIL").rstrip(".")
        return InvalidData(f"{start} its {line[2]}, a string, is not JSON text ({detail}).")
    return InvalidInput(f"{start} {_detail(error, 'MESSAGE_PRIMARY')}.")


def _short(key: str) -> str:
    return repr(key if len(key) <= 80 else key[:80] + "…")


def _detail(error: Any, field: str) -> str:
    """A field of the server's error, or an empty text if the error lacks it."""
    for name, value in getattr(error, "details", None) or ():
        if name in (f"PG_DIAG_{field}".encode(), f"PG_DIAG_{field}"):
            return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return ""
