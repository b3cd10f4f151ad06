"""The time, which stands still until the test moves it.

Leases, retries, timeouts, breakers and rate limits go by it. Two things can't, since the server stamps them with its own clock:
when a message was published, and when a delayed one is to be. So retention and the schedule go by a second clock, which runs,
and which is ahead by as much as the test has moved the first.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from headrace.runtime.wiring import Time


class Clock:
    """The clocks of a harness. They are moved by `Harness.advance`, which also lets happen what falls due.

    Attributes:
        advanced: seconds by which the test has moved them so far.
    """

    def __init__(self) -> None:
        self._start = datetime.now(UTC)
        self.advanced = 0.0

    def now(self) -> datetime:
        """The time that stands still: of leases and retries."""
        return self._start + timedelta(seconds=self.advanced)

    def date(self) -> datetime:
        """The time that runs: of retention, and of what is published for later."""
        return datetime.now(UTC) + timedelta(seconds=self.advanced)

    def monotonic(self) -> float:
        """Seconds since the start, on the clock that stands still."""
        return self.advanced

    def move(self, seconds: float) -> None:
        """Move them, and do nothing else."""
        self.advanced += seconds

    def time(self) -> Time:
        """As a service takes them."""
        return Time(self.monotonic, self.now, self.date)
