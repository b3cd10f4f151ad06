"""The acknowledger (`Acknowledger`): receives the outcomes of handlers, without waiting for the store.

A failed message takes back the messages behind it in its lane, in the same parcel. Otherwise a
later message of its key would overtake it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.flow.in_flight import InFlightTracker
from headrace.flow.lanes import Lanes
from headrace.model.errors import LeaseLost
from headrace.model.outcomes import RELEASE, Failure
from headrace.model.specs import Backoff
from headrace.runtime.execution.transaction_acks import TransactionAcks
from headrace.runtime.messages.message import Message
from headrace.runtime.messages.publisher import Publisher
from headrace.runtime.pipeline.breaker import PipelineBreaker
from headrace.runtime.pipeline.settings import Settings
from headrace.runtime.pipeline.wiring import Clock, Keeping, Settling


class Acknowledger:
    """Records outcomes in the in-flight tracker, keeps lanes and tracker consistent, and wakes the
    settler.

    Args:
        guard: the consumer's circuit breaker, if it has one.
    """

    def __init__(
        self, lanes: Lanes[Message], in_flight: InFlightTracker[Message], settings: Settings, publisher: Publisher, clock: Clock,
        breaker: PipelineBreaker | None = None,
    ) -> None:  # fmt: skip
        self.publisher = publisher
        self._settings = settings
        self._lanes = lanes
        self._in_flight = in_flight
        self._clock = clock
        self._breaker = breaker
        self.settler: Settling  # the next parts, set by the pipeline
        self.keeper: Keeping
        self.transaction_acks: TransactionAcks
        self.on_cleared: Callable[[], None] = lambda: None

    @property
    def backoff(self) -> Backoff:
        """The backoff before the next attempt, in the current settings."""
        return self._settings.spec.backoff

    @property
    def max_deliver(self) -> int:
        """Attempts before a message is exhausted, in the current settings. -1 for no limit."""
        return self._settings.spec.max_deliver

    def ack(self, message: Message) -> None:
        """Ack a message."""
        if self._in_flight.ack(message, self._clock()):
            self.settler.wake()

    async def settle_before(self, message: Message) -> None:
        """Wait until the earlier messages of its lane are settled, so that its own ack may be committed."""
        if self._in_flight.unsettled(message.lane):
            await self.settler.flush()

    def fail(self, message: Message, failure: Failure) -> None:
        """Record a failure of a message. The messages behind it in its lane are released.

        If the failure opens the circuit breaker, all waiting messages are released.
        """
        breaker = self._breaker
        if breaker is None:
            self._back(message, failure)
            self.release(self._lanes.close(message.lane))
            return
        was_closed = breaker.closed
        self._back(message, breaker.judge(message, failure))
        self.release(self._lanes.close(message.lane))
        if was_closed and not breaker.closed:
            self.release_waiting()

    def give_up(self, message: Message) -> None:
        """Give a message back that was not handled, without counting the attempt, together with those
        behind it."""
        self.fail(message, RELEASE)

    def release(self, messages: Iterable[Message]) -> None:
        """Release messages that were never started, without counting the attempts."""
        for message in messages:
            self._back(message, RELEASE)

    def release_waiting(self) -> None:
        """Release all waiting messages, because the circuit breaker is open."""
        over = self._lanes.over
        self.release(self._lanes.clear())
        self._lanes.over = over  # there will be more messages, unless it drains
        self.on_cleared()

    def _back(self, message: Message, failure: Failure) -> None:
        if self._breaker is not None:
            self._breaker.back(message)
        self._lanes.give_back(message.lane)
        self._in_flight.fail(message, failure)
        self.settler.wake()

    async def settle_now(self, message: Message, failure: Failure | None) -> None:
        """Record an outcome on behalf of the handler, and wait until the store has it."""
        if failure is None:
            self.ack(message)
        else:
            self.fail(message, failure)
        await self.settler.flush()

    async def extend_now(self, message: Message) -> None:
        """Extend this consumer's leases now. Raises `LeaseLost`."""
        await self.keeper.extend()
        if message.lease.lost:
            raise LeaseLost(
                f"The lease of message {message.seq} of {message.stream!r} was lost: somebody else may have it."
            )
