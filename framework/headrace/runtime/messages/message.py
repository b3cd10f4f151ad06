"""The message that a handler receives."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from headrace.flow.lease import Lease
from headrace.model.clock import Clock, from_microseconds
from headrace.model.durations import Duration, seconds
from headrace.model.errors import LeaseLost
from headrace.model.messages import payloads
from headrace.model.outcomes import Failure
from headrace.model.specs import Backoff
from headrace.runtime.calls import Call
from headrace.runtime.messages.failures import nacked, rejected, snoozed
from headrace.runtime.messages.publisher import Publisher

if TYPE_CHECKING:
    from headrace.runtime.messages.transaction import Transaction


class Acknowledger(Protocol):
    """The acknowledger, which receives the outcomes. See `headrace.runtime.settling.acknowledger`."""

    publisher: Publisher
    clock: Clock

    @property
    def backoff(self) -> Backoff: ...

    async def ack_within(self, message: Message, tx: Any) -> None: ...
    async def settle_now(self, message: Message, failure: Failure | None) -> None: ...
    async def extend_now(self, message: Message) -> None: ...


class Message(msgspec.Struct, eq=False, gc=False):
    """A message that is delivered to a handler.

    Attributes:
        stream, consumer: the names of its stream and consumer.
        key: the routing key.
        seq: its sequence number in the stream.
        attempt: the number of this delivery to the consumer, from 1.
    """

    stream: str
    consumer: str
    key: str
    seq: int
    attempt: int
    created: int
    """When it was published, in microseconds as Postgres counts them."""
    raw: str
    """The payload as JSON text: as it was published, or decoded and brought to the present version if the stream has
    a codec or upcasters."""
    raw_headers: str | None
    lease: Lease
    lane: Hashable
    _acknowledger: Acknowledger
    _payload: Any = msgspec.UNSET
    settled: bool = False
    """Whether it has an outcome, because of `ack`, `nack` or `reject`, or because the handler has ended."""
    crashes: int = 0
    """How often a worker died while it held the message. See `headrace.runtime.execution.suspects`."""
    transaction: Transaction | None = None
    """The transaction of the handler, if the handler is transactional."""
    xid: int | None = None
    """The id of the transaction in which the handler has acked it, to be looked up. See
    `headrace.runtime.settling.transaction_acks`."""
    began: float | None = None
    """When its handler began, on the clock of the process, if that was measured."""
    alive_until: float = float("inf")
    """When it expires, on the clock of the process."""
    call: Call | None = None
    """The call of the handler for this message, if telemetry observes it. None for the usual one."""
    plain: bool = True
    """Whether nothing about this delivery is special: it has no time to live, no worker died while it held the message,
    and telemetry does not observe it."""

    def __repr__(self) -> str:
        """Return what names the delivery. The payload and the headers may be large or secret, and a log is no place for them."""
        return f"<Message {self.stream}/{self.consumer} seq={self.seq} key={self.key!r} attempt={self.attempt}>"

    @property
    def messages(self) -> tuple[Message]:
        """The message itself, as a tuple. A `Batch` has more."""
        return (self,)

    @property
    def created_at(self) -> datetime:
        """When it was published."""
        return from_microseconds(self.created)

    @property
    def data(self) -> Any:
        """The payload, decoded into the handler's annotated type, or into plain Python values if there
        is none."""
        if self._payload is msgspec.UNSET:
            self._payload = msgspec.json.decode(self.raw)
        return self._payload

    @property
    def headers(self) -> dict[str, Any]:
        """The headers. Empty if it has none. The time to live is left out, so that a message that you publish with these
        headers does not expire because this one does."""
        if not self.raw_headers:
            return {}
        headers: dict[str, Any] = msgspec.json.decode(self.raw_headers)
        headers.pop(payloads.EXPIRES_IN_HEADER, None)
        return headers

    @property
    def expires_at(self) -> datetime | None:
        """When it expires, if it has a time to live. A handler that has begun by then is not stopped."""
        return payloads.expiry(self.raw_headers, self.created_at)

    @property
    def cancelled(self) -> bool:
        """Whether an operator has cancelled it while it is at work, see `Admin.cancel`. An async handler is cancelled, and one
        in a process is killed. A handler in a thread, and one of a batch that has other messages, can look here."""
        return self.lease.cancelled is not None and self.seq in self.lease.cancelled

    async def publish(self, stream: str, key: str, data: Any, **options: Any) -> int | None:
        """Publish a message. In a transactional handler it commits together with the handler's writes
        and its ack.

        In other handlers it is published immediately. Takes what `App.publish` takes, and returns and
        raises the same.
        """
        if self.transaction is not None:
            options.setdefault("tx", self.transaction)
        return await self._acknowledger.publisher.publish(stream, key, data, **options)

    async def ack(self, tx: Any = None) -> None:
        """Ack the message now, before the handler ends. The rest of the handler has no effect on the outcome.

        Args:
            tx: a transaction of yours on the same database. The ack commits with it. It is a
                `Transaction`, or a connection or session that `headrace.drivers` supports. Make the
                ack the last statement before the commit. The transaction is looked up when the
                handler ends. If it was rolled back, the attempt has failed.

        Raises:
            LeaseLost: the lease is lost, and another process may have the message. The ack changed
                nothing. The writes in `tx` can't be committed.
            ConfigurationError: `tx` is no transaction, or the handler is transactional, so that its
                ack is in its own transaction.
        """
        if tx is not None or self.transaction is not None:
            await self._acknowledger.ack_within(self, tx)
        else:
            await self._settle(None)

    async def nack(self, delay: Duration | None = None) -> None:
        """Request redelivery after `delay`, or after the consumer's backoff if it is None. Raises
        `LeaseLost`."""
        after = None if delay is None else seconds(delay, "delay")
        await self._settle(nacked(after, self.attempt, self._acknowledger.backoff))

    async def snooze(self, delay: Duration) -> None:
        """Request redelivery after `delay`, without counting the attempt. Raises `LeaseLost`."""
        await self._settle(snoozed(seconds(delay, "delay")))

    async def reject(self, reason: str = "rejected by the handler") -> None:
        """Make it a dead letter.

        Args:
            reason: the error that the dead letter shows.

        Raises:
            LeaseLost: the lease expired, or was ended.
        """
        await self._settle(rejected(reason))

    async def extend(self) -> None:
        """Extend the lease to the consumer's `ack_wait` from now.

        This happens automatically for running handlers, every half of `ack_wait`.

        Raises:
            LeaseLost: this process no longer holds the lease.
        """
        await self._acknowledger.extend_now(self)

    async def _settle(self, failure: Failure | None) -> None:
        if self.settled:
            return
        self.settled = True
        await self._acknowledger.settle_now(self, failure)
        if self.lease.lost:
            raise LeaseLost(
                f"The lease of message {self.seq} of {self.stream!r} was lost. Its outcome changed nothing."
            )


def lease_time(messages: Sequence[Message]) -> float:
    """Return for how many seconds the leases of all these messages still hold, where the work on them begins. The process
    may have been frozen since they left their lane, while they waited for a thread, a process, a connection or a
    dependency.

    Raises:
        LeaseLost: one of them is over. Another process may have the message.
    """
    now, until = messages[0]._acknowledger.clock(), float("inf")
    for message in messages:
        if message.settled:
            continue
        until = min(until, message.lease.deadline)
        if until <= now:
            raise LeaseLost(f"The lease of message {message.seq} of {message.stream!r} ended before its handler began.")
    return until - now
