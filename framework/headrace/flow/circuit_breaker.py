"""The circuit breaker: after failures in a row it pauses, then tries one message, and resumes if that
message is acked.

    closed ──failures in a row──▶ open ──pause──▶ half-open ──the probe is acked──▶ closed
                                   ▲                  │
                                   └──────failed──────┘  and the pause doubles, up to the longest

After M. Nygard, "Release It!" (2007), "Circuit Breaker". While a downstream is unavailable, trying
is useless, and each try costs a message one of its attempts.
"""

from __future__ import annotations

from typing import Any, Literal

from headrace.model.handling import Breaker

State = Literal["closed", "open", "half-open"]

BEHIND = 1.5
"""A failed probe is delivered again after this many pauses. Another message is probed before it, in
case the failed probe itself is the cause."""


class CircuitBreaker:
    """The state of one circuit breaker.

    Attributes:
        state: closed, open, or half-open.
        failures: the number of failures in a row so far.
        reason: the last failure that opened the breaker.
        until: when an open breaker tries again, on the caller's clock.
    """

    def __init__(self, settings: Breaker) -> None:
        self._settings = settings
        self._pause = settings.pause
        self.state: State = "closed"
        self.failures = 0
        self.reason: str | None = None
        self.until = 0.0

    @property
    def pause(self) -> float:
        """The length of the current pause in seconds, or of the next one if the breaker isn't open."""
        return self._pause

    def failed(self, now: float, reason: str) -> bool:
        """Count a failure of a handler. In the half-open state it is the failure of the probe. Returns
        whether this opened the breaker."""
        if self.state == "open":
            return False
        self.failures += 1
        if self.state == "half-open":
            self._pause = min(self._pause * 2, self._settings.longest)
        elif self.failures < self._settings.failures:
            return False
        self.state, self.reason, self.until = "open", reason, now + self._pause
        return True

    def succeeded(self) -> bool:
        """Note a success of a handler. In the half-open state it is the success of the probe. Returns
        whether this closed the breaker."""
        if self.state == "open":
            return False  # a handler that began before the pause says nothing about the present
        closed = self.state == "half-open"
        self.state, self.failures, self.reason, self._pause = "closed", 0, None, self._settings.pause
        return closed

    def left(self, now: float) -> float:
        """Seconds until an open breaker may try again. 0 in other states."""
        return max(0.0, self.until - now) if self.state == "open" else 0.0

    def probe(self) -> None:
        """Become half-open, because the pause is over. The next message is the probe."""
        if self.state == "open":
            self.state = "half-open"

    def statistics(self, now: float) -> dict[str, Any]:
        """Return the state, the seconds until the next probe, the failures in a row, and the failure
        that opened the breaker."""
        return {"state": self.state, "probe_in": self.left(now), "failures": self.failures, "reason": self.reason}
