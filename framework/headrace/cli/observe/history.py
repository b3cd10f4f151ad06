"""Derives rates, growing lags and the totals of a consumer's workers from a series of overviews."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from headrace.model.capture import BackfillInfo, CaptureState
from headrace.model.records import ConsumerAtWork, ConsumerInfo, Overview, StreamInfo, WorkerInfo
from headrace.model.sources import SourceInfo

KEPT = 60
"""Samples kept of each stream, consumer and source: one minute at the usual interval."""

SMOOTHED = 3
"""Samples that a rate is averaged over."""

COMPARED = 5
"""Samples in each of the two means of the lag that are compared, the recent one and the one before it."""

State = Literal["", "paused", "breaker", "blocked", "growing", "unattended", "full"]

SourceState = CaptureState | Literal["", "alarm"]
"""The state of a source. `alarm`: the capture runs, but its slot has a problem. Empty for a source that
captures no tables.
"""

TROUBLES: frozenset[SourceState] = frozenset(("stopped", "alarm", "waiting", "unattended"))
"""States that are sorted first, because there may be no room for all sources."""


class StreamLine(msgspec.Struct, frozen=True, kw_only=True):
    """A stream in a picture.

    `rate`: messages published per second, None at first. `rates`: the rate of each interval.
    """

    info: StreamInfo
    rate: float | None
    rates: Sequence[float]

    @property
    def state(self) -> State:
        return "full" if self.info.full else ""


class ConsumerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer in a picture.

    `rate`: messages per second that it finishes, including those that its filter skips. None at first.
    `busy` of `actors`: the sum over all processes that report the consumer. `actors` is None if none
    does.
    """

    info: ConsumerInfo
    rate: float | None
    rates: Sequence[float]
    lags: Sequence[float]
    actors: int | None
    busy: int
    reason: str
    breaker: bool

    @property
    def state(self) -> State:
        """The most important thing about the consumer."""
        info = self.info
        if info.paused_until is not None:
            return "paused"
        if self.breaker:
            return "breaker"
        if info.blocked:
            return "blocked"
        if info.lag and not info.owners and not self.actors and not self.rate:
            return "unattended"
        return "growing" if growing(self.lags) else ""


class SourceLine(msgspec.Struct, frozen=True, kw_only=True):
    """A source in a picture.

    `rate`: changes captured per second, None at first. `backfills`: the queued and running backfills.
    """

    info: SourceInfo
    rate: float | None
    rates: Sequence[float]
    backfills: list[BackfillInfo]

    @property
    def state(self) -> SourceState:
        """The most important thing about the source."""
        how = self.info.capture
        if how is None:
            return ""
        return "alarm" if how.state == "running" and how.facts is not None and how.facts.alarm else how.state

    @property
    def tables(self) -> list[str]:
        return list(self.info.settings.get("tables", ()))

    @property
    def behind(self) -> int | None:
        """How far the capture is behind, in bytes of WAL. None while no process reports it."""
        how = self.info.capture
        return None if how is None or how.facts is None or how.state != "running" else how.facts.behind

    @property
    def held_back(self) -> int | None:
        """How much WAL the slot holds back, in bytes. None while no process reports it."""
        how = self.info.capture
        return None if how is None or how.facts is None or how.state != "running" else how.facts.held_back


class WorkerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A process in a picture."""

    info: WorkerInfo
    actors: int
    busy: int
    rate: float | None
    age: float
    silent: float


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is shown at one time."""

    at: datetime
    streams: list[StreamLine]
    consumers: list[ConsumerLine]
    workers: list[WorkerLine]
    sources: list[SourceLine]

    def consumer(self, stream: str, name: str) -> ConsumerLine | None:
        """The consumer of that name, or None."""
        return next((one for one in self.consumers if (one.info.stream, one.info.name) == (stream, name)), None)

    def source(self, id: str) -> SourceLine | None:  # noqa: A002 - the record's word
        """The source of that id, or None."""
        return next((one for one in self.sources if one.info.id == id), None)


