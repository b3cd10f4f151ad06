"""Reads the figures of one database, again and again, and remembers what is not read each time."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from time import monotonic

import anyio.lowlevel

from headrace import store
from headrace.admin.live.together import together
from headrace.flow.diagnosis import LATE
from headrace.flow.observed import Samples, SeqTimes
from headrace.model.errors import FilterTooSlow, StoreBusy
from headrace.model.watching.diagnosis import Waiting
from headrace.store import CatalogConsumer, CatalogStream, LiveCounts, LiveFigures, LiveSize
from headrace.store.database.time_limit import within

MAX_COUNTED = 2_000
"""The most consumers whose parked, blocked and dead messages are counted in one reading. Those that moved come first."""

RECOUNTED = 500
"""The number of consumers that did not move, whose counts are read again in one reading, in turn."""

MAX_SIZED = 20
"""The number of streams whose size is read at a time, in turn."""

SIZES_EVERY = 2.0
"""Seconds between two readings of sizes."""

TIMES_EVERY = 2.0
"""Seconds between two look-ups of the times of messages."""

MAX_TIMED = 50
"""The most seqs whose time is looked up in one reading. The times of newer seqs are known from earlier readings."""

MAX_SAMPLED = 5
"""The most consumers of which a sample of what waits is read at a time, in turn, of those that are behind."""

MATCHED_EVERY = 300.0
"""Seconds between two looks whether the filters of a consumer match anything."""

JUDGING = 1.0
"""Seconds that its condition may take for that."""

CATALOG_EVERY = 10.0
"""Seconds between two readings of names and settings, unless a stream or a consumer appears or disappears."""

FORGET_AFTER = timedelta(seconds=30)
"""Rates of an interval longer than this would say nothing about now, so that they begin anew."""

TURN = 500
"""The number of consumers that are worked on before other tasks have a turn."""

HISTORY = 600
"""Readings for which it is remembered what a stream had drawn, from which the age of a seq follows."""


class StreamFigures:
    """The remembered state of one stream."""

    def __init__(self) -> None:
        self.times = SeqTimes(HISTORY)
        self.last_seq: int | None = None  # of the last message, once it is known that nothing is drawn any more
        self.size: LiveSize | None = None
        self.full = False
        self.samples = Samples()

    def add(self, at: datetime, drawn: int) -> None:
        """Note what was drawn at a time."""
        if self.times.add(at, drawn):
            self.last_seq = None
        self.samples.add(at, drawn)

    @property
    def last(self) -> int:
        """The seq of the last message, or the last number drawn while that is not known."""
        return self.times.drawn if self.last_seq is None else self.last_seq


class ConsumerFigures:
    """The remembered state of one consumer."""

    def __init__(self) -> None:
        self.position = 0
        self.lease: tuple[int, int, int] | None = None
        self.counts: LiveCounts | None = None
        self.oldest: tuple[int, datetime | None] | None = None  # a seq, and when its message was published
        self.paused = False
        self.paused_until: datetime | None = None  # None while it is paused without an end
        self.waiting_sample: Waiting | None = None
        self.holes_since: datetime | None = None
        self.unmatched = 0
        self.matched_at = float("-inf")
        self.samples = Samples()

    @property
    def held(self) -> int:
        return 0 if self.lease is None else self.lease[0]

    @property
    def waiting(self) -> int:
        """Messages below the position that are not finished."""
        return 0 if self.counts is None else self.counts.parked + self.counts.blocked + self.counts.replaying

    def lowest(self, last: int) -> int | None:
        """The lowest seq that may not be finished. None if all are."""
        found = [] if self.lease is None else [self.lease[2]]
        if self.counts is not None and self.counts.lowest is not None:
            found.append(self.counts.lowest)
        if self.position < last:
            found.append(self.position + 1)
        return min(found, default=None)


class _Turns:
    """Gives the other tasks of the event loop a turn after every few hundred consumers, which take about a millisecond."""

    def __init__(self) -> None:
        self._left = TURN

    async def done(self) -> None:
        self._left -= 1
        if not self._left:
            self._left = TURN
            await anyio.lowlevel.checkpoint()


class Reading:
    """The figures of one database.

    Attributes:
        at: the time of the last reading, by the database's clock.
    """

    def __init__(self) -> None:
        self.at: datetime | None = None
        self.catalog_streams: list[CatalogStream] = []
        self.catalog_consumers: list[CatalogConsumer] = []
        self.streams: dict[int, StreamFigures] = {}
        self.consumers: dict[int, ConsumerFigures] = {}
        self._catalog_at = float("-inf")
        self._sizes_at = self._times_at = float("-inf")
        self._next_counted = self._next_sized = self._next_sampled = 0
        self._recount = False
        self._times_first = True

    async def read(self, database: store.Database) -> None:
        """Read everything that is due, with at most five short statements. Raises `StoreUnavailable`.

        All of these are due at first and after a change. In between, about three statements are due in a second.
        """
        figures: LiveFigures

        async def read_figures() -> None:
            nonlocal figures
            figures = await store.live_figures(database)

        await together(read_figures, lambda: self._read_catalog(database, CATALOG_EVERY))
        if self._catalog_misses(figures):
            await self._read_catalog(database)
        moved = await self._note(figures)
        await together(lambda: self._read_counts(database, moved), lambda: self._read_sizes(database))
        if monotonic() >= self._times_at + TIMES_EVERY and await self._look_closer(database):
            self._times_at = monotonic()
        await self._sample(figures.at)

    async def _read_catalog(self, database: store.Database, every: float = 0.0) -> None:
        if monotonic() < self._catalog_at + every:
            return
        self.catalog_streams, self.catalog_consumers = await store.live_catalog(database)
        self._catalog_at = monotonic()

    async def _read_counts(self, database: store.Database, moved: list[int]) -> None:
        counted = self._to_count(moved)
        if counted:
            for number, counts in (await store.live_counts(database, counted)).items():
                self.consumers[number].counts = counts

    async def _read_sizes(self, database: store.Database) -> None:
        if monotonic() < self._sizes_at + SIZES_EVERY:
            return
        sized = self._to_size()
        if sized:
            self._sizes_at = monotonic()
            for number, size in (await store.live_sizes(database, sized)).items():
                self.streams[number].size = size

    def changed(self) -> None:
        """Read names, settings and the counts that are not 0 with the next reading, since somebody changed something."""
        self._catalog_at = self._sizes_at = self._times_at = float("-inf")
        self._recount = True
        for one in self.consumers.values():
            if one.unmatched:
                one.matched_at = min(one.matched_at, monotonic() - MATCHED_EVERY)

    def _catalog_misses(self, figures: LiveFigures) -> bool:
        """Return whether streams or consumers have appeared or disappeared since the catalog was read."""
        streams, consumers = self.catalog_streams, self.catalog_consumers
        if figures.drawn.keys() != {one.number for one in streams}:
            return True
        return figures.positions.keys() != {one.number for one in consumers}

    async def _note(self, figures: LiveFigures) -> list[int]:
        """Note the figures. Returns the consumers that have moved."""
        streams, consumers = self.streams, self.consumers
        self.streams = {number: streams.get(number) or StreamFigures() for number in figures.drawn}
        self.consumers = {number: consumers.get(number) or ConsumerFigures() for number in figures.positions}
        if self.at is not None and figures.at - self.at > FORGET_AFTER:
            for stream in self.streams.values():
                stream.samples = Samples()
            for consumer in self.consumers.values():
                consumer.samples = Samples()
        self.at = figures.at
        for number, drawn in figures.drawn.items():
            self.streams[number].add(figures.at, drawn)
            self.streams[number].full = number in figures.full
        moved = []
        turns = _Turns()
        for number, position in figures.positions.items():
            await turns.done()
            consumer, lease = self.consumers[number], figures.leases.get(number)
            if consumer.counts is None or consumer.position != position or consumer.lease != lease:
                moved.append(number)
            consumer.position, consumer.lease = position, lease
            if number not in figures.with_holes:
                consumer.holes_since = None
            elif consumer.holes_since is None:
                consumer.holes_since = figures.at
            consumer.paused, consumer.paused_until = number in figures.paused, figures.paused.get(number)
        return moved

    def _to_count(self, moved: list[int]) -> list[int]:
        """The consumers that are counted in this reading: those that moved, and some of the others in turn."""
        chosen = dict.fromkeys(self._turn(moved, self._next_counted, MAX_COUNTED))
        if self._recount:
            self._recount = False
            waiting = [number for number, one in self.consumers.items() if one.counts and one.counts.any]
            chosen |= dict.fromkeys(self._turn(waiting, self._next_counted, MAX_COUNTED))
        chosen |= dict.fromkeys(self._turn(list(self.consumers), self._next_counted, RECOUNTED))
        self._next_counted += RECOUNTED
        return list(chosen)

    def _to_size(self) -> list[int]:
        """The streams whose size is read in this reading."""
        new = [number for number, one in self.streams.items() if one.size is None][:MAX_SIZED]
        if len(new) == MAX_SIZED:
            return new
        chosen = self._turn(list(self.streams), self._next_sized, MAX_SIZED - len(new))
        self._next_sized += MAX_SIZED
        return list(dict.fromkeys([*new, *chosen]))

    @staticmethod
    def _turn(numbers: list[int], start: int, count: int) -> Iterable[int]:
        if len(numbers) <= count:
            return numbers
        start %= len(numbers)
        return (numbers[start:] + numbers[:start])[:count]

    async def _look_up_times(self, database: store.Database) -> bool:
        """Look up when the oldest unfinished messages were published, and where streams end to which nothing is published.
        Returns whether that took a statement."""
        wanted: dict[tuple[int, int], list[ConsumerFigures]] = {}
        turns = _Turns()
        for info in self.catalog_consumers:
            await turns.done()
            stream, consumer = self.streams.get(info.stream), self.consumers.get(info.number)
            if stream is None or consumer is None:
                continue
            lowest = consumer.lowest(stream.last)
            if lowest is None:
                consumer.oldest = None
            elif consumer.oldest is None or consumer.oldest[0] != lowest:
                known = stream.times.drawn_at(lowest)
                if known is not None:
                    consumer.oldest = (lowest, known)
                elif len(wanted) < MAX_TIMED or (info.stream, lowest) in wanted:
                    wanted.setdefault((info.stream, lowest), []).append(consumer)
                else:
                    consumer.oldest = None
        if not wanted:
            return False
        for (number, seq), (published_at, last_seq) in (await store.live_times(database, list(wanted))).items():
            self.streams[number].last_seq = last_seq
            for consumer in wanted[number, seq]:
                # Numbers of transactions that were rolled back leave nothing to wait for.
                consumer.oldest = (seq, published_at) if consumer.lowest(last_seq) is not None else None
        return True

    async def _look_closer(self, database: store.Database) -> bool:
        """Look up times, or else look at what waits or whether filters match, with one statement at most. Returns whether
        that took one. The times come first, unless they did the last time."""
        if self._times_first and await self._look_up_times(database):
            self._times_first = False
            return True
        looked = await self._sample_waiting(database) or await self._match(database)
        if not looked and not self._times_first:
            looked = await self._look_up_times(database)
        self._times_first = True
        return looked

    async def _sample_waiting(self, database: store.Database) -> bool:
        """Look at what waits for some consumers that are behind. Returns whether that took a statement."""
        late, turns = list[int](), _Turns()
        for number, one in self.consumers.items():
            await turns.done()
            since = (one.holes_since, None if one.oldest is None else one.oldest[1])
            if any(at is not None and self._is_late(at) for at in since):
                late.append(number)
            else:
                one.waiting_sample = None
        chosen = self._turn(late, self._next_sampled, MAX_SAMPLED)
        self._next_sampled += MAX_SAMPLED
        if not late:
            return False
        for number, sample in (await store.waiting_samples(database, list(chosen))).items():
            self.consumers[number].waiting_sample = sample
        return True

    async def _match(self, database: store.Database) -> bool:
        """Look whether the filters of one consumer match anything, if it has nothing to do. Returns whether that took a
        statement."""
        due = [one for one in self.catalog_consumers if one.filtered and one.number in self.consumers]
        info = min(due, key=lambda one: self.consumers[one.number].matched_at, default=None)
        if info is None or monotonic() < self.consumers[info.number].matched_at + MATCHED_EVERY:
            return False
        one = self.consumers[info.number]
        one.unmatched, one.matched_at = 0, monotonic()
        if one.held or (one.counts is not None and one.counts.any):
            return False
        stream = next(each.name for each in self.catalog_streams if each.number == info.stream)
        with suppress(FilterTooSlow, StoreBusy):
            async with database.judging(stream, 0.0), within(database, JUDGING) as connection:
                one.unmatched = await store.unmatched_messages(connection, info.number)
        return True

    def _is_late(self, since: datetime) -> bool:
        return self.at is not None and (self.at - since).total_seconds() >= LATE

    async def _sample(self, at: datetime) -> None:
        turns = _Turns()
        for info in self.catalog_consumers:
            stream, consumer = self.streams.get(info.stream), self.consumers.get(info.number)
            await turns.done()
            if stream is not None and consumer is not None:
                lag = max(stream.last - consumer.position, 0)
                consumer.samples.add(at, consumer.position - consumer.held - consumer.waiting, lag)
