"""Acks in a transaction that you bring and commit yourself: `await message.ack(tx=session)`.

Whether it was committed is known only after the handler has ended. Then the transaction is looked
up, before the next message of the key starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headrace import drivers, store
from headrace.model.errors import ConfigurationError, HeadraceError, LeaseLost
from headrace.runtime.messages.message import Message
from headrace.runtime.messages.transaction import was_committed
from headrace.runtime.pipeline.wiring import Time
from headrace.store.database.errors import translated


class RolledBack(HeadraceError):
    """The transaction in which a handler acked its message was rolled back. The message is delivered again."""


class Acking(Protocol):
    """The acknowledger, as this module uses it."""

    def ack(self, message: Message) -> None: ...
    async def settle_before(self, message: Message) -> None: ...
    def give_up(self, message: Message) -> None: ...


class TransactionAcks:
    """Acks messages of one consumer in the transactions of its handlers."""

    def __init__(self, database: store.Database, consumer: int, name: str, acknowledger: Acking, time: Time) -> None:
        self._database = database
        self._consumer = consumer
        self._name = name
        self._acknowledger = acknowledger
        self._clock = time.clock
        self._now = time.now

    async def ack(self, message: Message, tx: Any) -> None:
        """See `Message.ack`."""
        if message.transaction is not None:
            raise ConfigurationError(
                f"The handler {self._name!r} is transactional, its ack is in its transaction anyway: leave ack() out, and return."
            )
        if message.settled:
            return
        executor = drivers.executor(tx)
        await drivers.check_transaction(executor)
        await self._acknowledger.settle_before(message)
        with translated("the given connection"):
            message.xid = await store.ack(
                executor,
                self._consumer,
                [message.lease.id],
                [message.seq],
                now=self._now(),
                timeline=message.lease.timeline,
            )
        message.settled = True

    async def confirm(self, message: Message, failed: Callable[[Message, BaseException], None]) -> bool:
        """Look up the transaction after the handler has ended, and record the outcome.

        Args:
            failed: called with the message and the reason if it was not committed.

        Returns:
            Whether it was committed.
        """
        try:
            error = await self._look_up(message)
        except BaseException:
            # If it turns out to be committed, giving the message back changes nothing in the store.
            self._acknowledger.give_up(message)
            raise
        if error is None:
            message.lease.note_durable(message.seq)
            self._acknowledger.ack(message)
        else:
            message.settled = False
            failed(message, error)
        return error is None

    async def _look_up(self, message: Message) -> HeadraceError | None:
        assert message.xid is not None
        xid, message.xid = message.xid, None
        acks = store.Acks(self._consumer, [message.lease.id], [message.seq])
        committed = await was_committed(
            self._database, xid, acks, f"{self._name}: a commit", until=lambda: message.lease.deadline <= self._clock()
        )
        if committed:
            return None
        if committed is None:
            return LeaseLost(
                f"The transaction in which message {message.seq} was acked is still open, and its lease is lost."
            )
        return RolledBack("The transaction in which the handler acked the message was rolled back.")
