"""The sampler takes samples of streams and consumers for charts, in the process that leads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from headrace import store
from headrace.flow.observed import SeqTimes
from headrace.store import LiveCounts, LiveFigures, Sample

MAX_SAMPLED = 500
"""The most streams, and the most consumers, of which one tick takes samples. Those that changed and were left out come
first in the next one."""

MAX_COUNTED = 2_000
"""The most consumers that are counted in one call at the beginning."""

REMEMBERED = 360
"""The ticks for which it is remembered what a stream had drawn: an hour."""

COUNTS = ("parked", "blocked", "dead_letters")
"""The counts of a consumer that samples have."""

_NO_COUNTS = LiveCounts()


class _Consumer(msgspec.Struct):
    """A consumer at its last sample. `lag`: by which a change of the stream shows."""

    position: int
    lease: tuple[int, int, int] | None
    lag: int
    counts: LiveCounts = _NO_COUNTS

    @property
    def finished(self) -> int:
        held = 0 if self.lease is None else self.lease[0]
        return self.position - held - self.counts.parked - self.counts.blocked - self.counts.replaying


class Sampler:
    """Takes samples of what has changed since the tick before. Idle streams and consumers cost nothing but the one
    statement that finds them unchanged.

    Args:
        database: an open database.
    """

    def __init__(self, database: store.Database) -> None:
        self._database = database
        self.forget()

    def forget(self) -> None:
        """Forget earlier ticks, since another process may have taken samples since."""
        self._streams: dict[int, SeqTimes] = {}
        self._published: dict[int, int] = {}  # what each stream had drawn at its last sample
        self._consumers: dict[int, _Consumer] = {}
        self._started = False

    async def tick(self, now: datetime | None = None) -> int:
        """Take samples. Returns how many.

        Args:
            now: the time, for tests. By default the server's.

        Raises:
            StoreUnavailable.
        """
        figures = await store.live_figures(self._database)
        at = (now or figures.at).replace(microsecond=0)
        self._note(figures, at)
        if not self._started:
            await self._begin(figures)
        samples = self._of_streams(figures)
        samples += await self._of_consumers(figures, at)
        samples.append(_total(samples, self._consumers, figures, first=not self._started))
        self._started = True
        await store.record_samples(self._database, at, samples)
        return len(samples)

    def _note(self, figures: LiveFigures, at: datetime) -> None:
        known, self._streams = self._streams, {}
        for number, drawn in figures.drawn.items():
            times = self._streams[number] = known.get(number) or SeqTimes(REMEMBERED)
            times.add(at, drawn)
        for forgotten in self._published.keys() - figures.drawn.keys():
            del self._published[forgotten]
        for forgotten in self._consumers.keys() - figures.positions.keys():
            del self._consumers[forgotten]

    async def _begin(self, figures: LiveFigures) -> None:
        """Note how everything is, so that only what changes from now on gets a sample, and consumers with messages that
        are not finished."""
        self._published = dict(figures.drawn)
        numbers = list(figures.positions)
        for first in range(0, len(numbers), MAX_COUNTED):
            for number, counts in (
                await store.live_counts(self._database, numbers[first : first + MAX_COUNTED])
            ).items():
                lease, lag = figures.leases.get(number), _lag(figures, number)
                if lease is None and not lag and not counts.any:
                    self._consumers[number] = _Consumer(figures.positions[number], lease, lag, counts)

    def _of_streams(self, figures: LiveFigures) -> list[Sample]:
        samples: list[Sample] = []
        for number, drawn in figures.drawn.items():
            before = self._published.get(number)
            if before == drawn or len(samples) >= MAX_SAMPLED:
                continue
            # Put it at the end of the order, so that those left out come first the next time.
            self._published.pop(number, None)
            self._published[number] = drawn
            samples.append(Sample(kind=1, number=number, published=max(drawn - (before or 0), 0)))
        return samples

    async def _of_consumers(self, figures: LiveFigures, at: datetime) -> list[Sample]:
        changed = self._changed(figures)[:MAX_SAMPLED]
        counts = await store.live_counts(self._database, changed) if changed else {}
        samples = []
        for number in changed:
            before = self._consumers.pop(number, None)
            lease, position = figures.leases.get(number), figures.positions[number]
            stream = figures.streams_of[number]
            lag = _lag(figures, number)
            consumer = self._consumers[number] = _Consumer(position, lease, lag, counts.get(number, _NO_COUNTS))
            samples.append(
                Sample(
                    kind=2,
                    number=number,
                    finished=None if before is None else max(consumer.finished - before.finished, 0),
                    lag=lag,
                    lag_seconds=self._age(stream, consumer, at),
                    in_flight=0 if lease is None else lease[0],
                    **{name: getattr(consumer.counts, name) for name in COUNTS},
                )
            )
        return samples

    def _changed(self, figures: LiveFigures) -> list[int]:
        """The consumers that have changed, those first whose last sample is the oldest."""
        found = []
        for number, position in figures.positions.items():
            before = self._consumers.get(number)
            lag = _lag(figures, number)
            if before is None or (before.position, before.lease, before.lag) != (
                position,
                figures.leases.get(number),
                lag,
            ):
                found.append(number)
        order = {number: place for place, number in enumerate(self._consumers)}
        return sorted(found, key=lambda number: order.get(number, -1))

    def _age(self, stream: int, one: _Consumer, at: datetime) -> float | None:
        """The age of the oldest message that is not finished, in seconds, if it was published during the last hour."""
        lowest: list[int] = [one.position + 1] if one.lag else []
        lowest += [] if one.lease is None else [one.lease[2]]
        lowest += [] if one.counts.lowest is None else [one.counts.lowest]
        if not lowest:
            return 0.0
        times = self._streams.get(stream)
        drawn_at = None if times is None else times.drawn_at(min(lowest))
        return None if drawn_at is None else max((at - drawn_at).total_seconds(), 0.0)


def _lag(figures: LiveFigures, number: int) -> int:
    """The numbers above a consumer's position that its stream has drawn."""
    return max(figures.drawn.get(figures.streams_of[number], 0) - figures.positions[number], 0)


def _total(samples: Sequence[Sample], consumers: dict[int, _Consumer], figures: LiveFigures, *, first: bool) -> Sample:
    ages = [sample.lag_seconds for sample in samples if sample.lag_seconds is not None]
    held = {name: sum(getattr(consumer.counts, name) for consumer in consumers.values()) for name in COUNTS}
    return Sample(
        kind=0,
        number=0,
        published=None if first else sum(sample.published or 0 for sample in samples),
        finished=None if first else sum(sample.finished or 0 for sample in samples),
        lag=sum(consumer.lag for consumer in consumers.values()),
        lag_seconds=max(ages, default=0.0),
        in_flight=sum(leased for leased, _, _ in figures.leases.values()),
        **held,
    )
