"""Failure handling: turns a failed call of a handler into the outcome of its message, and logs it."""

from __future__ import annotations

import msgspec

from headrace.model.clock import Clock
from headrace.model.outcomes import CANCEL, RELEASE, Failure
from headrace.runtime.execution.failure_log import FailureLog
from headrace.runtime.formats.codec import UnreadablePayload
from headrace.runtime.formats.format import sealed
from headrace.runtime.messages.failures import failure_of, invalid, timed_out
from headrace.runtime.messages.message import Message
from headrace.runtime.settling.acknowledger import Acknowledger
from headrace.runtime.slot import ActorSlot
from headrace.runtime.user_code import leave_out_our_frames


class FailureHandler:
    """Handles the failures of one consumer.

    Args:
        timeout: seconds that a handler may take, or None.
        stoppable: whether a handler that exceeds the timeout can be stopped.
        opens: whether the consumer opens payloads that a codec has encoded.

    Attributes:
        log: logs the failures.
    """

    def __init__(
        self, acknowledger: Acknowledger, clock: Clock, timeout: float | None, *, stoppable: bool, opens: bool = False
    ) -> None:
        self._acknowledger = acknowledger
        self._timeout = timeout
        self._stoppable = stoppable
        self._opens = opens
        self.log = FailureLog(clock)

    def undecodable(self, message: Message, error: BaseException) -> None:
        """Settle a message with a payload that can't be decoded into the handler's type."""
        if not self._opens and sealed(message.raw_headers):
            error = UnreadablePayload(
                f"The payload is encoded, and this process doesn't declare {message.stream!r} with its codec: pass codec=…."
            )
        if isinstance(error, (msgspec.MsgspecError, UnicodeError, RecursionError)):
            self.settle(message, invalid(error))
        else:  # raised by your code in a type, such as __post_init__
            self.failed(message, error)

    def failed(self, message: Message, error: BaseException, *, repeats: bool = False) -> None:
        """Settle a message after its handler raised an exception, or returned a `Retry` or a `Reject`.

        Args:
            repeats: whether this exception is logged for another message of its batch.
        """
        leave_out_our_frames(error)
        failure = failure_of(error, message.attempt, self._acknowledger.backoff)
        self.settle(message, msgspec.structs.replace(failure, repeats=True) if repeats else failure)

    def stopped(self, message: Message, slot: ActorSlot) -> None:
        """Settle a message after its handler was cancelled. A timeout counts as a failure, the end of
        a drain and the cancellation of the message don't."""
        if message.cancelled:
            self.settle(message, CANCEL)
        elif slot.overdue:
            assert self._timeout is not None
            self.settle(
                message,
                timed_out(self._timeout, message.attempt, self._acknowledger.backoff, stoppable=self._stoppable),
            )
        else:
            self.settle(message, RELEASE)

    def settle(self, message: Message, failure: Failure) -> None:
        """Record this outcome, unless the message has one already. A cancelled message is done with any."""
        if message.settled:
            return
        if message.cancelled:
            self._acknowledger.cancel(message)
            self.log.cancelled(message)
        else:
            message.settled = True
            self._acknowledger.fail(message, failure)
            if failure.kind != "release" or failure.error is not None:
                self.log.failed(message, failure, self._acknowledger.max_deliver)
