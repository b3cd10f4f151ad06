"""The acknowledger: receives the outcomes of handlers, without waiting for the store.

A failed message takes back the messages behind it in its lane, in the same parcel. Otherwise a
later message of its key would overtake it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from headrace.model.errors import LeaseLost
from headrace.model.outcomes import RELEASE, Failure
from headrace.model.specs import Backoff
from headrace.runtime.messages.message import Message
from headrace.runtime.messages.publisher import Publisher
from headrace.runtime.settling.breaker import PipelineBreaker
from headrace.runtime.settling.keeper import Keeper
from headrace.runtime.settling.settler import Settler
from headrace.runtime.settling.transaction_acks import TransactionAcks
from headrace.runtime.slot import NEVER
from headrace.runtime.stored_consumer import LeasedMessages, StoredConsumer


class Acknowledger:
    """Records outcomes in the in-flight tracker, keeps lanes and tracker consistent, and wakes the
    settler.

    Attributes:
        ack: records an ack of a message. It is the tracker's, since it is called for each message.
        flush: waits until everything recorded so far is settled.
        clock: the clock of the leases.

    Args:
        settler: writes the outcomes to the store.
        keeper: extends leases.
        publisher: publishes for handlers.
        breaker: the consumer's circuit breaker, if it has one.
    """

    def __init__(
        self,
        consumer: StoredConsumer,
        leased: LeasedMessages,
        settler: Settler,
        keeper: Keeper,
        publisher: Publisher,
        breaker: PipelineBreaker | None = None,
    ) -> None:
        self.publisher = publisher
        self.flush = settler.flush
        self.ack = leased.in_flight.ack
        self._settings = consumer.settings
        self._lanes = leased.lanes
        self._in_flight = leased.in_flight
        self._settler = settler
        self._keeper = keeper
        self._transaction_acks = TransactionAcks(consumer)
        self.clock = consumer.time.clock
        self._breaker = breaker

    @property
    def backoff(self) -> Backoff:
        """The backoff before the next attempt, in the current settings."""
        return self._settings.spec.backoff

    @property
    def max_deliver(self) -> int:
        """Attempts before a message is exhausted, in the current settings. -1 for no limit."""
        return self._settings.spec.max_deliver

    def expire(self, message: Message) -> None:
        """Settle a message that expired before its handler began. For the store it is done."""
        self._withdraw(message)
        self._in_flight.expire(message)

    def cancel(self, message: Message) -> None:
        """Settle a message that an operator has cancelled. Its handler has ended, or has not begun."""
        self._withdraw(message)
        self._in_flight.cancel(message)

    def _withdraw(self, message: Message) -> None:
        message.settled = True
        if self._breaker is not None:
            self._breaker.back(message)  # nothing was tried

    async def ack_within(self, message: Message, tx: Any) -> None:
        """Ack a message in your own transaction. Earlier messages of its lane are settled first.

        Raises:
            LeaseLost, ConfigurationError: see `Message.ack`.
        """
        if message.transaction is not None:
            raise self._transaction_acks.refuse()
        if message.settled:
            return
        if self._in_flight.unsettled(message.lane):
            await self._settler.flush()
        await self._transaction_acks.ack(message, tx)

    async def confirm(self, message: Message, failed: Callable[[Message, BaseException], None]) -> None:
        """Record the outcome of a message that the handler has acked in a transaction of its own.

        Args:
            failed: called with the message and the reason if that was not committed.
        """
        try:
            error = await self._transaction_acks.error(message)
        except BaseException:
            # If it turns out to be committed, giving the message back changes nothing in the store.
            self.give_up(message)
            raise
        if error is None:
            message.lease.note_durable(message.seq)
            self.ack(message)
        else:
            message.settled = False
            failed(message, error)

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

    def _back(self, message: Message, failure: Failure) -> None:
        if self._breaker is not None:
            self._breaker.back(message)
        self._lanes.give_back(message.lane)
        if failure.delay is not None and message.alive_until < NEVER:
            failure = self._within_life(message, failure, failure.delay)
        self._in_flight.fail(message, failure)

    def _within_life(self, message: Message, failure: Failure, delay: float) -> Failure:
        """Let a message wait no longer than it lives, since the next message of its key waits, too."""
        left = max(message.alive_until - self.clock(), 0.0)
        return msgspec.structs.replace(failure, delay=min(delay, left))

    async def settle_now(self, message: Message, failure: Failure | None) -> None:
        """Record an outcome on behalf of the handler, and wait until the store has it."""
        message.lease.note_seconds(message.seq, message.began, self.clock())
        if failure is None:
            self.ack(message)
        else:
            self.fail(message, failure)
        await self._settler.flush()

    async def extend_now(self, message: Message) -> None:
        """Extend this consumer's leases now. Raises `LeaseLost`."""
        await self._keeper.extend()
        if message.lease.lost:
            raise LeaseLost(
                f"The lease of message {message.seq} of {message.stream!r} was lost. Another process may hold the message."
            )
