"""Custody: what this process has leased, what became of it, and what to tell the store next.

A lease whose messages are all acked is settled whole, by its id. One that is partly done is rewritten by the store,
which costs more, so its acks wait a little for the rest of it; anything that is not an ack waits for nobody.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from headrace.model.outcomes import Failure, Settlement
from headrace.model.records import Lost

LINGER = 0.05
"""Seconds that the acks of a lease wait for the rest of it."""


class Lease:
    """One lease of ours. `deadline` is on the caller's clock, and never later than the store's own."""

    __slots__ = ("deadline", "done", "failed", "id", "left", "lost")

    def __init__(self, lease_id: int, size: int, deadline: float) -> None:
        self.id = lease_id
        self.left = size  # messages without an outcome
        self.deadline = deadline
        self.done: list[int] = []  # acked, and not yet collected
        self.failed = False  # whether it has failures that are not yet collected
        self.lost = False


class Held(Protocol):
    """A message in custody."""

    @property
    def seq(self) -> int: ...
    @property
    def lane(self) -> Hashable: ...
    @property
    def lease(self) -> Lease: ...


T = TypeVar("T", bound=Held)


class Parcel:
    """A settlement on its way; the leases that end with it, the messages that failed, and the keys of those."""

    __slots__ = ("ending", "failures", "keys", "messages", "settlement")

    def __init__(self) -> None:
        self.messages = 0  # how many have their outcome in it
        self.settlement = Settlement([], [], [], [])
        self.ending: list[Lease] = []
        self.keys: list[Hashable] = []
        self.failures: list[tuple[Any, Failure]] = []

    def add(self, lease: Lease, seq: int, failure: Failure | None) -> None:
        self.messages += 1
        if not lease.lost:
            self.settlement.leases.append(lease.id)
            self.settlement.seqs.append(seq)
            self.settlement.failures.append(failure)


class Custody(Generic[T]):
    """The leases of one consumer in one process.

    Outcomes are recorded by `ack` and `fail`, and collected for the store by `collect`. Parcels are sent one at a time,
    and each until it has arrived: a lease may be settled whole only when all that was said of it before is known.

    Attributes:
        leases: those that are not settled yet, by id.
        held: messages that are not settled yet.
        acked, failed, lost: counts of messages; released ones are none of these.
    """

    def __init__(self) -> None:
        self.leases: dict[int, Lease] = {}
        self.held = 0
        self.acked = 0
        self.failed = 0
        self.lost = 0
        self._whole: list[Lease] = []
        self._partly: dict[int, Lease] = {}
        self._partly_since = 0.0
        self._failures: list[tuple[T, Failure]] = []

    @property
    def urgent(self) -> bool:
        """Whether there is something to tell the store at once."""
        return bool(self._whole or self._failures)

    @property
    def due(self) -> float | None:
        """When acks of unfinished leases have waited long enough; None when there are none."""
        return self._partly_since + LINGER if self._partly else None

    def take(self, lease_id: int, size: int, deadline: float) -> Lease:
        """A new lease of `size` messages."""
        self.held += size
        self.leases[lease_id] = lease = Lease(lease_id, size, deadline)
        return lease

    def ack(self, message: T, now: float) -> bool:
        """The message is done. Returns whether that is news for the settler: a lease is done, or acks begin to wait."""
        lease = message.lease
        self.acked += 1
        lease.left -= 1
        lease.done.append(message.seq)
        if lease.left:
            if lease.id in self._partly or lease.lost:
                return False
            if not self._partly:
                self._partly_since = now
            self._partly[lease.id] = lease
            return len(self._partly) == 1
        self._partly.pop(lease.id, None)
        if not lease.failed:  # or else it is collected along with its failures
            self._whole.append(lease)
        return True

    def fail(self, message: T, failure: Failure) -> None:
        """The message is not done, and goes back to the store or to the dead letters."""
        lease = message.lease
        lease.left -= 1
        lease.failed = True
        self._failures.append((message, failure))
        if failure.kind != "release":
            self.failed += 1

    def collect(self, now: float, *, everything: bool = False) -> Parcel | None:
        """What to tell the store now, or None. Of unfinished leases, acks that have waited, or `everything`."""
        parcel = Parcel()
        touched: dict[int, Lease] = {}
        for message, failure in self._failures:
            touched[message.lease.id] = message.lease
            parcel.keys.append(message.lane)
            parcel.add(message.lease, message.seq, failure)
        if self._partly and (everything or now >= self._partly_since + LINGER):
            touched.update(self._partly)
        for lease in touched.values():
            for seq in lease.done:
                parcel.add(lease, seq, None)
            lease.done = []
            lease.failed = False
            self._partly.pop(lease.id, None)
            if not lease.left:
                parcel.ending.append(lease)
        for lease in self._whole:
            parcel.ending.append(lease)
            parcel.messages += len(lease.done)
            if not lease.lost:
                parcel.settlement.whole.append(lease.id)
        parcel.failures = self._failures
        self._whole, self._failures = [], []
        return parcel if parcel.messages else None

    def settled(self, parcel: Parcel, lost: Iterable[Lost]) -> list[Lease]:
        """The parcel has arrived. Returns the leases that turned out to be lost."""
        self.held -= parcel.messages
        gone = {}
        for item in lost:
            self.lost += 1
            lease = self.leases.pop(item.lease_id, None)
            if lease is not None:
                lease.lost = True
                gone[lease.id] = lease
        for lease in parcel.ending:
            self.leases.pop(lease.id, None)
        return list(gone.values())

    def extended(self, asked: Iterable[Lease], alive: Iterable[int], deadline: float) -> list[Lease]:
        """Of the leases that an extension was `asked` for, `alive` hold until `deadline`. Returns those that are lost."""
        still = set(alive)
        gone = []
        for lease in asked:
            if lease.id in still:
                lease.deadline = deadline
            elif lease.left and lease.id in self.leases:  # one that is done may have been settled meanwhile
                del self.leases[lease.id]
                lease.lost = True
                self.lost += lease.left
                gone.append(lease)
        return gone

    def statistics(self) -> dict[str, int]:
        """Leases and messages held, and messages acked, failed and lost so far."""
        return {
            "leases": len(self.leases),
            "held": self.held,
            "acked": self.acked,
            "failed": self.failed,
            "lost": self.lost,
        }
