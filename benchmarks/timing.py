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
    """A stretch of time on the monotonic clock, in ns; messages belong to the phase in which they were published."""

    name: str
    start: int
    end: int
    window: float
    """Length of the windows, in seconds, into which it is cut."""


class Summary(msgspec.Struct, frozen=True):
    """Latencies in a stretch of time. `second`: when it began, after the phase did."""

    second: float
    messages: int
    rate: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


class PhaseSummary(msgspec.Struct, frozen=True):
    whole: Summary
    windows: list[Summary]


def summarise(phase: Phase, ends: Sequence[int], latencies: Sequence[int]) -> PhaseSummary:
    """What of (end, latency) pairs, in ns, belongs to the phase, as a whole and in windows."""
    width = int(phase.window * 1e9)
    windows: dict[int, list[int]] = {index: [] for index in range((phase.end - phase.start) // width)}
    for end, latency in zip(ends, latencies, strict=True):
        published = end - latency
        index = (published - phase.start) // width
        if index in windows:  # the last one, when it is shorter, is left out
            windows[index].append(latency)
    return PhaseSummary(
        _summary(0, (width * len(windows)) / 1e9, [latency for window in windows.values() for latency in window]),
        [_summary(index * phase.window, phase.window, window) for index, window in windows.items()],
    )


def _summary(second: float, seconds: float, latencies: list[int]) -> Summary:
    latencies.sort()
    return Summary(
        second,
        len(latencies),
        len(latencies) / seconds if seconds else 0.0,
        *(percentile(latencies, share) / 1e6 for share in (0.50, 0.95, 0.99, 1.0)),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that `share` of the ordered values do not exceed; 0 of none."""
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
