"""The circuit breaker: after failures in a row, pause; then try one message; go on if that works.

    closed ──failures in a row──▶ open ──pause──▶ half-open ──the probe is acked──▶ closed
                                   ▲                  │
                                   └──────failed──────┘  and the pause is twice as long, up to the longest

After M. Nygard, "Release It!" (2007), "Circuit Breaker": where a downstream is away, trying helps nobody, and each try costs a
message one of its attempts.
"""

from __future__ import annotations

from typing import Any, Literal

from headrace.model.handling import Breaker

State = Literal["closed", "open", "half-open"]

BEHIND = 1.5
"""A probe that failed comes again after so many pauses: another one is tried before it, should it be the culprit itself."""


class Circuit:
    """The state of one breaker.

    Attributes:
        state: closed, open, or half-open.
        failures: how many in a row, by now.
        reason: the last failure that opened it.
        until: when an open one tries again, on the caller's clock.
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
        """Seconds of the pause that runs, or else of the next one."""
        return self._pause

    def failed(self, now: float, reason: str) -> bool:
        """A handler failed; of a half-open one, the probe's. Returns whether it is open by that."""
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
        """A handler succeeded; of a half-open one, the probe's. Returns whether it is closed by that."""
        if self.state == "open":
            return False  # what was begun before says nothing of now
        closed = self.state == "half-open"
        self.state, self.failures, self.reason, self._pause = "closed", 0, None, self._settings.pause
        return closed

    def left(self, now: float) -> float:
        """Seconds until an open one may try again; 0 of others."""
        return max(0.0, self.until - now) if self.state == "open" else 0.0

    def probe(self) -> None:
        """The pause is over: the next message is the probe."""
        if self.state == "open":
            self.state = "half-open"

    def statistics(self, now: float) -> dict[str, Any]:
        """The state, seconds until the next probe, failures in a row, and the failure that opened it."""
        return {"state": self.state, "probe_in": self.left(now), "failures": self.failures, "reason": self.reason}
