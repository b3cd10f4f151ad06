"""What a benchmark and its worker process say to each other: JSON, a line each."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from benchmarks.payloads import Keys
from benchmarks.timing import Phase, PhaseSummary

HandlerName = Literal["noop", "work", "timed", "hold", "effect", "effects", "changed"]
Telling = Literal["off", "metrics", "traces", "sampled"]
"""What telemetry a worker has on; see `telling`."""


class ConsumerJob(msgspec.Struct, frozen=True):
    """A consumer to run. `settings` go to `@app.consumer`; order is checked when `keys` are given."""

    name: str
    handler: HandlerName
    settings: dict[str, Any]
    keys: Keys | None = None


class CaptureJob(msgspec.Struct, frozen=True):
    """Tables to capture into the job's stream. `settings` go to `App.capture`."""

    tables: list[str]
    settings: dict[str, Any]


class Job(msgspec.Struct, frozen=True):
    """What the worker process does. Without consumers it only captures."""

    dsn: str
    stream: str
    consumers: list[ConsumerJob]
    telling: Telling = "off"
    captures: list[CaptureJob] = []


class Finish(msgspec.Struct, frozen=True):
    """Every consumer will have had `expected` messages: wait for them, settle, check, report.

    `phases`: stretches of time whose latencies are wanted.
    """

    expected: int
    phases: list[Phase] = []


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The consumers are declared, and run."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Messages begun so far by the consumer that has the fewest; 0 if there is none."""

    begun: int


class Report(msgspec.Struct, frozen=True, tag="report"):
    """All is settled and proven. `first`: when the first handler started; `settled`: when the database said that all was.

    `busy`: the share of a core that the process used in between. `cpu`: seconds of processor time that it used since it was ready.
    """

    first: int
    settled: int
    busy: float
    cpu: float
    checks: list[str]
    phases: dict[str, dict[str, PhaseSummary]]
    """By consumer and phase."""

    @property
    def seconds(self) -> float:
        return (self.settled - self.first) / 1e9


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It is not as promised, and here is how."""

    reason: str


Message = Ready | Progress | Report | Failed
