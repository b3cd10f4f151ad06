"""Transactional handlers: the handler's writes, what it publishes and its ack commit together, or not
at all.

    BEGIN ─▶ your handler ─▶ what it returned is published ─▶ headrace.ack; COMMIT; BEGIN of the next one

The ack comes last and is the fence. It raises when the lease was lost, and then nothing is
committed. It is sent together with the COMMIT if the transaction's id is known from the BEGIN. After a
lost answer, the transaction is looked up by that id. If messages wait, the next transaction is begun in the same round
trip. From the ack on, neither a timeout nor the end of
a drain interrupts. Committed messages are marked as settled with no `await` in between, so that a
timeout or drain that would stop the handler sees that they are done.

A message that is not to be acked is not part of the commit. A single one rolls the whole
transaction back. In a batch the rest commits, and this message is settled afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace import store
from headrace.flow.lanes import Lanes
from headrace.model.errors import InvalidInput, LeaseLost, StoreUnavailable
from headrace.model.handling import Handling
from headrace.model.outcomes import Reject, Retry, misreturned
from headrace.runtime.calls import Call
from headrace.runtime.isolation import absorb_cancellation, own_task
from headrace.runtime.messages.batch import Batch
from headrace.runtime.messages.message import Message
from headrace.runtime.messages.publisher import Publisher
from headrace.runtime.messages.staged import StagedMessages
from headrace.runtime.messages.transaction import Transaction
from headrace.runtime.stored_consumer import StoredConsumer
from headrace.store.database.retry import DatabaseRetry

Delivery = Message | Batch

QUICK = 0.05
"""Seconds. After a handler that took less, the next transaction gets its id at the BEGIN, which saves a round trip at its
end. A transaction that has an id holds back the cleaning of dead rows, so the transactions of slow handlers get theirs with
their first write.
"""


class Transactional:
    """Runs the calls of one consumer in transactions.

    Args:
        consumer: the consumer. After its `ack_wait` the server ends an idle transaction.
        handling: whether the handler runs inside the transaction, and the stream that it publishes
            to.
        acked: called for each message whose ack was committed.
        lanes: the consumer's messages. While some wait, the next transaction is begun with the COMMIT of the one before.
    """

    def __init__(
        self,
        consumer: StoredConsumer,
        handling: Handling,
        acked: Callable[[Message], None],
        publisher: Publisher,
        lanes: Lanes[Message],
    ) -> None:
        spec = consumer.settings.spec
        self._stored = consumer
        self._consumer = consumer.id
        self._begins = f"{spec.name}: a transaction"
        self._commits = f"{spec.name}: a commit"
        self._idle = spec.ack_wait
        self._handling = handling
        self._publishes = handling.publishes
        self._acked = acked
        self._database = consumer.database
        self._publisher = publisher
        self._lanes = lanes
        self._quick = False  # whether the last handler was, see `QUICK`
        self._clock = consumer.time.clock
        self._now = consumer.time.now

    def around(self, call: Call) -> Call:
        """Return the call inside its own transaction, or with one after it for the messages that it publishes."""

        async def transacted(payload: Any, delivery: Delivery) -> Any:
            transaction = await self._begin(delivery, assign=self._quick)
            delivery.transaction = transaction
            began = self._clock()
            try:
                result = await _returned(call, payload, delivery)
                self._quick = self._clock() < began + QUICK
                return await self._finish(transaction, delivery, result, begin_next=self._quick)
            finally:
                delivery.transaction = None
                await transaction.end()

        async def publishing(payload: Any, delivery: Delivery) -> Any:
            result = await _returned(call, payload, delivery)
            if result is None or _refused(delivery, result):
                return result
            if isinstance(result, StagedMessages):
                return await self._publish_staged(delivery, result)
            _outgoing(result, self._publishes)  # checked before a connection is taken
            transaction = await self._begin(delivery, assign=True)
            try:
                return await self._finish(transaction, delivery, result)
            finally:
                await transaction.end()

        return transacted if self._handling.transactional else publishing

    async def _publish_staged(self, delivery: Delivery, staged: StagedMessages) -> None:
        """Publish what is staged, ack and commit. Rows that are not committed are deleted."""
        try:
            transaction = await self._begin(delivery, assign=True)
            try:
                if done := _done(delivery):
                    await staged.publish(transaction)
                    await self._commit(transaction, done)
                    return
            finally:
                await transaction.end()
        except BaseException:
            await staged.discard(self._database)
            raise
        await staged.discard(self._database)

    async def _begin(self, delivery: Delivery, *, assign: bool) -> Transaction:
        """Begin a transaction, as soon as the database is available. An outage doesn't fail the
        message.

        Args:
            assign: see `Database.begin`.

        Raises:
            LeaseLost: the outage was longer than the lease.
        """
        database_retry = None
        while True:
            try:
                return await Transaction.begin(self._database, self._publisher, self._idle, assign=assign)
            except StoreUnavailable as error:
                database_retry = database_retry or DatabaseRetry(self._begins)
                await database_retry.wait_after(error)
                if any(message.lease.deadline <= self._clock() for message in delivery.messages):
                    raise LeaseLost("The database was unavailable for longer than the lease of a message.") from error

    async def _finish(
        self, transaction: Transaction, delivery: Delivery, result: Any, *, begin_next: bool = False
    ) -> Any:
        """Publish, ack and commit, unless no message may be acked. Returns the outcome of the rest.

        Args:
            begin_next: begin the transaction of the next message with the COMMIT, if one waits.
        """
        if _refused(delivery, result):
            return result
        outgoing: Sequence[tuple[Any, ...]] = ()
        if self._publishes is not None:
            outgoing, result = _outgoing(result, self._publishes), None
        if done := _done(delivery):
            if len(outgoing) == 1:
                key, data, *headers = outgoing[0]
                await transaction.publish(
                    self._publishes or "", key, data, **({"headers": headers[0]} if headers else {})
                )
            elif outgoing:
                await transaction.publish_many(self._publishes or "", outgoing)
            await self._commit(transaction, done, begin_next=begin_next)
        return result

    async def _commit(self, transaction: Transaction, done: list[Message], *, begin_next: bool = False) -> None:
        acks = store.Acks(self._consumer, [m.lease.id for m in done], [m.seq for m in done])
        now, history = self._now(), done[0].lease.history
        if any(message.lease.history != history for message in done):
            raise LeaseLost(
                "The database crashed, failed over or was restored, and some leases of the batch are from before."
            )

        begin_next = begin_next and self._lanes.waiting > 0
        handled = self._stored.handled(done[0])  # the messages of a batch take the same time
        await transaction.ack_and_commit(
            acks, self._commits, now=now, history=history, handled=handled, begin_next=begin_next
        )
        for message in done:
            message.settled = True
            message.lease.note_durable(message.seq)  # if a rewind reverts it, the effects are reverted, too
            self._acked(message)


def _done(delivery: Delivery) -> list[Message]:
    """The messages to ack."""
    return delivery.done if isinstance(delivery, Batch) else [] if delivery.settled else [delivery]


async def _returned(call: Call, payload: Any, delivery: Delivery) -> Any:
    """Call the handler. A cancellation that it has left must not reach the commit, and its stop must prevent that."""
    result = await call(payload, delivery)
    if (task := own_task()).cancelling():
        await absorb_cancellation(task)
    if (error := misreturned(result)) is not None:
        raise error
    return result


def _refused(delivery: Delivery, result: Any) -> bool:
    """Whether the handler returned a failure, which in a batch applies to each message."""
    if not isinstance(result, (Retry, Reject)):
        return False
    if isinstance(delivery, Batch):
        delivery.set_outcomes([result] * len(delivery))
    return True


def _outgoing(result: Any, stream: str | None) -> Sequence[tuple[Any, ...]]:
    """Return the messages that a handler with `publishes` returned. Raises `InvalidInput`."""
    if result is None:
        return ()
    if isinstance(result, tuple):
        result = [result]
    if isinstance(result, list) and all(
        isinstance(message, tuple) and 2 <= len(message) <= 3 and isinstance(message[0], str) for message in result
    ):
        return result
    raise InvalidInput(
        f"A handler with publishes={stream!r} returned {_described(result)}. Return (key, data), (key, data, headers), a list of"
        " these, or None."
    )


def _described(result: Any) -> str:
    """The returned value, without its contents: they may be secret, and the error is stored with the message."""
    if isinstance(result, (list, tuple)):
        kinds = [type(one).__name__ for one in result[:4]]
        return f"a {type(result).__name__} of {', '.join(kinds)}{', …' if len(result) > 4 else ''}"
    return type(result).__name__
