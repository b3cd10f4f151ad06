"""The meaning of the figures of streams, consumers and sources: rates, trends and states. For all that shows them."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from headrace.model.capture import CaptureInfo
from headrace.model.records import ConsumerAtWork, WorkerInfo
from headrace.model.text.counting import count
from headrace.model.watching.diagnosis import Cause
from headrace.model.watching.live import ConsumerState, SourceState
from headrace.model.watching.reasons import RATE_LIMITED

PROBLEM_STATES: frozenset[SourceState] = frozenset(("stopped", "alarm", "degraded", "waiting", "unattended"))
"""States that are sorted first, because there may be no room for all sources."""

SAMPLES_KEPT = 60
"""Samples kept of each stream, consumer and source: one minute at the usual interval."""

RATE_SAMPLES = 3
"""Samples that a rate is averaged over."""

TREND_SAMPLES = 5
"""Samples in each of the two means of the lag that are compared, the recent one and the one before it."""


class Samples:
    """The samples of a count that rises over time."""

    def __init__(self) -> None:
        self.rates: deque[float] = deque(maxlen=SAMPLES_KEPT)
        self.levels: deque[float] = deque(maxlen=SAMPLES_KEPT)
        self._previous: tuple[datetime, int] | None = None

    def add(self, at: datetime, count: int, level: float = 0.0) -> None:
        """Add a sample. A count that has gone back, for instance by a seek, adds a rate of 0."""
        previous, self._previous = self._previous, (at, count)
        self.levels.append(level)
        if previous is not None and at > previous[0]:
            self.rates.append(max(0, count - previous[1]) / (at - previous[0]).total_seconds())

    @property
    def rate(self) -> float | None:
        """The mean of the latest rates, per second."""
        count = min(len(self.rates), RATE_SAMPLES)
        return sum(self.rates[-place] for place in range(1, count + 1)) / count if count else None


class SeqTimes:
    """When the seqs of a stream were drawn, as far as somebody looked on.

    Args:
        kept: the number of looks that are remembered.

    Attributes:
        drawn: the last seq that was drawn.
    """

    def __init__(self, kept: int) -> None:
        self.drawn = 0
        self._seqs: deque[int] = deque(maxlen=kept)
        self._times: deque[datetime] = deque(maxlen=kept)

    def add(self, at: datetime, drawn: int) -> bool:
        """Note the last seq that was drawn at a time. Returns whether it is another one than before."""
        if self._seqs and drawn == self.drawn:
            return False
        if drawn < self.drawn:  # the history was rewound
            self._seqs.clear()
            self._times.clear()
        self.drawn = drawn
        self._seqs.append(drawn)
        self._times.append(at)
        return True

    def drawn_at(self, seq: int) -> datetime | None:
        """When the seq was drawn, or at most one look later. None if it was before the first look."""
        place = bisect.bisect_left(self._seqs, seq)
        return self._times[place] if 0 < place < len(self._seqs) else None


class AtWork(msgspec.Struct, frozen=True):
    """The reports of all processes on one consumer. `actors` is None if none reports it."""

    actors: int | None
    busy: int
    reason: str


def at_work(reports: Sequence[ConsumerAtWork]) -> AtWork:
    """Sum up what processes report of one consumer."""
    # A rate limit holds all processes, whichever found no token.
    largest = max(reports, key=lambda one: (one.reason.startswith(RATE_LIMITED), one.actors), default=None)
    return AtWork(
        actors=sum(one.actors for one in reports) if reports else None,
        busy=sum(one.busy for one in reports),
        reason="" if largest is None else largest.reason,
    )


def reports_by_consumer(
    workers: Iterable[WorkerInfo],
) -> dict[tuple[str, str], list[tuple[WorkerInfo, ConsumerAtWork]]]:
    """The reports of running processes, by stream and consumer."""
    found: dict[tuple[str, str], list[tuple[WorkerInfo, ConsumerAtWork]]] = {}
    for worker in workers:
        for one in () if worker.gone else worker.consumers:
            found.setdefault((one.stream, one.name), []).append((worker, one))
    return found


def consumer_state(cause: Cause, lags: Sequence[float]) -> ConsumerState:
    """The most important thing about a consumer."""
    match cause:
        case "paused" | "breaker" | "blocked" | "unattended" | "failing":
            return cause
        case "rate_limit":
            return ""  # the lag may grow, as it was asked to
    return "growing" if is_growing(lags) else ""


def source_state(capture: CaptureInfo | None) -> SourceState:
    """The most important thing about a source."""
    if capture is None:
        return ""
    if capture.state != "running":
        return capture.state
    if capture.facts is not None and capture.facts.alarm:
        return "alarm"
    return "degraded" if capture.reason or capture.failures else "running"


def source_reason(name: str, capture: CaptureInfo | None) -> tuple[str | None, str | None]:
    """Return why a source is in its state, and the statement or command that fixes it."""
    match source_state(capture):
        case "alarm" if capture is not None and capture.facts is not None:
            return capture.facts.alarm, None
        case "degraded" if capture is not None and not capture.reason:
            changes = count(capture.failures, "change")
            return f"{changes} could not become messages.", f"headrace source postgres failures ls {name}"
    return (None, None) if capture is None else (capture.reason, capture.mend)


def is_growing(lags: Sequence[float]) -> bool:
    """Return whether the lag grows by more than the usual fluctuation."""
    if len(lags) < 2 * TREND_SAMPLES:
        return False
    recent = list(lags)[-2 * TREND_SAMPLES :]
    before, now = sum(recent[:TREND_SAMPLES]) / TREND_SAMPLES, sum(recent[TREND_SAMPLES:]) / TREND_SAMPLES
    return now > before * 1.05 + 10
