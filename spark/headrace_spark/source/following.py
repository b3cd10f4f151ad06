"""The streams that a streaming query reads: which there are, how far each is resolved, and which have joined or gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.model.errors import InvalidInput, UnknownStream
from headrace.model.log import Log
from headrace_spark.positions.offsets import Position, Witness
from headrace_spark.source.options import Options, edge_of
from headrace_spark.source.queries import Found, Queries
from headrace_spark.source.ranges import Ranges, settle

log = Log("headrace.spark")

SETTLE_SECONDS = 0.25
"""Seconds that a micro-batch waits for publishers in progress.

Most of them take milliseconds. The messages of a longer one are read by a later micro-batch.
"""


class Streams:
    """The streams of one query.

    Attributes:
        last: the last seq that was drawn in each stream, by its unique id, as of the last look.
    """

    def __init__(self, queries: Queries, options: Options) -> None:
        self._queries = queries
        self._options = options
        self._ranges: dict[str, Ranges] = {}
        self._confirmed: dict[str, int] = {}
        self._reported: set[str] = set()
        self._is_checked = False
        self.last: dict[str, Position] = {}

    def ranges(self, position: Position) -> Ranges:
        """The ranges of a stream."""
        known = self._ranges.get(position.uid)
        if known is None or known.stream != position.name:
            known = self._ranges[position.uid] = Ranges(self._queries, self._options, position.name)
        return known

    def initial(self) -> list[Position]:
        """The positions where a new query begins. Raises `InvalidInput` if one is ahead of its stream."""
        found = self._queries.streams(self._options)
        names = {one.name for one in found}
        if isinstance(self._options.start, dict) and (unread := sorted(set(self._options.start) - names - {"*"})):
            raise InvalidInput(
                f"start names {unread[0]!r}, which streamPattern={self._options.pattern!r} does not match. Correct one of them."
            )
        return [self._begin(one) for one in found]

    def _begin(self, found: Found) -> Position:
        edge = edge_of(self._options.start, found.name, "earliest")
        begin = Position(found.uid, 0, name=found.name)
        position = Position(found.uid, self.ranges(begin).start(edge), edge == "earliest", found.name)
        return position if position.earliest else self.witnessed([position])[0]

    def current(self, start: Mapping[str, Position]) -> dict[str, Position]:
        """The positions of the streams that there are now, by unique id. A stream that has joined is at its earliest message.

        Raises:
            UnknownStream: a stream of the checkpoint was deleted, even if there is a new one of its name.
        """
        found = {stream.uid: stream for stream in self._queries.streams(self._options)}
        names = {one.name: one.uid for one in found.values()}
        self.last = {uid: Position(uid, one.last, name=one.name) for uid, one in found.items()}
        for uid, position in start.items():
            if uid not in found:
                self._gone(position, names)
        joined = {uid: one for uid, one in found.items() if uid not in start}
        return {
            **{uid: _renamed(start[uid], found[uid].name) for uid in start if uid in found},
            **{uid: Position(uid, 0, True, one.name) for uid, one in joined.items() if one.last > 0},
        }

    def _gone(self, position: Position, names: Mapping[str, str]) -> None:
        options = self._options
        current = self._queries.name_of(position.uid)
        name = position.name or current or (options.streams[0] if options.single else "")
        if position.name and name not in options.streams and options.pattern is None:
            return self._report(position.uid, "stream left out", name, "the query's options do not name it any more")
        begin = "Start again"
        if current is not None:
            problem = (
                f"The checkpoint has read the stream {current!r}, which is not among the query's streams. Name it, too."
            )
            begin = "Otherwise start again"
        elif name in names:
            problem = f"The stream {name!r} was deleted and created again. The checkpoint belongs to the deleted one."
        else:
            problem = f"The stream {name or position.uid!r} of the checkpoint was deleted."
        if options.pattern is None:
            raise UnknownStream(f"{problem} {begin} with a new checkpoint.")
        if options.fail_on_data_loss:
            raise UnknownStream(
                f"{problem} {begin} with a new checkpoint, or say failOnDataLoss=false to continue without it."
            )
        return self._report(position.uid, "stream left out", name, "the query continues without it")

    def _report(self, uid: str, event: str, name: str, hint: str) -> None:
        if uid not in self._reported:
            self._reported.add(uid)
            log.warning(event, stream=name, hint=hint)

    def resolve(self, positions: Iterable[Position]) -> dict[str, int]:
        """How far each stream with news is resolved, by unique id. It waits a moment for publishers in progress."""
        news = [position for position in positions if self.last[position.uid].seq > position.seq]
        for new in news:
            ranges = self.ranges(new)
            ranges.marks.raise_to(new.seq)
            self.last[new.uid] = Position(new.uid, ranges.mark(), name=new.name)
        settle(self._queries, [(self.ranges(new), new.seq + 1) for new in news], SETTLE_SECONDS)
        return {new.uid: self.ranges(new).marks.position for new in news}

    def ends(self) -> dict[str, int]:
        """Where each stream ends now, by unique id, once its current publishers have ended or the settle timeout has passed."""
        found = [Position(stream.uid, stream.last, name=stream.name) for stream in self._queries.streams(self._options)]
        targets = [(self.ranges(one), self.ranges(one).mark()) for one in found]
        settle(self._queries, targets, self._options.settle_timeout)
        for ranges, target in targets:
            if ranges.marks.position < target:
                log.warning(
                    "stream not complete",
                    stream=ranges.stream,
                    seq=ranges.marks.position,
                    last_seq=target,
                    seconds=self._options.settle_timeout,
                    publishers=ranges.holders(),
                    hint="the run ends at seq",
                )
        return {one.uid: self.ranges(one).marks.position for one in found}

    def witnessed(self, positions: Sequence[Position]) -> list[Position]:
        """The positions, each with the last message up to it."""
        found = self._queries.witnesses([(one.name, one.seq) for one in positions])
        return [msgspec.structs.replace(one, last=last) for one, (last, _) in zip(positions, found, strict=True)]

    def unchecked(self, positions: Iterable[Position]) -> list[Position]:
        """The positions to check: all of them on the first look, and then those of streams with news."""
        return [one for one in positions if not self._is_checked or self.last[one.uid].seq != one.seq]

    def check(self, positions: Iterable[Position]) -> None:
        """Check that the database has the history in which the messages up to these positions were read.

        Raises `InvalidInput` if it is older than the checkpoint and `fail_on_data_loss` is set.
        """
        self._is_checked = True
        wanted = list(positions)
        found = self._queries.witnesses([(one.name, one.seq) for one in wanted])
        for position, (last, drawn) in zip(wanted, found, strict=True):
            if (problem := older(position, last, drawn)) is None:
                continue
            if self._options.fail_on_data_loss:
                raise InvalidInput(
                    f"{problem} Start again with a new checkpoint, or say failOnDataLoss=false to continue after"
                    f" seq {position.seq}."
                )
            self._report(
                position.uid,
                "database older",
                position.name,
                f"{problem} The query continues after seq {position.seq}.",
            )

    def named(self, positions: Sequence[Position]) -> list[Position]:
        """The positions with the names of their streams, which an offset of one stream does not have.

        A deleted stream is left out if the query continues without it.
        """
        options = self._options
        goes_on = options.pattern is not None and not options.fail_on_data_loss
        if options.single or (all(position.name for position in positions) and not goes_on):
            return [position if position.name else _renamed(position, options.streams[0]) for position in positions]
        names = {stream.uid: stream.name for stream in self._queries.streams(options)}
        kept = [position for position in positions if position.uid in names or not goes_on]
        return [_renamed(one, names.get(one.uid, one.name)) for one in kept]

    def confirm(self, positions: Iterable[Position]) -> None:
        """Move the named consumer of each stream, if there is one, to the position that Spark has finished."""
        if self._options.consumer is None:
            return
        for position in positions:
            if position.seq > self._confirmed.get(position.uid, -1):
                self.ranges(position).confirm(self._options.consumer, position.seq)
                self._confirmed[position.uid] = position.seq


def older(position: Position, last: Witness, drawn: int) -> str | None:
    """What is wrong if the database is older than a position, or None.

    Args:
        last: its last message up to the position.
        drawn: the last seq that was drawn.
    """
    if drawn < position.seq:
        problem = f"its last one is {drawn}"
    elif position.last is not None and position.last.is_contradicted_by(last):
        problem = f"its message {last.seq} is another one now"
    else:
        return None
    return (
        f"The checkpoint has read the stream {position.name!r} up to seq {position.seq}, and {problem}. The database is older"
        " than the checkpoint, as after a restore or a failover to a standby that lagged."
    )


def _renamed(position: Position, name: str) -> Position:
    return msgspec.structs.replace(position, name=name)
