"""Gathering: how long to wait between two reads, so that changes are appended and handled together.

A few changes cost hardly more together than one alone. So a reader waits a moment between its reads, unless a backlog
comes in: then whatever it waits, the appends wait, too.
"""

from __future__ import annotations

GATHERING_TIME = 0.015
"""Longest time in seconds between a read that has returned few payloads and the next one."""

FEW_PAYLOADS = 100
"""Number of payloads below which a read has returned few. The wait ends when so many are expected."""

BACKLOG_TIME = 0.005
"""Time in seconds in which `FEW_PAYLOADS` come in at the least, unless there is a backlog."""

WINDOW = 0.1
"""Seconds over which the pace is measured. A backlog has gaps of milliseconds."""


class Gathering:
    """Measures the pace of payloads, and says when to read again. Times are of one clock, in seconds."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._count = 0
        self._interval = 0.0  # between two payloads, in the last window

    def next_read(self, count: int, now: float) -> float:
        """Return the time of the next read, after a read at `now` that has returned this many payloads."""
        if self._began is None:
            self._began = now
        self._count += count
        if now - self._began >= WINDOW and self._count:
            self._interval = (now - self._began) / self._count
            self._began, self._count = now, 0
        expected = FEW_PAYLOADS * self._interval
        if not 0 < count < FEW_PAYLOADS or expected < BACKLOG_TIME:
            return now
        return now + min(GATHERING_TIME, expected)
