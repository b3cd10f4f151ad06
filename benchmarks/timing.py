"""Medians, percentiles and windows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._start


class Measured(msgspec.Struct):
    """Rates of the repeats, and of the raw limit measured between them."""

    samples: list[float] = []
    limit_samples: list[float] = []

    @property
    def rate(self) -> float:
        return median(self.samples)

    @property
    def limit(self) -> float:
        return median(self.limit_samples)

    @property
    def ratio(self) -> float:
        return self.rate / self.limit


class Phase(msgspec.Struct, frozen=True):
    """A stretch of time on the monotonic clock, in ns."""

    name: str
    start: int
    end: int
    window: float
    """Length of the windows of a phase, in seconds. A last, shorter one is left out."""


class Summary(msgspec.Struct, frozen=True):
    """The results of a stretch of time.

    `second` is its start, in seconds from the start of the phase. `rate` is the number of messages
    handled in it, per second. The latencies are those of the messages published in it, whenever
    they were handled, so that a growing backlog shows.
    """

    second: float
    messages: int
    rate: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    def latency(self) -> dict[str, float]:
        return {"p50_ms": self.p50_ms, "p95_ms": self.p95_ms, "p99_ms": self.p99_ms, "max_ms": self.max_ms}


class PhaseSummary(msgspec.Struct, frozen=True):
    whole: Summary
    windows: list[Summary]


def summarise(phase: Phase, handled: Sequence[int], latencies: Sequence[int]) -> PhaseSummary:
    """Summarise a phase and its windows from parallel lists of handling times and latencies, in ns."""
    width = int(phase.window * 1e9)
    count = max(1, (phase.end - phase.start) // width)
    rates = [0] * count
    windows: list[list[int]] = [[] for _ in range(count)]
    for at, latency in zip(handled, latencies, strict=True):
        if 0 <= (place := (at - phase.start) // width) < count:
            rates[place] += 1
        if 0 <= (place := (at - latency - phase.start) // width) < count:
            windows[place].append(latency)
    return PhaseSummary(
        _summary(0.0, count * phase.window, sum(rates), [latency for window in windows for latency in window]),
        [_summary(index * phase.window, phase.window, rates[index], window) for index, window in enumerate(windows)],
    )


def _summary(second: float, seconds: float, handled: int, latencies: list[int]) -> Summary:
    return Summary(second, handled, handled / seconds, **milliseconds(latencies))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that is at least as large as `share` of the ordered values. 0 if there are none."""
    if not ordered:
        return 0.0
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def milliseconds(nanoseconds: Iterable[int]) -> dict[str, float]:
    """p50, p95, p99 and max."""
    ordered = sorted(nanoseconds)
    return {
        "p50_ms": percentile(ordered, 0.50) / 1e6,
        "p95_ms": percentile(ordered, 0.95) / 1e6,
        "p99_ms": percentile(ordered, 0.99) / 1e6,
        "max_ms": percentile(ordered, 1.0) / 1e6,
    }
