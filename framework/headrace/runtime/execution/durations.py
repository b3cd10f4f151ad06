"""How long the messages of a consumer take: percentiles of those that were measured lately.

To measure every message would cost more than it tells. One is measured when none has begun to be measured for `EVERY`
seconds, whatever its duration will be, so the sample is not biased. If the consumer keeps a history, each message is
measured, and its duration is kept with its lease until it is settled.
"""

from __future__ import annotations

import math
from collections import deque

from headrace.model.records import Percentiles
from headrace.runtime.messages.message import Message

EVERY = 0.01
"""The shortest time between the beginnings of two measurements, in seconds."""

KEPT = 1_000
"""The number of measurements that are kept."""

LATELY = 60.0
"""Seconds for which a measurement counts."""


class Durations:
    """The latest durations of one consumer, in seconds.

    Attributes:
        due: when the next message may be measured, on the caller's clock. Callers compare it themselves, since that
            happens once per message.
    """

    def __init__(self) -> None:
        self.due = -math.inf
        self._measured: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def begin(self, message: Message, now: float) -> None:
        """Begin to measure a message. Others are due later, or at once if its consumer keeps a history."""
        message.began = now
        if message.lease.seconds is None:
            self.due = now + EVERY

    def end(self, message: Message, now: float) -> None:
        """End to measure a message."""
        if message.began is not None:
            self.add(message.began, now)
            message.lease.note_seconds(message.seq, message.began, now)

    def add(self, began: float, now: float) -> None:
        """Note a duration."""
        self._measured.append((now, now - began))

    def percentiles(self, now: float) -> Percentiles | None:
        """Return percentiles of the durations of the last minute. None if none was measured."""
        found = sorted(seconds for at, seconds in list(self._measured) if at >= now - LATELY)
        if not found:
            return None
        return Percentiles(*(found[math.ceil(len(found) * share) - 1] for share in (0.5, 0.95, 0.99)))
