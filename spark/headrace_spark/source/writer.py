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
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.model.errors import ConfigurationError
from headrace_spark.frames.outgoing import check as check_schema
from headrace_spark.source import staging
from headrace_spark.source.options import Options
from headrace_spark.source.staging import Part, Write

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    from pyspark.sql.types import StructType

WRITING = ("database", "stream", "writeId")
"""The options of a single write."""

WRITING_STREAM = ("database", "stream")
"""The options of a streaming write. Its id is that of the query."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """A task's commit message: the write that it belongs to, and the part that it has staged."""

    write_id: str
    batch: int
    part: Part


class HeadraceWriter(DataSourceArrowWriter):
    """Publishes the rows of one `save`.

    With the option `writeId`, a save publishes nothing if its id was committed before. A save can thus be repeated if
    its outcome is not known. Ids are remembered for 7 days, for each stream separately. In the thread of a streaming query,
    as in `foreachBatch`, an id counts for this query, which its checkpoint identifies. A query with another checkpoint
    numbers its batches from 0 again, and its writes are others.

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
        check_schema(schema)
        read = Options.of(options, WRITING)
        staging.check(read.place, read.stream)
        self._write = Write(place=read.place, stream=read.stream, id=_write_id(read.others))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a task's rows. It runs in the task."""
        query = _property("sql.streaming.queryId")
        write = self._of(f"{self._write.id}@{query}" if query else self._write.id)
        return Staged(write.id, 0, staging.stage(write, _partition(), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the parts of the attempts that count. It runs on the driver, once every task is done."""
        for write_id in _ids(messages):
            staging.commit(self._of(write_id), _parts(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the staged rows. It runs on the driver, after a task or the commit has failed.

        Rows that are committed stay. If no task was done, the id in a query is not known here, and the rows are deleted
        within a day.
        """
        for write_id in _ids(messages) or (self._write.id,):
            staging.abort(self._of(write_id))

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
        check_schema(schema)
        self._options = Options.of(options, WRITING_STREAM)
        staging.check(self._options.place, self._options.stream)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a task's rows. It runs in the task."""
        write_id, batch = _micro_batch()
        return Staged(write_id, batch, staging.stage(self._of(write_id, batch), _partition(), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the parts of the attempts that count. It runs on the driver, once every task is done."""
        for write_id in _ids(messages):
            staging.commit(self._of(write_id, batchId), _parts(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete the staged rows. It runs on the driver, after a task or the commit has failed.

        If no task was done, the write's id is not known here. The next batch of the query then
        deletes the rows.
        """
        for write_id in _ids(messages):
            staging.abort(self._of(write_id, batchId))

    def _of(self, write_id: str, batch: int) -> Write:
        return Write(place=self._options.place, stream=self._options.stream, id=write_id, batch=batch, streaming=True)


def _write_id(others: Mapping[str, str]) -> str:
    given = others.get("writeid")
    if given is None:
        return str(uuid4())
    if not 1 <= len(given.encode()) <= 200:
        raise ConfigurationError(
            f"The writeId {given!r:.80} is invalid. It must have 1 to 200 bytes, such as 'orders-2030-01-31'."
        )
    return f"save:{given}"


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


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    return [message.part for message in _staged(messages)]


def _ids(messages: Sequence[WriterCommitMessage | None]) -> set[str]:
    """The ids of the write in the commit messages. The set is empty if no task was done."""
    return {message.write_id for message in _staged(messages)}
