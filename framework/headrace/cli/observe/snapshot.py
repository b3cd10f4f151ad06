"""Everything that `headrace observe` shows at one time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from headrace.flow.observed import AtWork, ConsumerState, SourceState, consumer_state, source_state
from headrace.model.capture import BackfillInfo
from headrace.model.records import ConsumerInfo, StreamInfo, WorkerInfo
from headrace.model.sources import SourceInfo


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
        work = AtWork(self.actors, self.busy, self.reason, self.breaker)
        return consumer_state(
            work, paused=info.paused_until is not None, blocked=info.blocked, lag=info.lag, owners=info.owners,
            rate=self.rate, lags=self.lags,
        )  # fmt: skip


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
        return source_state(self.info.capture)

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
