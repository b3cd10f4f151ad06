"""Verdicts: what became of a message whose handler did not simply return, told to the desk and to the log."""

from __future__ import annotations

import anyio
import msgspec

from headrace.model.outcomes import RELEASE, Failure
from headrace.runtime.bench import Bench
from headrace.runtime.desk import Desk
from headrace.runtime.failure_log import FailureLog
from headrace.runtime.failures import failure_of, invalid, timed_out
from headrace.runtime.message import Message
from headrace.runtime.wiring import Clock


class Verdicts:
    """Judges the failures of one consumer.

    Args:
        timeout: seconds that a handler may take, or None.
        stoppable: whether a handler that takes longer can be stopped.
    """

    def __init__(self, desk: Desk, clock: Clock, timeout: float | None, *, stoppable: bool) -> None:
        self._desk = desk
        self._timeout = timeout
        self._stoppable = stoppable
        self._log = FailureLog(clock)

    def undecodable(self, message: Message, error: Exception) -> None:
        """Its payload is not what the handler takes."""
        if isinstance(error, (msgspec.MsgspecError, UnicodeError, RecursionError)):
            self.settle(message, invalid(error))
        else:  # from code of the user's that a type runs when it is made, such as __post_init__
            self.failed(message, error)

    def failed(self, message: Message, error: BaseException) -> None:
        """Its handler raised, or returned a `Retry` or a `Reject`."""
        self.settle(message, failure_of(error, message.attempt, self._desk.backoff))

    def stopped(self, message: Message, bench: Bench) -> None:
        """Its handler was cancelled: by a timeout, or by the end of the drain, and then that is not the message's fault."""
        if bench.overdue:
            assert self._timeout is not None
            self.settle(
                message, timed_out(self._timeout, message.attempt, self._desk.backoff, stoppable=self._stoppable)
            )
        else:
            self.settle(message, RELEASE)

    def settle(self, message: Message, failure: Failure) -> None:
        """Hand in this outcome, unless it has one."""
        if not message.settled:
            message.settled = True
            self._desk.fail(message, failure)
            if failure.kind != "release":
                self._log.tell(message, failure)


def from_within(error: BaseException) -> bool:
    """Whether it is a cancellation that nobody asked of us: the handler waited for something else that was cancelled."""
    return isinstance(error, anyio.get_cancelled_exc_class()) and anyio.current_effective_deadline() > float("-inf")
