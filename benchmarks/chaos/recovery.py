"""The rate of work before and after a fault, and the time until it is back. Plain computation from times."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

WINDOW = 1.0
"""Seconds over which a rate is taken."""

BACK = 0.95
"""The share of the baseline from which the work counts as back."""

DIP = 0.5
"""After the work is back, no window may fall below this share of the baseline."""

_STEP = 0.05


class Phases(msgspec.Struct, frozen=True):
    """When the phases of a run began and ended, in seconds on the monotonic clock of the machine.

    Attributes:
        began: the start of the baseline, which ends with the start of the fault.
        fault: the start of the fault.
        over: the end of the fault.
        ended: the end of the recovery.
    """

    began: float
    fault: float
    over: float
    ended: float


class Recovery(msgspec.Struct, frozen=True):
    """How a consumer came through a fault.

    Attributes:
        baseline: messages per second before the fault.
        during: messages per second while the fault lasted.
        after: messages per second from the moment when the work was back. Without one, from the end of the fault.
        seconds: from the end of the fault until the work was back. None if it never was.
    """

    baseline: float
    during: float
    after: float
    seconds: float | None

    @property
    def ratio(self) -> float:
        """The rate after the recovery as a share of the baseline. A backlog can raise it above 1."""
        return self.after / self.baseline if self.baseline else 0.0

    @property
    def during_ratio(self) -> float:
        """The rate while the fault lasted, as a share of the baseline."""
        return self.during / self.baseline if self.baseline else 0.0


def rate(times: Sequence[float], start: float, end: float) -> float:
    """Return the events per second between two times. `times` are in order."""
    return (bisect_left(times, end) - bisect_left(times, start)) / (end - start) if end > start else 0.0


def recovery(times: Sequence[float], phases: Phases) -> Recovery:
    """Judge when the work was back: from then on the first window and the whole rest have `BACK` of the baseline, and no
    window is below `DIP` of it.

    Args:
        times: when messages were handled, in any order.
        phases: the phases of the run.
    """
    ordered = sorted(times)
    baseline = rate(ordered, phases.began, phases.fault)
    back = _back(ordered, phases, baseline) if baseline else None
    return Recovery(
        baseline,
        rate(ordered, phases.fault, phases.over),
        rate(ordered, phases.over if back is None else back, phases.ended),
        None if back is None else back - phases.over,
    )


def _back(times: Sequence[float], phases: Phases, baseline: float) -> float | None:
    starts = [phases.over + _STEP * i for i in range(max(0, int((phases.ended - WINDOW - phases.over) / _STEP) + 1))]
    rates = [rate(times, start, start + WINDOW) for start in starts]
    steady = len(starts)  # the first window from which on none dips
    while steady and rates[steady - 1] >= DIP * baseline:
        steady -= 1
    for start, first in zip(starts[steady:], rates[steady:], strict=True):
        if first >= BACK * baseline and rate(times, start, phases.ended) >= BACK * baseline:
            return start
    return None
