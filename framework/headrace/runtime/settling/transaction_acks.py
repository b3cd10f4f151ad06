"""Acks in a transaction that you bring and commit yourself: `await message.ack(tx=session)`.

Whether it was committed is known only after the handler has ended. Then the transaction is looked
up, before the next message of the key starts.
"""

from __future__ import annotations

from typing import Any

from headrace import drivers, store
from headrace.model.errors import ConfigurationError, HeadraceError, LeaseLost
from headrace.model.watching import history_log
from headrace.runtime.isolation import undisturbed
from headrace.runtime.messages.message import Message
from headrace.runtime.messages.transaction import was_committed
from headrace.runtime.stored_consumer import StoredConsumer
from headrace.store.database.errors import translated

_ANSWERS = {True: "ok", False: "refused", None: "unknown"}


class RolledBack(HeadraceError):
    """The transaction in which a handler acked its message was rolled back. The message is delivered again."""


class TransactionAcks:
    """Acks messages of one consumer in the transactions of its handlers."""

    def __init__(self, consumer: StoredConsumer) -> None:
        self._stored = consumer
        self._database = consumer.database
        self._consumer = consumer.id
        self._name = consumer.settings.spec.name
        self._clock = consumer.time.clock
        self._now = consumer.time.now

    async def ack(self, message: Message, tx: Any) -> None:
        """Ack a message in a transaction. Raises `LeaseLost`, and `ConfigurationError` if `tx` is none."""
        executor = drivers.executor(tx)
        await drivers.check_transaction(executor)
        with translated("the given connection"):
            lease, now = message.lease, self._now()
            message.xid = await store.ack(
                executor,
                self._consumer,
                [lease.id],
                [message.seq],
                now=now,
                history=lease.history,
                handled=self._stored.handled(message),
            )
        message.settled = True
        if history_log.LOG is not None:
            history_log.LOG.acked_within(self._consumer, message)

    def refuse(self) -> ConfigurationError:
        """Return the error for an ack in a handler that has a transaction of its own."""
        return ConfigurationError(
            f"The handler {self._name!r} is transactional, so its own transaction acks the message. Leave out ack(), and return."
        )

    def _lost(self, message: Message) -> bool:
        return message.lease.deadline <= self._clock()

    async def error(self, message: Message) -> HeadraceError | None:
        """Look up whether the transaction was committed. Returns None if it was, and otherwise the reason
        why the message failed."""
        assert message.xid is not None
        xid, message.xid = message.xid, None
        acks = store.Acks(self._consumer, [message.lease.id], [message.seq])
        committed = await undisturbed(
            was_committed, self._database, xid, acks, f"{self._name}: a commit", lambda: self._lost(message)
        )
        if history_log.LOG is not None:
            history_log.LOG.write("answer", call=f"x{xid}", answer=_ANSWERS[committed], lost=[])
        if committed:
            return None
        if committed is None:
            return LeaseLost(
                f"The transaction in which message {message.seq} was acked is still open, and its lease is lost."
            )
        return RolledBack("The transaction in which the handler acked the message was rolled back.")