class Track:
    """The samples of a count that rises over time."""

    def __init__(self) -> None:
        self.rates: deque[float] = deque(maxlen=KEPT)
        self.levels: deque[float] = deque(maxlen=KEPT)
        self._then: tuple[datetime, int] | None = None

    def note(self, at: datetime, count: int, level: float = 0.0) -> None:
        """Add a sample. A count that has gone back, for instance by a seek, adds a rate of 0."""
        then, self._then = self._then, (at, count)
        self.levels.append(level)
        if then is not None and at > then[0]:
            self.rates.append(max(0, count - then[1]) / (at - then[0]).total_seconds())

    @property
    def rate(self) -> float | None:
        recent = list(self.rates)[-SMOOTHED:]
        return sum(recent) / len(recent) if recent else None


class History:
    """Keeps the samples of each stream, consumer and source by id. Samples of removed ones are dropped."""

    def __init__(self) -> None:
        self._tracks: dict[str, Track] = {}

    def note(self, overview: Overview) -> Picture:
        """Add an overview. Returns the picture to show."""
        known, self._tracks = self._tracks, {}
        for stream in overview.streams:
            self._tracks[stream.id] = track = known.get(stream.id) or Track()
            track.note(overview.at, stream.last_seq or 0)
        for consumer in overview.consumers:
            self._tracks[consumer.id] = track = known.get(consumer.id) or Track()
            track.note(overview.at, done(consumer), consumer.lag)
        for source in overview.sources:
            self._tracks[source.id] = track = known.get(source.id) or Track()
            track.note(overview.at, 0 if source.capture is None else source.capture.captured)
        at_work = _at_work(overview.workers)
        return Picture(
            at=overview.at,
            streams=[self._stream(stream) for stream in overview.streams],
            consumers=[self._consumer(one, at_work.get((one.stream, one.name), [])) for one in overview.consumers],
            workers=[_worker(worker, overview.at) for worker in overview.workers],
            sources=sorted(
                (self._source(source, overview.backfills) for source in overview.sources),
                key=lambda one: (one.state not in TROUBLES, one.info.name),
            ),
        )

    def _stream(self, info: StreamInfo) -> StreamLine:
        track = self._tracks[info.id]
        return StreamLine(info=info, rate=track.rate, rates=tuple(track.rates))

    def _source(self, info: SourceInfo, backfills: Iterable[BackfillInfo]) -> SourceLine:
        track = self._tracks[info.id]
        return SourceLine(
            info=info,
            rate=track.rate,
            rates=tuple(track.rates),
            backfills=[one for one in backfills if one.source == info.name],
        )

    def _consumer(self, info: ConsumerInfo, at_work: Sequence[ConsumerAtWork]) -> ConsumerLine:
        track = self._tracks[info.id]
        telling = max(at_work, key=lambda one: one.actors, default=None)
        return ConsumerLine(
            info=info,
            rate=track.rate,
            rates=tuple(track.rates),
            lags=tuple(track.levels),
            actors=sum(one.actors for one in at_work) if at_work else None,
            busy=sum(one.busy for one in at_work),
            reason="" if telling is None else telling.reason,
            breaker=any(one.breaker in ("open", "half-open") for one in at_work),
        )


def done(info: ConsumerInfo) -> int:
    """Messages that a consumer has finished, counted from the start of the stream, including gaps."""
    return info.position - info.num_ack_pending - info.parked - info.blocked - info.replaying


def growing(lags: Sequence[float]) -> bool:
    """Whether the lag grows by more than the usual fluctuation."""
    if len(lags) < 2 * COMPARED:
        return False
    before, now = sum(lags[-2 * COMPARED : -COMPARED]) / COMPARED, sum(lags[-COMPARED:]) / COMPARED
    return now > before * 1.05 + 10


def _at_work(workers: Iterable[WorkerInfo]) -> dict[tuple[str, str], list[ConsumerAtWork]]:
    found: dict[tuple[str, str], list[ConsumerAtWork]] = {}
    for worker in workers:
        for one in () if worker.gone else worker.consumers:
            found.setdefault((one.stream, one.name), []).append(one)
    return found


def _worker(info: WorkerInfo, at: datetime) -> WorkerLine:
    rates = [one.rate for one in info.consumers if one.rate is not None]
    return WorkerLine(
        info=info,
        actors=sum(one.actors for one in info.consumers),
        busy=sum(one.busy for one in info.consumers),
        rate=sum(rates) if rates else None,
        age=max(0.0, (at - info.started_at).total_seconds()),
        silent=max(0.0, (at - info.seen_at).total_seconds()),
    )
