"""The clock of the tests, which stands still until the test moves it.

Leases, retries, timeouts, breakers and rate limits use it. The server stamps two times with its own clock:
when a message was published, and when a delayed message is due. Retention and the schedule therefore use a second
clock. It runs, and it is ahead of real time by as much as the test has moved the first one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from headrace.model.clock import Time


class Clock:
    """The clocks of a harness. `Harness.advance` moves them and processes what falls due.

    Attributes:
        advanced: seconds by which the test has moved the clocks so far.
    """

    def __init__(self) -> None:
        self._start = datetime.now(UTC)
        self.advanced = 0.0

    def now(self) -> datetime:
        """The time of leases and retries. It stands still."""
        return self._start + timedelta(seconds=self.advanced)

    def date(self) -> datetime:
        """The time of retention and scheduled messages. It runs."""
        return datetime.now(UTC) + timedelta(seconds=self.advanced)

    def monotonic(self) -> float:
        """Seconds since the start, on the clock that stands still."""
        return self.advanced

    def move(self, seconds: float) -> None:
        """Move the clocks, without processing what falls due."""
        self.advanced += seconds

    def time(self) -> Time:
        """The clocks as a service takes them."""
        return Time(self.monotonic, self.now, self.date)
