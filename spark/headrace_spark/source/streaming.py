"""Streaming reader: streams as a streaming DataFrame, micro-batch by micro-batch.

`offsets` describes the offsets. Everything up to an offset was resolved before Spark wrote it down. The messages
between two offsets are thus the same whenever they are read, and a restarted query continues exactly where it
stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.model.errors import ConfigurationError
from headrace_spark.positions.offsets import Position, parse, written
from headrace_spark.positions.sharing import shares
from headrace_spark.source.following import Streams
from headrace_spark.source.options import Options
from headrace_spark.source.queries import Queries
from headrace_spark.source.reader import RangePartition, Wanted, partitions_of, read
from headrace_spark.source.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_NO_LIMIT = 2**63 - 1


class HeadraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader behind `spark.readStream.format("headrace")`.

    It lives in a separate process beside the driver, as long as the query does.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, options: Options, schema: StructType, clock: Callable[[], float] = time.monotonic) -> None:
        if options.end != "latest":
            raise ConfigurationError(
                f"end={options.end} is not supported by a streaming query. Use spark.read, or trigger(availableNow=True), which stops"
                " at the current end."
            )
        if options.limit is not None:
            raise ConfigurationError(
                f"limit={options.limit} is not supported by a streaming query. Use maxRows, which bounds each micro-batch."
            )
        self._options = options
        self._rows = Rows(schema, options)
        self._queries = Queries(options.place, patience=options.settle_timeout)
        self._streams = Streams(self._queries, options)
        self._lost = 0  # connections
        self._targets: dict[str, int] | None = None  # with AvailableNow, where the run stops
        self._clock = clock
        self._began: float | None = None  # when the last micro-batch was planned
        self._turn = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The positions where a new query begins.

        If it begins at the earliest message, messages that are removed before the first read don't
        count as lost.
        """
        return self._written(self._streams.initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The read limit, from the options `maxRows`, `maxBytes` and `minRows`.

        Spark overrides it with `ReadAllAvailable` where a trigger has to read everything, and then none of them counts.
        """
        options = self._options
        if (options.max_rows, options.max_bytes, options.min_rows) == (None, None, None):
            return ReadAllAvailable()
        return ReadMaxRows(options.max_rows or _NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the positions where the streams end now, for `trigger(availableNow=True)`.

        It first waits until the current publishers have ended or the settle timeout has passed.
        """
        self._targets = self._streams.ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The offset up to which the next micro-batch reads.

        Raises:
            UnknownStream: a stream was deleted, even if there is a new one of its name.
            InvalidInput: the database is older than the checkpoint, as after a restore or a failover to a standby
                that lagged.
        """
        offset = self._latest(start, limit)
        while self._lost != self._queries.lost:  # after a failover, seqs and xids may be used again
            self._lost = self._queries.lost
            self._streams = Streams(self._queries, self._options)
            if self._targets is not None:
                self._targets = self._streams.ends()
            offset = self._latest(start, limit)
        return offset

    def _latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = parse(start)
        current = self._streams.current(before)
        self._streams.check(self._streams.unchecked(current.values()))
        self._streams.confirm(one for one in current.values() if one.uid in before)
        ends = self._ends(current)
        if isinstance(limit, ReadMaxRows):
            if self._waits(current, ends):
                return start
            ends = self._limited(current, ends, limit.max_rows)
        after = [_moved(one, ends.get(one.uid, 0)) for one in current.values()]
        # A stream that has joined counts from its first message on.
        after = [one for one in after if one.uid in before or one.seq > 0]
        if [(one.uid, one.seq) for one in after] == [(one.uid, one.seq) for one in before.values()]:
            return start
        self._began = self._clock()
        moved = self._streams.witnessed([one for one in after if one.last is None and not one.earliest])
        return self._written([*{one.uid: one for one in (*after, *moved)}.values()])

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The last seqs that were drawn, for the query's progress report. The distance between them and the end
        offset is the lag."""
        found = sorted(self._streams.last.values(), key=lambda one: one.name)
        if not found:
            return None
        offset = self._written(found)
        return {**offset, "name": found[0].name} if self._options.single else offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Cut the ranges between two offsets into partitions.

        Raises `InvalidInput` if retention has removed some of their messages, or if the database is older than the
        checkpoint, with which Spark has begun to repeat a micro-batch. See `failOnDataLoss`.
        """
        before = parse(start)
        wanted = []
        ends = self._streams.named(list(parse(end).values()))
        for one in ends:
            begin = before.get(one.uid)
            first = 1 if begin is None else begin.seq + 1
            if one.seq >= first:
                earliest = begin is None or begin.earliest
                wanted.append(Wanted(self._streams.ranges(one), None if earliest else first, one.seq, one.uid))
        found = partitions_of(self._options, self._rows, wanted)
        self._streams.check(ends)
        return list(found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one partition."""
        assert isinstance(partition, RangePartition)
        return read(partition, self._rows)

    def commit(self, end: dict[str, Any]) -> None:
        """Move the named consumer, if any, to the offset that Spark has finished."""
        # Spark commits a micro-batch only when there is another one. But once it asks for the next
        # one, the previous one is finished too. `latestOffset` therefore does the same.
        self._streams.confirm(self._streams.named(list(parse(end).values())))

    def stop(self) -> None:
        """Close the connection when the query has ended."""
        self._queries.close()

    def _ends(self, current: Mapping[str, Position]) -> dict[str, int]:
        """The position up to which each stream may be read now."""
        if self._targets is None:
            return self._streams.resolve(current.values())
        return {uid: max(one.seq, self._targets.get(uid, 0)) for uid, one in current.items()}

    def _waits(self, current: Mapping[str, Position], ends: Mapping[str, int]) -> bool:
        """Whether the micro-batch waits for more messages. The first one and an AvailableNow run don't."""
        wanted = self._options.min_rows
        if wanted is None or self._targets is not None or self._began is None:
            return False
        if self._clock() - self._began >= self._options.max_trigger_delay:
            return False
        return sum(max(end - current[uid].seq, 0) for uid, end in ends.items()) < wanted

    def _limited(self, current: Mapping[str, Position], ends: Mapping[str, int], rows: int) -> dict[str, int]:
        """The ends with at most so many messages before them, and with at most `maxBytes`. Each stream with news has a share
        of the messages, by what it has, and an equal share of the bytes."""
        available = {uid: end - current[uid].seq for uid, end in ends.items()}
        size = self._options.max_bytes
        if size is None and sum(max(count, 0) for count in available.values()) <= rows:
            return dict(ends)
        self._turn += 1
        divided = shares(available, rows, self._turn)
        each = None if size is None else max(size // max(len(divided), 1), 1)
        return {
            uid: self._streams.ranges(current[uid]).limit(current[uid].seq, ends[uid], share, each)
            for uid, share in divided.items()
        }

    def _written(self, positions: list[Position]) -> dict[str, Any]:
        return written(positions, single=self._options.single)

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickling. Tasks get a copy to read with, without the connection."""
        return {**self.__dict__, "_queries": None, "_streams": None, "_clock": None}


def _moved(position: Position, end: int) -> Position:
    """The position at the end, if that is further on."""
    return position if end <= position.seq else Position(position.uid, end, name=position.name)
