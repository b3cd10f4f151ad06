"""The governor: how many actors a consumer has, between the limits that the user gives.

Hill climbing on throughput, with the doubling start of TCP's congestion control (Jacobson, "Congestion Avoidance and
Control", 1988): while every actor is busy and messages wait, double them; once more actors no longer finish more
messages, go back to where they did, stay, and probe from time to time whether the hill has moved. Actors that have
nothing to do are let go.
"""

from __future__ import annotations

import msgspec

INTERVAL = 0.25
"""Seconds between samples."""

GAIN = 0.05
"""A step up must finish this share more messages than before, or it was one too many."""

PATIENCE = 12
"""Samples to stay before probing again."""


class Sample(msgspec.Struct, frozen=True):
    """What was seen since the last sample: seconds, messages finished, actors busy now, and lanes that wait for one."""

    seconds: float
    finished: int
    busy: int
    ready: int


class Decision(msgspec.Struct, frozen=True):
    """How many actors there should be, and why."""

    actors: int
    reason: str


class Governor:
    """Decides by samples. `low` and `high` bound it; with both equal it never moves."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.decision = Decision(low, "the least" if low < high else "fixed")
        self._before: tuple[int, float] | None = None  # actors and rate before the last step up
        self._rest = 0
        self._idle = 0

    def decide(self, sample: Sample) -> Decision:
        """The next decision, after one more sample."""
        if self.low < self.high:
            self.decision = self._judge(sample, sample.finished / sample.seconds if sample.seconds > 0 else 0.0)
        return self.decision

    def _judge(self, sample: Sample, rate: float) -> Decision:
        actors = self.decision.actors
        if self._before is not None:
            fewer, rate_before = self._before
            self._before = None
            if rate < rate_before * (1 + GAIN):
                self._rest = PATIENCE
                return Decision(fewer, f"{actors} actors finished no more than {fewer}")
        if self._rest:
            self._rest -= 1
            return self.decision
        if sample.ready and sample.busy >= actors and actors < self.high:
            self._idle = 0
            self._before = (actors, rate)
            return Decision(min(self.high, actors * 2), "all are busy and messages wait")
        if sample.busy * 2 <= actors and actors > self.low:
            self._idle += 1
            if self._idle >= PATIENCE:
                self._idle = 0
                return Decision(max(self.low, sample.busy, actors * 3 // 4), "more than half have nothing to do")
        else:
            self._idle = 0
        return self.decision
