"""Streaming reader: a stream as a streaming DataFrame, micro-batch by micro-batch.

An offset is {"stream": the stream's unique id, "position": a seq}. Everything up to that seq was
resolved before Spark wrote it down. So the messages between two offsets are the same whenever they
are read, and a restarted query continues exactly where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.model.errors import ConfigurationError, InvalidInput, UnknownStream
from headrace.model.log import Log
from headrace_spark.source.marks import Marks
from headrace_spark.source.options import Options
from headrace_spark.source.ranges import Ranges
from headrace_spark.source.reader import RangePartition, check_columns, read

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

log = Log("headrace.spark")

SETTLE_SECONDS = 0.25
"""Seconds that a micro-batch waits for publishers in progress.

Most of them take milliseconds. The messages of a longer one are read by a later micro-batch.
"""


class HeadraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader behind `spark.readStream.format("headrace")`.

    It lives in a process of its own beside the driver, as long as the query does.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.end != "latest":
            raise ConfigurationError(
                f"end={options.end} is not supported by a streaming query. Use spark.read, or trigger(availableNow=True), which stops"
                " at the current end."
            )
        self._options = options
        self._schema = schema
        self._columns = check_columns(schema)
        self._ranges = Ranges(options, patience=options.settle_timeout)
        self._marks = Marks()
        self._drawn = 0  # the last seq drawn, by the newest mark
        self._target: int | None = None  # with AvailableNow, where the run stops
        self._uid: str | None = None
        self._confirmed = -1

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The position where a new query begins.

        If it begins at the earliest message, messages that are removed before the first read don't
        count as lost.
        """
        begin = self._offset(self._ranges.start(self._options.start))
        return {**begin, "earliest": True} if self._options.start == "earliest" else begin

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The read limit, from the option `maxRows`."""
        max_rows = self._options.max_rows
        return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the position where the stream ends now, for `trigger(availableNow=True)`.

        It first waits until the current publishers have ended or the settle timeout has passed.
        """
        self._drawn = self._ranges.mark(self._marks)
        if not self._ranges.settle(self._marks, self._drawn, self._options.settle_timeout):
            log.warning(
                "stream not complete", stream=self._options.stream, seq=self._marks.position, last_seq=self._drawn,
                seconds=self._options.settle_timeout, publishers=self._ranges.holders(self._marks), hint="the run ends at seq",
            )  # fmt: skip
        self._target = self._marks.position

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The offset up to which the next micro-batch reads.

        Raises:
            UnknownStream: the stream was deleted, even if there is a new one of its name.
            InvalidInput: the checkpoint is ahead of the stream, as after a restore of the database
                from an older backup.
        """
        after = self._position(start)
        self._confirm(after)
        last = self._resolved(after) if self._target is None else self._target
        if self._drawn < after and self._options.fail_on_data_loss:
            raise InvalidInput(
                f"The checkpoint has read the stream {self._options.stream!r} up to seq {after}, and its last one is {self._drawn}. The database"
                " is older than the checkpoint. Start again with a new checkpoint."
            )
        if last > after and isinstance(limit, ReadMaxRows):
            last = self._ranges.limit(after, last, limit.max_rows)
        return self._offset(last) if last > after else start

    def _resolved(self, after: int) -> int:
        self._marks.raise_to(after)
        self._drawn = self._ranges.mark(self._marks)
        if self._drawn > after:
            self._ranges.settle(self._marks, after + 1, SETTLE_SECONDS)
        return self._marks.position

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Cut the range between two offsets into partitions.

        Raises `InvalidInput` if retention has removed some of its messages. See `failOnDataLoss`.
        """
        first, last = self._position(start) + 1, self._position(end)
        if first > last:
            return []
        begin = None if start.get("earliest") else first
        parts = self._ranges.parts(begin, last, self._columns, uid=start["stream"])
        return [RangePartition(self._options.place, self._options.stream, part.query) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one partition."""
        assert isinstance(partition, RangePartition)
        return read(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Move the named consumer, if any, to the offset that Spark has finished."""
        self._confirm(self._position(end))

    def _confirm(self, position: int) -> None:
        # Spark commits a micro-batch only when there is another one. But once it asks for the next
        # one, the previous one is finished too.
        if self._options.consumer is not None and position > self._confirmed:
            self._ranges.confirm(self._options.consumer, position)
            self._confirmed = position

    def stop(self) -> None:
        """Close the connection when the query has ended."""
        self._ranges.close()

    def _offset(self, position: int) -> dict[str, Any]:
        if self._uid is None:
            self._uid = self._ranges.uid()
        return {"stream": self._uid, "position": position}

    def _position(self, offset: dict[str, Any]) -> int:
        uid = self._ranges.uid()
        if offset["stream"] != uid:
            raise UnknownStream(
                f"The stream {self._options.stream!r} was deleted and created again. The checkpoint belongs to the deleted one."
                " Start again with a new checkpoint."
            )
        self._uid = uid
        return int(offset["position"])

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickling. Tasks get a copy to read with, without the connection."""
        return {**self.__dict__, "_ranges": None, "_marks": None}
