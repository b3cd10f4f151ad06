"""Decides from a series of samples whether it is level or grows. Plain computation.

The growth is the slope of Theil and Sen, which is the median of the slopes between all pairs of samples, over the time after
the warm-up. Up to a quarter of the samples may be anything. A size that retention cuts repeatedly is level.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

WARM_UP = 1 / 3
"""The share of a run that is not judged."""

SHARE = 0.1
"""The share of its level by which a series may grow."""

FEWEST = 8
"""Samples after the warm-up without which a series is not judged."""

FLOORS = {
    "memory": 6 << 20, "files": 6, "threads": 3, "connections": 4, "table": 2 << 20, "index": 2 << 20, "dead rows": 5_000,
    "relations": 6, "lag": 1_000, "wal": 32 << 20,
}  # fmt: skip
"""By how much any series of a kind may grow: bytes, or a number."""


class Series(msgspec.Struct):
    """A figure over time.

    Attributes:
        name: what it is the figure of, such as a process or a table.
        kind: one of `FLOORS`.
        samples: seconds since the start, and the figure.
    """

    name: str
    kind: str
    samples: list[tuple[float, float]] = []


class Trend(msgspec.Struct, frozen=True):
    """The judgement of a series.

    Attributes:
        level: the median after the warm-up.
        growth: the growth from the end of the warm-up to the end.
        allowed: the growth that counts as level.
        leaks: whether it grows by more than that, in its slope as well as from the first quarter to the last.
    """

    name: str
    kind: str
    level: float
    growth: float
    allowed: float
    leaks: bool


def trend(series: Series, end: float) -> Trend | None:
    """Judge a series. None if it has too few samples, such as that of a table that was dropped.

    Args:
        end: seconds from the start to the end of the run.
    """
    samples = [sample for sample in series.samples if sample[0] >= WARM_UP * end]
    if len(samples) < FEWEST:
        return None
    values = [value for _, value in samples]
    level = median(values)
    growth = slope(samples) * (samples[-1][0] - samples[0][0])
    allowed = max(FLOORS[series.kind], SHARE * level)
    quarter = max(1, len(values) // 4)
    rise = median(values[-quarter:]) - median(values[:quarter])
    return Trend(series.name, series.kind, level, growth, allowed, growth > allowed and rise > allowed)


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Return the Theil-Sen slope per second."""
    slopes = [
        (later - earlier) / (end - start)
        for place, (start, earlier) in enumerate(samples)
        for end, later in samples[place + 1 :]
        if end > start
    ]
    return median(slopes) if slopes else 0.0
