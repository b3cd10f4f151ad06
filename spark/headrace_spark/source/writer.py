"""The writer of the data source: `df.write.format("headrace")` and `df.writeStream.format("headrace")`.

    df.write.format("headrace").mode("append").option("stream", "orders").save()

A write is published as a whole, in one transaction, or not at all, and once: a task that is retried, or that runs twice, changes nothing, nor does a
micro-batch that a restarted query runs again. What a DataFrame must be for that, `headrace_spark.frames.outgoing` says.

Rows of a partition are published in their order, one partition after the other. So rows of a key are published in an order only if they
are in one partition, and sorted there: `df.repartition("key").sortWithinPartitions("key", "at")`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

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
"""The options of a write."""

WRITING_STREAM = ("database", "stream")
"""The options of a streaming query's writes: their id is the query's."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task tells of itself: the write that it knew itself to be of, and what it has staged."""

    write_id: str
    batch: int
    part: Part


class HeadraceWriter(DataSourceArrowWriter):
    """Publishes what one save has.

    Option `writeId`: a save with an id that was committed before publishes nothing. So it can be repeated if its outcome is not known, or be made by
    `foreachBatch` under an id of the query and the batch. Ids are remembered for 7 days, each for its stream.

    Args:
        options: as Spark hands them over.
        schema: of the DataFrame.
        overwrite: whether it is to take the place of what is there, which a stream can't.

    Raises:
        ConfigurationError: an option that can't be, or another mode than append.
        InvalidInput: the DataFrame can't become messages.
        UnknownStream, SchemaError, StoreUnavailable: before any task runs.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError("A stream is only ever appended to: write with .mode('append').")
        check_schema(schema)
        read = Options.of(options, WRITING)
        staging.check(read.place, read.stream)
        self._write = Write(place=read.place, stream=read.stream, id=_write_id(read.others))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: stage its rows."""
        return Staged(self._write.id, 0, staging.stage(self._write, _partition(), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, once each task has an attempt that was done: publish these."""
        staging.commit(self._write, _parts(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, after a task or the commit has failed: forget what was staged. What is committed stays."""
        staging.abort(self._write)


class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    """Publishes each micro-batch of a streaming query. The query's id, which is in its checkpoint, and the number of the batch say which it is.

    Args, and what is raised: as for `HeadraceWriter`.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                "A stream is only ever appended to: use .outputMode('append'), and foreachBatch for results that are updated."
            )
        if any(name.lower() == "writeid" for name in options):
            raise ConfigurationError(
                "writeId is for single writes: a streaming query is known by the id that its checkpoint has."
            )
        check_schema(schema)
        self._options = Options.of(options, WRITING_STREAM)
        staging.check(self._options.place, self._options.stream)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: stage its rows."""
        write_id, batch = _micro_batch()
        return Staged(write_id, batch, staging.stage(self._of(write_id, batch), _partition(), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver, once each task has an attempt that was done: publish these."""
        for write_id in _ids(messages):
            staging.commit(self._of(write_id, batchId), _parts(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver, after a task or the commit has failed. If no task was done, nobody knows the write's id here: its next batch forgets the rest."""
        for write_id in _ids(messages):
            staging.abort(self._of(write_id, batchId))

    def _of(self, write_id: str, batch: int) -> Write:
        return Write(place=self._options.place, stream=self._options.stream, id=write_id, batch=batch, streaming=True)


def _write_id(others: Mapping[str, str]) -> str:
    given = others.get("writeid")
    if given is None:
        return str(uuid4())
    if not 1 <= len(given.encode()) <= 200:
        raise ConfigurationError("A writeId has 1 to 200 bytes, such as 'orders-2030-01-31'.")
    return f"save:{given}"


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _micro_batch() -> tuple[str, int]:
    """The id of the query's writes, and the number of the batch, as Spark tells each of its tasks."""
    context = TaskContext.get()
    query = context and context.getLocalProperty("sql.streaming.queryId")
    batch = context and context.getLocalProperty("streaming.sql.batchId")
    if not query or not batch:
        raise ConfigurationError("Spark has told the task neither its query nor its batch: use writeStream.")
    return f"query:{query}", int(batch)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    return [message.part for message in _staged(messages)]


def _ids(messages: Sequence[WriterCommitMessage | None]) -> set[str]:
    """The write's id, if a task could tell."""
    return {message.write_id for message in _staged(messages)}
