"""Logs the failures of messages, with the reason and the consequence. Beyond a rate limit they are
only counted."""

from __future__ import annotations

from headrace.model.clock import Clock
from headrace.model.log import Log
from headrace.model.outcomes import Failure
from headrace.runtime.messages.message import Message

log = Log("headrace")

BURST = 10
"""Failures that are logged in full per second. More are only counted."""


class FailureLog:
    """Logs the failures of one consumer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = float("-inf")
        self._logged = 0
        self._skipped = 0

    def failed(self, message: Message, failure: Failure) -> None:
        """Log a failure, or count it. The traceback of a rejection is stored only in the dead letter."""
        now = self._clock()
        if now - self._since >= 1.0:
            if self._skipped:
                log.warning("more messages failed", consumer=message.consumer, messages=self._skipped)
            self._since, self._logged, self._skipped = now, 0, 0
        if self._logged >= BURST:
            self._skipped += 1
            return
        self._logged += 1
        retried = failure.kind == "retry"
        log.warning(
            "message failed" if retried else "message rejected",
            consumer=message.consumer, key=message.key, seq=message.seq, attempt=message.attempt,
            retry_in=(failure.delay or 0.0) if retried else None, error=failure.error,
            traceback=failure.traceback.rstrip() if retried and failure.traceback else None,
        )  # fmt: skip
