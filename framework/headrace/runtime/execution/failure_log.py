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

    def failed(self, message: Message, failure: Failure, max_deliver: int = -1) -> None:
        """Log a failure, or count it. The traceback of a rejection is stored only in the dead letter.

        Args:
            max_deliver: attempts before a message is exhausted, -1 for no limit.
        """
        now = self._clock()
        if now - self._since >= 1.0:
            if self._skipped:
                log.warning(
                    "more messages failed", stream=message.stream, consumer=message.consumer, messages=self._skipped
                )
            self._since, self._logged, self._skipped = now, 0, 0
        if self._logged >= BURST:
            self._skipped += 1
            return
        self._logged += 1
        if failure.kind == "release":
            log.warning(
                "message released", stream=message.stream, consumer=message.consumer, key=message.key, seq=message.seq,
                retry_in=failure.delay, error=failure.error,
            )  # fmt: skip
            return
        failed = failure.kind == "retry"
        exhausted = failed and -1 != max_deliver <= message.attempt
        log.warning(
            "message exhausted" if exhausted else "message failed" if failed else "message rejected",
            stream=message.stream, consumer=message.consumer, key=message.key, seq=message.seq, attempt=message.attempt,
            retry_in=(failure.delay or 0.0) if failed and not exhausted else None, error=failure.error,
            traceback=failure.traceback.rstrip() if failed and failure.traceback else None,
        )  # fmt: skip
