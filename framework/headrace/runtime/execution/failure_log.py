"""Logs the failures of messages, with the reason and the consequence. Beyond a rate limit they are
only counted."""

from __future__ import annotations

from headrace.model.clock import Clock
from headrace.model.log import Log
from headrace.model.outcomes import Failure
from headrace.runtime.log_burst import Burst
from headrace.runtime.log_context import identity
from headrace.runtime.messages.message import Message

log = Log("headrace")


class FailureLog:
    """Logs the failures of one consumer."""

    def __init__(self, clock: Clock) -> None:
        self._burst = Burst(clock)
        self._spoilt = Burst(clock)

    def failed(self, message: Message, failure: Failure, max_deliver: int = -1) -> None:
        """Log a failure, or count it, unless it was the last attempt: `headrace.runtime.settling.dead_letters` logs that,
        once it is in the store.

        Args:
            max_deliver: attempts before a message is exhausted, -1 for no limit.
        """
        if failure.kind in ("reject", "invalid") or (failure.kind == "retry" and -1 != max_deliver <= message.attempt):
            return
        if self._burst.skipped and self._burst.begins:
            log.warning(
                "more messages failed", stream=message.stream, consumer=message.consumer, messages=self._burst.skipped
            )
        if not self._burst.admits(repeats=failure.repeats):
            return
        if failure.kind == "release":
            log.warning("message released", **identity(message), retry_in=failure.delay, error=failure.error)
            return
        log.warning(
            "message failed",
            **identity(message),
            attempt=message.attempt,
            retry_in=failure.delay or 0.0,
            error_type=failure.error_type,
            error=failure.error,
            exc_info=failure.exception if failure.traceback else None,
        )

    def cancelled(self, message: Message) -> None:
        """Log that the handler of a cancelled message has ended."""
        if self._burst.admits():
            log.info("message cancelled", **identity(message), attempt=message.attempt)

    def left_open(self, consumer: str) -> None:
        """Log that a handler has left a scope open in the task of its actor."""
        if self._spoilt.admits():
            hint = (
                "another task takes the place of the actor's; close async generators that hold a timeout or a task group,"
                " with contextlib.aclosing"
            )
            log.error("scope left open by a handler", consumer=consumer, hint=hint)
