"""Everything that `headrace observe` shows at one time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from headrace.model.capture import BackfillInfo, CaptureState
from headrace.model.records import RATE_LIMITED, ConsumerInfo, StreamInfo, WorkerInfo
from headrace.model.sources import SourceInfo

ConsumerState = Literal["", "paused", "breaker", "blocked", "growing", "unattended", "full"]


SourceState = CaptureState | Literal["", "alarm"]
"""The state of a source. `alarm`: the capture runs, but its slot has a problem. Empty for a source that
captures no tables.
"""


PROBLEM_STATES: frozenset[SourceState] = frozenset(("stopped", "alarm", "waiting", "unattended"))
"""States that are sorted first, because there may be no room for all sources."""


class StreamRow(msgspec.Struct, frozen=True, kw_only=True):
    """A stream in a snapshot.

    `rate`: messages published per second, None at first. `rates`: the rate of each interval.
    """

    info: StreamInfo
    rate: float | None
    rates: Sequence[float]

    @property
    def state(self) -> ConsumerState:
        return "full" if self.info.full else ""


class ConsumerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer in a snapshot.

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
    def state(self) -> ConsumerState:
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
        if self.reason.startswith(RATE_LIMITED):
            return ""  # the lag may grow, as it was asked to
        return "growing" if is_growing(self.lags) else ""


class SourceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A source in a snapshot.

    `rate`: changes captured per second, None at first. `backfills`: the queued and running backfills.
    """

    info: SourceInfo
    rate: float | None
    rates: Sequence[float]
    backfills: list[BackfillInfo]

    @property
    def state(self) -> SourceState:
        """The most important thing about the source."""
        capture = self.info.capture
        if capture is None:
            return ""
        alarm = capture.state == "running" and capture.facts is not None and capture.facts.alarm
        return "alarm" if alarm else capture.state

    @property
    def tables(self) -> list[str]:
        return list(self.info.settings.get("tables", ()))

    @property
    def behind(self) -> int | None:
        """How far the capture is behind, in bytes of WAL. None while no process reports it."""
        capture = self.info.capture
        running = capture is not None and capture.state == "running"
        return capture.facts.behind if capture is not None and capture.facts is not None and running else None

    @property
    def held_back(self) -> int | None:
        """How much WAL the slot holds back, in bytes. None while no process reports it."""
        capture = self.info.capture
        running = capture is not None and capture.state == "running"
        return capture.facts.held_back if capture is not None and capture.facts is not None and running else None


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A process in a snapshot."""

    info: WorkerInfo
    actors: int
    busy: int
    rate: float | None
    age: float
    silent: float


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is shown at one time."""

    at: datetime
    streams: list[StreamRow]
    consumers: list[ConsumerRow]
    workers: list[WorkerRow]
    sources: list[SourceRow]

    def consumer(self, stream: str, name: str) -> ConsumerRow | None:
        """Return the consumer with this name, or None."""
        return next((one for one in self.consumers if (one.info.stream, one.info.name) == (stream, name)), None)

    def source(self, id: str) -> SourceRow | None:  # noqa: A002 - the record's word
        """Return the source with this id, or None."""
        return next((one for one in self.sources if one.info.id == id), None)


TREND_SAMPLES = 5
"""Samples in each of the two means of the lag that are compared, the recent one and the one before it."""


def is_growing(lags: Sequence[float]) -> bool:
    """Return whether the lag grows by more than the usual fluctuation."""
    if len(lags) < 2 * TREND_SAMPLES:
        return False
    before, now = (
        sum(lags[-2 * TREND_SAMPLES : -TREND_SAMPLES]) / TREND_SAMPLES,
        sum(lags[-TREND_SAMPLES:]) / TREND_SAMPLES,
    )
    return now > before * 1.05 + 10
