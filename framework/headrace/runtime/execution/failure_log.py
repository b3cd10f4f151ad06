"""Logs the failures of messages, with the reason and the consequence. Beyond a rate limit they are
only counted."""

from __future__ import annotations

import logging

from headrace.model.outcomes import Failure
from headrace.runtime.messages.message import Message
from headrace.runtime.pipeline.wiring import Clock

logger = logging.getLogger("headrace")

BURST = 10
"""Failures that are logged in full per second. More are only counted."""


class FailureLog:
    """Logs the failures of one consumer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = float("-inf")
        self._told = 0
        self._untold = 0

    def tell(self, message: Message, failure: Failure) -> None:
        """Log a failure, or count it. The traceback of a rejection is stored only in the dead letter."""
        now = self._clock()
        if now - self._since >= 1.0:
            if self._untold:
                logger.warning("%s: %d more messages failed", message.consumer, self._untold)
            self._since, self._told, self._untold = now, 0, 0
        if self._told >= BURST:
            self._untold += 1
            return
        self._told += 1
        logger.warning(
            "%s: %s (seq %d, attempt %d) %s: %s",
            message.consumer, message.key, message.seq, message.attempt, _becomes(failure), _why(failure),
        )  # fmt: skip


def _becomes(failure: Failure) -> str:
    if failure.kind == "retry":
        return f"failed, and comes again in {failure.delay or 0:.3g} s or is exhausted"
    return "goes to the dead letters"


def _why(failure: Failure) -> str:
    if failure.kind != "retry" or failure.traceback is None:
        return failure.error or ""
    return f"{failure.error}\n{failure.traceback.rstrip()}"
