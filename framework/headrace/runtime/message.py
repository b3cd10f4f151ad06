"""The message as a handler sees it."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from headrace.flow.custody import Lease
from headrace.model.durations import Duration, seconds
from headrace.model.errors import LeaseLost
from headrace.model.outcomes import Failure
from headrace.model.specs import Backoff
from headrace.runtime.failures import nacked, rejected
from headrace.runtime.publisher import Publisher

if TYPE_CHECKING:
    from headrace.runtime.own_acks import OwnAcks
    from headrace.runtime.transaction import Transaction


class Desk(Protocol):
    """Where outcomes are handed in; see `headrace.runtime.desk`."""

    publisher: Publisher
    own: OwnAcks

    @property
    def backoff(self) -> Backoff: ...

    async def settle_now(self, message: Message, failure: Failure | None) -> None: ...
    async def extend_now(self, message: Message) -> None: ...


class Message(msgspec.Struct, eq=False, gc=False):
    """A message, delivered to a handler.

    Attributes:
        stream, consumer: their names.
        key: the routing key.
        seq: its place in the stream.
        attempt: which delivery to this consumer this is; 1 is the first.
        created_at: when it was published.
    """

    stream: str
    consumer: str
    key: str
    seq: int
    attempt: int
    created_at: datetime
    raw: str
    """The payload as it was published: JSON text."""
    raw_headers: str | None
    lease: Lease
    lane: Hashable
    _desk: Desk
    _payload: Any = msgspec.UNSET
    settled: bool = False
    """Whether it has its outcome: by `ack`, `nack` or `reject`, or because the handler has ended."""
    crashes: int = 0
    """How often a worker died that held it; see `headrace.runtime.suspects`."""
    transaction: Transaction | None = None
    """The one that its handler runs in, if that is transactional."""
    xid: int | None = None
    """The transaction that its handler has acked it in, to be looked up; see `headrace.runtime.own_acks`."""

    @property
    def messages(self) -> tuple[Message]:
        """Itself; a `Batch` has more."""
        return (self,)

    @property
    def data(self) -> Any:
        """The payload: decoded into the handler's annotated type, or else as plain Python values."""
        if self._payload is msgspec.UNSET:
            self._payload = msgspec.json.decode(self.raw)
        return self._payload

    @property
    def headers(self) -> dict[str, Any]:
        """The headers; empty when it has none."""
        return msgspec.json.decode(self.raw_headers) if self.raw_headers else {}

    async def publish(self, stream: str, key: str, data: Any, **options: Any) -> int | None:
        """Publish a message: in a transactional handler together with its writes and its ack, or else at once.

        Takes what `App.publish` takes, and returns and raises the same.
        """
        if self.transaction is not None:
            options.setdefault("tx", self.transaction)
        return await self._desk.publisher.publish(stream, key, data, **options)

    async def ack(self, tx: Any = None) -> None:
        """Settle it as done now, before the handler ends; what the handler does afterwards no longer counts.

        Args:
            tx: a transaction of yours, on the same database, for the ack to commit with: a `Transaction`, or a connection or session
                as `headrace.drivers` knows them. Make it the last statement before the commit. It is looked up when the handler
                ends: if it was rolled back, the attempt has failed.

        Raises:
            LeaseLost: somebody else may have it by now, and the ack changed nothing; what is in `tx` can't be committed.
            ConfigurationError: `tx` is no transaction; or the handler is transactional, and has no use for this.
        """
        if tx is not None or self.transaction is not None:
            await self._desk.own.ack(self, tx)
        else:
            await self._settle(None)

    async def nack(self, delay: Duration | None = None) -> None:
        """Have it again after `delay`, or when None after the consumer's backoff. Raises `LeaseLost`."""
        after = None if delay is None else seconds(delay, "delay")
        await self._settle(nacked(after, self.attempt, self._desk.backoff))

    async def reject(self, reason: str = "rejected by the handler") -> None:
        """Send it to the dead letters. Raises `LeaseLost`."""
        await self._settle(rejected(reason))

    async def extend(self) -> None:
        """Hold the lease for the consumer's `ack_wait` from now. Done for running handlers anyway, at half that time.

        Raises:
            LeaseLost: it is no longer ours.
        """
        await self._desk.extend_now(self)

    async def _settle(self, failure: Failure | None) -> None:
        if self.settled:
            return
        self.settled = True
        await self._desk.settle_now(self, failure)
        if self.lease.lost:
            raise LeaseLost(
                f"The lease of message {self.seq} of {self.stream!r} was lost; its outcome changed nothing."
            )
