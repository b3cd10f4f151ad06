"""Writers of the data source: `df.write.format("headrace")` and `df.writeStream.format("headrace")`.

    df.write.format("headrace").mode("append").option("stream", "orders").save()

A write is published exactly once, in one transaction, or not at all. A task that is retried or runs
twice changes nothing. A micro-batch that a restarted query repeats changes nothing either.
`headrace_spark.frames.outgoing` describes the columns that a DataFrame needs.

Rows of a partition are published in their order, one partition after the other. The order of a key's rows is
therefore defined only if they are in one partition and sorted there:
`df.repartition("key").sortWithinPartitions("key", "at")`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StringType, StructType

from headrace.model.errors import ConfigurationError, HeadraceError, InvalidInput, InvalidKey, UnknownStream
from headrace.model.keys import check_key
from headrace.model.log import Log
from headrace_spark.frames.encoding import DATA
from headrace_spark.frames.outgoing import check as check_schema
from headrace_spark.frames.pieces import STREAM, check_number
from headrace_spark.source import staging
from headrace_spark.source.options import Options
from headrace_spark.source.row_checks import text_of
from headrace_spark.source.staging import Part, Write

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

log = Log("headrace.spark")

_HELD_ROWS = 1_000
"""Number of rows that can't be messages that a task holds before it stages them."""

_NO_STREAM = "unknown"
"""The key of such a row if it names no stream, or one that does not exist."""

_MAX_TEXT = 1_000_000
"""Number of characters that are kept of a value of such a row."""

WRITING = ("database", "stream", "badRows", "writeId")
"""The options of a single write."""

