"""What a series of overviews says: rates, what grows, and what the workers of a consumer do together."""

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
"""Samples that are kept of each stream and consumer: a minute at the usual interval."""

SMOOTHED = 3
"""Samples that a rate is the mean of."""

COMPARED = 5
"""Samples whose mean lag is held against that of as many before."""

State = Literal["", "paused", "breaker", "blocked", "growing", "unattended", "full"]

SourceState = CaptureState | Literal["", "alarm"]
"""How a capture is; `alarm`: it runs, and something is wrong with its slot; nothing for what captures no tables."""

TROUBLES: frozenset[SourceState] = frozenset(("stopped", "alarm", "waiting", "unattended"))
"""Those that come first, since there may be no room for all sources."""


class StreamLine(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as it is shown. `rate`: messages published a second, None at first; `rates`: those of each interval."""

    info: StreamInfo
    rate: float | None
    rates: Sequence[float]

    @property
    def state(self) -> State:
        return "full" if self.info.full else ""


class ConsumerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer as it is shown.

    `rate`: messages a second that it is done with, those that it passes over included; None at first. `busy` of `actors`: of all
    processes that tell of it; None when none does.
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
        """What is most worth knowing of it."""
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
    """A source as it is shown. `rate`: changes captured a second, None at first; `backfills`: those that wait or are under way."""

    info: SourceInfo
    rate: float | None
    rates: Sequence[float]
    backfills: list[BackfillInfo]

    @property
    def state(self) -> SourceState:
        """What is most worth knowing of it."""
        how = self.info.capture
        if how is None:
            return ""
        return "alarm" if how.state == "running" and how.facts is not None and how.facts.alarm else how.state

    @property
    def tables(self) -> list[str]:
        return list(self.info.settings.get("tables", ()))

    @property
    def behind(self) -> int | None:
        """Bytes of WAL that the capture is behind; None while nobody tells."""
        how = self.info.capture
        return None if how is None or how.facts is None or how.state != "running" else how.facts.behind

    @property
    def held_back(self) -> int | None:
        """Bytes of WAL that its slot holds back; None while nobody tells."""
        how = self.info.capture
        return None if how is None or how.facts is None or how.state != "running" else how.facts.held_back


class WorkerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A process as it is shown."""

    info: WorkerInfo
    actors: int
    busy: int
    rate: float | None
    age: float
    silent: float


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """All that is shown at a time."""

    at: datetime
    streams: list[StreamLine]
    consumers: list[ConsumerLine]
    workers: list[WorkerLine]
    sources: list[SourceLine]

    def consumer(self, stream: str, name: str) -> ConsumerLine | None:
        """The one of that name, if it is there."""
        return next((one for one in self.consumers if (one.info.stream, one.info.name) == (stream, name)), None)

    def source(self, id: str) -> SourceLine | None:  # noqa: A002 - the record's word
        """The one of that id, if it is there."""
        return next((one for one in self.sources if one.info.id == id), None)


class Track:
    """A count that is looked at again and again."""

    def __init__(self) -> None:
        self.rates: deque[float] = deque(maxlen=KEPT)
        self.levels: deque[float] = deque(maxlen=KEPT)
        self._then: tuple[datetime, int] | None = None

    def note(self, at: datetime, count: int, level: float = 0.0) -> None:
        """It has come to `count`. A count that went back, as by a seek, says nothing of the pace."""
        then, self._then = self._then, (at, count)
        self.levels.append(level)
        if then is not None and at > then[0]:
            self.rates.append(max(0, count - then[1]) / (at - then[0]).total_seconds())

    @property
    def rate(self) -> float | None:
        recent = list(self.rates)[-SMOOTHED:]
        return sum(recent) / len(recent) if recent else None


class History:
    """Remembers what it is given of each stream, consumer and source, by their ids; what is not there any more is forgotten."""

    def __init__(self) -> None:
        self._tracks: dict[str, Track] = {}

    def note(self, overview: Overview) -> Picture:
        """One more overview. Returns what is to be shown."""
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
    """Messages that a consumer is done with, counted from the start of the stream, gaps included."""
    return info.position - info.num_ack_pending - info.parked - info.blocked - info.replaying


def growing(lags: Sequence[float]) -> bool:
    """Whether it falls behind, by more than what comes and goes."""
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
