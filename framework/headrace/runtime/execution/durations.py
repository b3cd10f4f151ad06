"""How long the messages of a consumer take: percentiles of those that were measured lately.

To measure every message would cost more than it tells. One is sampled when none has begun to be sampled for `EVERY`
seconds, whatever its duration will be, so the sample is not biased. If the consumer keeps a history, each message is
measured, and its duration is kept with its lease until it is settled.
"""

from __future__ import annotations

import math
from collections import deque

from headrace.flow.lease import Lease
from headrace.model.records import Percentiles

EVERY = 0.01
"""The shortest time between the beginnings of two measurements, in seconds."""

KEPT = 1_000
"""The number of measurements that are kept."""

LATELY = 60.0
"""Seconds for which a measurement counts."""


class Durations:
    """The latest durations of one consumer, in seconds.

    Attributes:
        due: when the next message is measured, on the caller's clock. Callers compare it themselves, since that
            happens once per message.
        sample_due: when the next message that is measured counts in the percentiles, too.
    """

    def __init__(self) -> None:
        self.due = self.sample_due = -math.inf
        self._measured: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def begin_sample(self, lease: Lease, now: float) -> None:
        """Note that a message of a lease is sampled. Others are measured later, or at once if the consumer keeps a history."""
        self.sample_due = now + EVERY
        if lease.seconds is None:
            self.due = self.sample_due

    def add(self, began: float, now: float) -> None:
        """Note a duration."""
        self._measured.append((now, now - began))

    def percentiles(self, now: float) -> Percentiles | None:
        """Return percentiles of the durations of the last minute. None if none was measured."""
        found = sorted(seconds for at, seconds in list(self._measured) if at >= now - LATELY)
        if not found:
            return None
        return Percentiles(*(found[math.ceil(len(found) * share) - 1] for share in (0.5, 0.95, 0.99)))