WRITING_STREAM = ("database", "stream", "badRows")
"""The options of a streaming write. Its id is that of the query."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """A task's commit message: the write that it belongs to, the part that it has staged, and the part of rows that can't be
    messages."""

    write_id: str
    batch: int
    part: Part
    bad: Sequence[Part] = ()


class HeadraceWriter(DataSourceArrowWriter):
    """Publishes the rows of one `save`.

    With the option `writeId`, a save publishes nothing if its id was committed before. A save can thus be repeated if
    its outcome is not known. Ids are remembered for 7 days, for each stream separately. In the thread of a streaming query,
    as in `foreachBatch`, an id counts for this query, which its checkpoint identifies. A query with another checkpoint
    numbers its batches from 0 again, and its writes are others.

    Without the option `stream`, each row names its stream in the column `stream`. An id then counts for all streams of the
    write, and they are published in the same transaction.

    A row that can't be a message fails the write. With the option `badRows` it becomes a message of the stream that this
    names, with the reason.

    Args:
        options: the options as Spark passes them.
        schema: the schema of the DataFrame.
        overwrite: whether the mode is overwrite, which a stream does not support.

    Raises:
        ConfigurationError: an option is invalid, or the mode is not append.
        InvalidInput: the DataFrame can't become messages.
        UnknownStream, SchemaError, StoreUnavailable: raised before any task runs.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError("A stream can only be appended to. Write with .mode('append').")
        read, stream = _target(options, schema, WRITING)
        self._write = Write(place=read.place, stream=stream, id=_write_id(read.others, stream))
        self._bad_rows = _bad_rows(read, stream)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a task's rows. It runs in the task."""
        query = _property("sql.streaming.queryId")
        return _stage(self._of(f"{self._write.id}@{query}" if query else self._write.id), self._bad_rows, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the parts of the attempts that count. It runs on the driver, once every task is done."""
        for write_id in _ids(messages):
            _commit(self._of(write_id), self._bad_rows, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the staged rows. It runs on the driver, after a task or the commit has failed.

        Rows that are committed stay. If no task was done, the id in a query is not known here, and the rows are deleted
        within a day.
        """
        for write_id in _ids(messages) or (self._write.id,):
            _abort(self._of(write_id), self._bad_rows)

    def _of(self, write_id: str) -> Write:
        return msgspec.structs.replace(self._write, id=write_id)


class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    """Publishes each micro-batch of a streaming query.

    The query's id, which is in its checkpoint, and the number of the batch identify the write. The
    arguments and errors are those of `HeadraceWriter`.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                "A stream can only be appended to. Use .outputMode('append'), and foreachBatch for results that are updated."
            )
        if any(name.lower() == "writeid" for name in options):
            raise ConfigurationError(
                "writeId is not supported by a streaming query, which is identified by its checkpoint. Leave it out."
            )
        self._options, self._stream = _target(options, schema, WRITING_STREAM)
        self._bad_rows = _bad_rows(self._options, self._stream)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a task's rows. It runs in the task."""
        write_id, batch = _micro_batch()
        return _stage(self._of(write_id, batch), self._bad_rows, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the parts of the attempts that count. It runs on the driver, once every task is done."""
        for write_id in _ids(messages):
            _commit(self._of(write_id, batchId), self._bad_rows, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete the staged rows. It runs on the driver, after a task or the commit has failed.

        If no task was done, the write's id is not known here. The next batch of the query then
        deletes the rows.
        """
        for write_id in _ids(messages):
            _abort(self._of(write_id, batchId), self._bad_rows)

    def _of(self, write_id: str, batch: int) -> Write:
        return Write(place=self._options.place, stream=self._stream, id=write_id, batch=batch, streaming=True)


def _target(options: Mapping[str, str], schema: StructType, known: Sequence[str]) -> tuple[Options, str | None]:
    """The options, and the stream that they name, or None if the column `stream` names one for each row. Checks both.

    The option overrides the column, which is then no more than a field of the data, or is left off beside `data`.
    """
    read = Options.of(options, known, named=STREAM not in schema.names)
    stream = read.stream if read.streams else None
    if stream is None and not isinstance(schema[STREAM].dataType, StringType):
        raise InvalidInput(
            f"The DataFrame's column stream is of type {schema[STREAM].dataType.simpleString()}, which can't name a stream. Cast it to a string, or"
            " set the option stream."
        )
    others = StructType([field for field in schema if field.name != STREAM])
    check_schema(others if stream is None or DATA in schema.names else schema)
    staging.check(read.place, stream)
    return read, stream


def _write_id(others: Mapping[str, str], stream: str | None) -> str:
    given = others.get("writeid")
    if given is None:
        return str(uuid4())
    if not 1 <= len(given.encode()) <= 200:
        raise ConfigurationError(
            f"The writeId {given!r:.80} is invalid. It must have 1 to 200 bytes, such as 'orders-2030-01-31'."
        )
    # Another prefix for a write with several streams: an id of one with one stream counts for that stream only.
    return f"save:{given}" if stream is not None else f"saves:{given}"


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _property(name: str) -> str | None:
    """A property of the thread that started the task's job, or None."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def _micro_batch() -> tuple[str, int]:
    """The id of the query's writes and the number of the batch, from the task's local properties."""
    query, batch = _property("sql.streaming.queryId"), _property("streaming.sql.batchId")
    if not query or not batch:
        raise ConfigurationError("The task has no streaming query and batch in its Spark properties. Use writeStream.")
    return f"query:{query}", int(batch)


def _bad_rows(options: Options, target: str | None) -> str | None:
    """The stream for rows that can't be messages, or None. Raises `UnknownStream`, or `ConfigurationError` if it is that of the
    write."""
    stream = options.others.get("badrows")
    if stream is not None and stream == target:
        raise ConfigurationError(f"badRows={stream!r} is the stream of the write. Name another stream.")
    if stream is not None:
        staging.check(options.place, stream)
    return stream


def _stage(write: Write, bad_rows: str | None, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Stage a task's rows, and those that can't be messages in the stream `bad_rows`, if there is one."""
    partition = _partition()
    if bad_rows is None:
        return Staged(write.id, write.batch, staging.stage(write, partition, batches))
    bad = _BadRows(write, bad_rows, partition)
    part = staging.stage(write, partition, batches, set_aside=bad.add)
    return Staged(write.id, write.batch, part, bad.finish())


def _of_bad_rows(write: Write, stream: str) -> Write:
    """The write of the rows that can't be messages. Writes to several streams under one id may set rows aside in the same one."""
    write_id = write.id if write.stream is None else f"{write.id}>{write.stream}"
    return msgspec.structs.replace(write, stream=stream, id=write_id)


class _BadRows:
    """Stages the rows of a task that can't be messages, as messages of another stream, with the reason. It holds a few."""

    def __init__(self, write: Write, stream: str, partition: int) -> None:
        self._target = write.stream
        self._write = _of_bad_rows(write, stream)
        self._partition = partition
        self._lock = Lock()
        self._held: list[tuple[str, str]] = []
        self._bytes = 0
        self._parts: list[Part] = []

    def add(self, row: pa.RecordBatch, error: HeadraceError, stream: str | None) -> None:
        """Add a row that names the stream. Threads may call it at the same time."""
        values = {name: _shown(row.column(name)) for name in row.schema.names}
        if self._target is None:
            values[STREAM] = stream
        key = _NO_STREAM if stream is None or isinstance(error, UnknownStream) or not _is_key(stream) else stream
        text = msgspec.json.encode({"error": str(error), "row": values}).decode()
        text = text.replace("\\u0000", "\\u2400")  # which Postgres can't return as text
        with self._lock:
            self._held.append((key, text))
            self._bytes += len(text)
            if len(self._held) >= _HELD_ROWS or self._bytes >= staging.CHUNK_BYTES:
                self._stage()

    def finish(self) -> Sequence[Part]:
        """Stage what is left. Returns all parts."""
        with self._lock:
            if self._held:
                self._stage()
        return self._parts

    def _stage(self) -> None:
        import pyarrow as pa

        keys, data = zip(*self._held, strict=True)
        rows = pa.record_batch({"key": pa.array(keys), "data": pa.array(data)})
        self._held, self._bytes = [], 0
        self._parts.append(staging.stage(self._write, self._partition, [rows]))


def _is_key(stream: str) -> bool:
    """Whether a text that is to name a stream can be a key. Not every row's stream has been looked up."""
    try:
        check_key(stream)
    except InvalidKey:
        return False
    return True


def _shown(values: pa.Array) -> str | None:
    """The only value of a column as text, at most `_MAX_TEXT` characters of it."""
    try:
        value = text_of(values, 0)
    except (OverflowError, ValueError):  # such as a time after the year 9999
        value = values.cast("string")[0].as_py()
    return None if value is None else str(value)[:_MAX_TEXT]


def _commit(write: Write, bad_rows: str | None, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Publish the rows that can't be messages with the others if these have several streams, and else just before them. If the
    others fail then, the former are there already when the write is repeated under its id."""
    found = [message for message in messages if isinstance(message, Staged)]
    parts, bad = [message.part for message in found], [part for message in found for part in message.bad]
    if write.stream is None:
        check_number({stream for part in parts for stream in part.streams})
        count = staging.commit(write, [*parts, *bad])
    else:
        count = staging.commit(_of_bad_rows(write, bad_rows), bad) if bad_rows is not None else 0
        staging.commit(write, parts)
    if bad and count:
        log.warning("rows set aside", stream=write.stream, into=bad_rows, rows=sum(part.rows for part in bad))


def _abort(write: Write, bad_rows: str | None) -> None:
    staging.abort(write)
    if write.stream is not None and bad_rows is not None:
        staging.abort(_of_bad_rows(write, bad_rows))


def _ids(messages: Sequence[WriterCommitMessage | None]) -> set[str]:
    """The ids of the write in the commit messages. The set is empty if no task was done."""
    return {message.write_id for message in messages if isinstance(message, Staged)}
