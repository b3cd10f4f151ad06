"""The messages between a benchmark and its worker process: JSON, one per line."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from benchmarks.payloads import Keys
from benchmarks.timing import Phase, PhaseSummary

HandlerName = Literal["noop", "work", "timed", "hold", "effect", "effects", "changed"]
TelemetryMode = Literal["off", "metrics", "traces", "sampled"]
"""The telemetry of a worker. See `telemetry_mode`."""


class ConsumerJob(msgspec.Struct, frozen=True):
    """A consumer to run. `settings` are arguments of `@app.consumer`. Order is checked when `keys` are given."""

    name: str
    handler: HandlerName
    settings: dict[str, Any]
    keys: Keys | None = None


class CaptureJob(msgspec.Struct, frozen=True):
    """Tables to capture into the job's stream. `settings` are arguments of `App.capture`."""

    tables: list[str]
    settings: dict[str, Any]


class Job(msgspec.Struct, frozen=True):
    """The work of the worker process. Without consumers it only captures."""

    dsn: str
    stream: str
    consumers: list[ConsumerJob]
    telemetry_mode: TelemetryMode = "off"
    captures: list[CaptureJob] = []


class Finish(msgspec.Struct, frozen=True):
    """Every consumer gets `expected` messages in all. Wait for them, settle, check, report.

    `phases` are the stretches of time to report latencies for.
    """

    expected: int
    phases: list[Phase] = []


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The consumers are declared, and run."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Messages begun so far by the consumer that has the fewest. 0 if there is none."""

    begun: int


class Report(msgspec.Struct, frozen=True, tag="report"):
    """Everything is settled and checked.

    `first` is when the first handler started. `settled` is when the database confirmed that
    everything was settled. `busy` is the share of a core that the process used in between. `cpu` is
    the seconds of CPU time that it used since it was ready.
    """

    first: int
    settled: int
    busy: float
    cpu: float
    checks: list[str]
    phases: dict[str, dict[str, PhaseSummary]]
    """Summaries by consumer and phase."""

    @property
    def seconds(self) -> float:
        return (self.settled - self.first) / 1e9


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A check failed. Contains the reason."""

    reason: str


Message = Ready | Progress | Report | Failed
