"""Custody: what this process has leased, what became of it, and what to tell the store next.

A lease whose messages are all acked is settled whole, by its id. One that is partly done is rewritten by the store,
which costs more, so its acks linger for the rest of it.

Nothing of a key is settled before what precedes it. The messages of a key may lie in several leases, so a lease that is done
waits while an earlier message of one of its keys lingers in another lease, and a failure takes along everything recorded
before it. Without this rule a crash brings back message 1 of a key, and never message 7, which is settled already.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from headrace.model.outcomes import Failure, Settlement
from headrace.model.records import Lost

LINGER = 0.05
"""Seconds that the acks of a lease wait for the rest of it."""


class Lease:
    """One lease of ours. `deadline` is on the caller's clock, and never later than the store's own."""

    __slots__ = (
        "_lane_of",
        "_lanes",
        "_seqs",
        "deadline",
        "done",
        "durable",
        "failed",
        "id",
        "left",
        "lost",
        "timeline",
    )

    def __init__(
        self,
        lease_id: int,
        seqs: Sequence[int],
        lanes: Sequence[Hashable],
        deadline: float,
        timeline: UUID | None = None,
    ) -> None:
        self.id = lease_id
        self.timeline = timeline  # of the database, see `Batch.timeline`
        self.left = len(seqs)  # messages without an outcome
        self.deadline = deadline
        self.done: list[int] = []  # acked, and not yet collected
        self.durable: set[int] | None = None  # of these, the ones whose ack a transaction has committed already
        self.failed = False  # whether it has failures that are not yet collected
        self.lost = False
        self._seqs = seqs
        self._lanes = lanes
        self._lane_of: dict[int, Hashable] | None = None

    def lane(self, seq: int) -> Hashable:
        """The lane of one of its messages."""
        if self._lane_of is None:
            self._lane_of = dict(zip(self._seqs, self._lanes, strict=True))
        return self._lane_of[seq]

    def lose(self) -> None:
        """It is another's now, or nobody's: what waits of it must not start."""
        self.lost = True
        self.deadline = float("-inf")

    def note_durable(self, seq: int) -> None:
        """A transaction has committed the ack of this message."""
        if self.durable is None:
            self.durable = set()
        self.durable.add(seq)

    def follows(self, other: Lease) -> bool:
        """Whether `other` has, done and not collected, an earlier message of a lane than what is done here."""
        if other.lost or not other.done or min(other.done) > max(self.done):
            return False
        latest: dict[Hashable, int] = {}
        for seq in self.done:
            lane = self.lane(seq)
            latest[lane] = max(seq, latest.get(lane, seq))
        return any(seq < latest.get(other.lane(seq), seq) for seq in other.done)


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
    """A settlement on its way; the leases that end with it, the messages that failed, and the keys of those.

    `timeline` is that of the leases: the outcomes count only there.
    """

    __slots__ = ("acked", "ending", "failures", "keys", "messages", "settlement", "timeline")

    def __init__(self, timeline: UUID | None) -> None:
        self.timeline = timeline
        self.messages = 0  # how many have their outcome in it
        self.settlement = Settlement([], [], [], [])
        self.acked: list[tuple[Lease, list[int]]] = []
        self.ending: list[Lease] = []
        self.keys: list[Hashable] = []
        self.failures: list[tuple[Any, Failure]] = []

    @property
    def outcomes(self) -> Iterator[tuple[Hashable, int]]:
        """The lane and the seq of each message that has its outcome in it."""
        for message, _ in self.failures:
            yield message.lane, message.seq
        for lease, seqs in self.acked:
            for seq in seqs:
                yield lease.lane(seq), seq

    def add_failure(self, message: Held, failure: Failure) -> None:
        """A message that is not done."""
        lease = message.lease
        self.messages += 1
        self.keys.append(message.lane)
        self.failures.append((message, failure))
        if not lease.lost:
            self.settlement.leases.append(lease.id)
            self.settlement.seqs.append(message.seq)
            self.settlement.failures.append(failure)

    def add_acks(self, lease: Lease) -> None:
        """What is done of a lease, message by message."""
        seqs = self._take(lease)
        lease.failed = False
        if not lease.lost:
            self.settlement.leases += [lease.id] * len(seqs)
            self.settlement.seqs += seqs
            self.settlement.failures += [None] * len(seqs)
        if not lease.left:
            self.ending.append(lease)

    def add_whole(self, lease: Lease) -> None:
        """A lease of which everything that is left is done."""
        self._take(lease)
        self.ending.append(lease)
        if not lease.lost:
            self.settlement.whole.append(lease.id)

    def _take(self, lease: Lease) -> list[int]:
        seqs, lease.done = lease.done, []
        self.messages += len(seqs)
        if seqs:
            self.acked.append((lease, seqs))
        return seqs


class Custody(Generic[T]):
    """The leases of one consumer in one process.

    Outcomes are recorded by `ack` and `fail`, and collected for the store by `collect`. Parcels are sent one at a time,
    and each until it has arrived: a lease may be settled whole only when all that was said of it before is known.

    Attributes:
        leases: those that are not settled yet, by id.
        held: messages that are not settled yet.
        linger: seconds that the acks of an unfinished lease wait for the rest of it.
        timeline: of the database, in which all leases that aren't lost were given.
        acked, failed, lost: counts of messages; released ones are none of these.
        on_take: called for each lease.
    """

    def __init__(self) -> None:
        self.on_take: Callable[[], None] = lambda: None
        self.leases: dict[int, Lease] = {}
        self.held = 0
        self.linger = LINGER
        self.timeline: UUID | None = None
        self.acked = 0
        self.failed = 0
        self.lost = 0
        self._whole: list[Lease] = []
        self._behind: list[Lease] = []  # done, and behind what lingers in other leases
        self._partly: dict[int, Lease] = {}
        self._partly_since = 0.0
        self._failures: list[tuple[T, Failure]] = []
        self._sent: Parcel | None = None  # collected, and not yet settled

    @property
    def urgent(self) -> bool:
        """Whether something has been recorded that lingers for nothing: failures, and leases that are done."""
        return bool(self._whole or self._failures or (self._behind and not self._partly))

    @property
    def due(self) -> float | None:
        """When acks of unfinished leases have waited long enough; None when there are none."""
        return self._partly_since + self.linger if self._partly else None

    def take(
        self,
        lease_id: int,
        seqs: Sequence[int],
        lanes: Sequence[Hashable],
        deadline: float,
        timeline: UUID | None = None,
    ) -> Lease:
        """A new lease of these messages, whose lanes run in parallel. Before the first one of another timeline, `void` the others."""
        self.held += len(seqs)
        self.timeline = timeline
        self.leases[lease_id] = lease = Lease(lease_id, seqs, lanes, deadline, timeline)
        self.on_take()
        return lease

    def void(self) -> list[Lease]:
        """The database has begun another timeline: all leases are lost. Returns them."""
        leases = list(self.leases.values())
        self.leases.clear()
        for lease in leases:
            lease.lose()
            self.lost += lease.left + len(lease.done)
        return leases

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

    def unsettled(self, lane: Hashable) -> bool:
        """Whether a message of this lane has an outcome that the store may not have yet, in no transaction either."""
        if any(message.lane == lane for message, _ in self._failures):
            return True
        recorded = [(lease, lease.done) for lease in (*self._partly.values(), *self._whole, *self._behind)]
        if self._sent is not None:
            recorded += self._sent.acked
            if lane in self._sent.keys:
                return True
        return any(
            lease.lane(seq) == lane and (lease.durable is None or seq not in lease.durable)
            for lease, seqs in recorded
            for seq in seqs
        )

    def collect(self, now: float, *, everything: bool = False) -> Parcel | None:
        """What to tell the store now, or None: whatever has been recorded, but for acks that linger and what is behind them.

        Args:
            now: seconds on the clock of `ack`.
            everything: leave nothing behind.
        """
        if everything or self._failures or not self._partly or now >= self._partly_since + self.linger:
            parcel = self._collect_all()
        else:
            parcel = self._collect_done()
        self._sent = parcel if parcel.messages else None
        return self._sent

    def _collect_all(self) -> Parcel:
        parcel = Parcel(self.timeline)
        touched = {message.lease.id: message.lease for message, _ in self._failures}
        for message, failure in self._failures:
            parcel.add_failure(message, failure)
        touched.update(self._partly)
        for lease in touched.values():
            parcel.add_acks(lease)
        for lease in (*self._behind, *self._whole):
            parcel.add_whole(lease)
        self._whole, self._behind, self._failures = [], [], []
        self._partly.clear()
        return parcel

    def _collect_done(self) -> Parcel:
        """The leases that are done, without those that are behind what lingers, or behind such a lease."""
        done, self._whole = self._whole, []
        while done:
            ahead = (*self._partly.values(), *self._behind)
            behind = {lease.id for lease in done if any(lease.follows(other) for other in ahead)}
            if not behind:
                break
            self._behind += [lease for lease in done if lease.id in behind]
            done = [lease for lease in done if lease.id not in behind]
        parcel = Parcel(self.timeline)
        for lease in done:
            parcel.add_whole(lease)
        return parcel

    def settled(self, parcel: Parcel, lost: Iterable[Lost]) -> list[Lease]:
        """The parcel has arrived. Returns the leases that turned out to be lost.

        A message may be lost alone: its ack was committed by a transaction before. Its lease is as good as before.
        """
        self.held -= parcel.messages
        self._sent = None
        gone = {}
        for item in lost:
            self.lost += 1
            lease = self.leases.pop(item.lease_id, None) if item.gone else None
            if lease is not None:
                lease.lose()
                gone[lease.id] = lease
        for lease in parcel.ending:
            self.leases.pop(lease.id, None)
        return list(gone.values())

    def extended(self, asked: Iterable[Lease], alive: Iterable[int], deadline: float) -> list[Lease]:
        """Of the leases that an extension was `asked` for, `alive` hold until `deadline`. Returns those that are lost."""
        still = set(alive)
        gone = []
        for lease in asked:
            if lease.lost:
                continue  # since it was asked for; the store may well hold it still
            if lease.id in still:
                lease.deadline = deadline
            elif lease.left and lease.id in self.leases:  # one that is done may have been settled meanwhile
                del self.leases[lease.id]
                lease.lose()
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
