"""The clocks of a process."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

Clock = Callable[[], float]
"""A monotonic clock in seconds."""


class Time(msgspec.Struct, frozen=True):
    """The clocks of a service. A test passes its own.

    Attributes:
        clock: seconds, monotonic, for deadlines, waits and rates in this process.
        now: the time for leases and settles, or None for the time of the database server.
        date: the time that the server gives to messages, as far as this process knows it. Delays of
            scheduled messages count from it.
    """

    clock: Clock = time.monotonic
    now: Callable[[], datetime | None] = lambda: None
    date: Callable[[], datetime] = lambda: datetime.now(UTC)


SYSTEM_TIME = Time()
