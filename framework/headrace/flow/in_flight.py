"""The in-flight tracker (`InFlightTracker`): the leases of this process, the outcomes of their messages, and
what to settle next.

If all messages of a lease are acked, the lease is settled whole, by its id. The store rewrites a
lease that is partly done, which costs more. So the acks of such a lease linger, to be settled with
the rest of it.

No message is settled before the earlier messages of its key. The messages of a key may lie in
several leases. So a finished lease waits while an earlier message of one of its keys lingers in
another lease, and a failure is sent together with everything recorded before it. Without this rule
a crash could redeliver message 1 of a key but not message 7, which is settled already.

A settlement of one message costs as much as one of fifty. After a small one, finished leases therefore gather for a
moment before the next.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar
from uuid import UUID

from headrace.flow.lease import InFlightMessage, Lease, Parcel, Term
from headrace.flow.signal import Signal
from headrace.model.outcomes import CANCEL, Failure
from headrace.model.records import Lost

LINGER = 0.05
"""Time in seconds that the acks of a lease wait for the rest of it, while at most `CHEAP` messages are in such leases. With
more it is longer in proportion, so that rewriting leases takes a bounded share of the store's time."""

CHEAP = 2000
"""Number of messages in leases that the store rewrites in a few milliseconds."""

GATHER = 0.01
"""Time in seconds from a small settlement to the next one. A crash in between redelivers what was acked meanwhile, as with
`LINGER`."""

MANY = 32
"""Number of messages from which on a settlement is not small, and of finished leases that wait for no more."""

_EVER = float("-inf")


T = TypeVar("T", bound=InFlightMessage)


class InFlightTracker(Generic[T]):
    """Tracks the leases and in-flight messages of one consumer in one process.

    `ack` and `fail` record outcomes, and `collect` gathers them for the store. Parcels are sent one
    at a time, and each is sent again until it has arrived. A lease may be settled whole only when
    the result of all its earlier settlements is known.

    Attributes:
        leases: the leases that are not settled yet, by id.
        held: the number of messages that are not settled yet.
        linger: seconds that the acks of an unfinished lease wait for the rest of it.
        gather: seconds from a small settlement to the next one.
        history: the history of the database in which all leases that aren't lost are known to be held, see
            `headrace.flow.verification`. None before the first check-in.
        acked, expired, cancelled, failed, lost: counts of messages. Released messages are in none of them.
        on_take: there is a new lease.
        on_outcome: there is something to settle, at once or soon: a failure, the first or many leases that are done, or
            the first acks that begin to linger.
    """

    def __init__(self) -> None:
        self.on_take = Signal()
        self.on_outcome = Signal()
        self.leases: dict[int, Lease] = {}
        self.held = 0
        self.linger = LINGER
        self.gather = 0.0
        self.history: UUID | None = None
        self.acked = 0
        self.expired = 0
        self.cancelled = 0
        self.failed = 0
        self.lost = 0
        self._term = Term(_EVER)
        self._whole: list[Lease] = []
        self._behind: list[Lease] = []  # done, but waiting for earlier messages that linger in other leases
        self._partly: dict[int, Lease] = {}
        self._partly_since: float | None = None  # the first `collect` that found acks in them
        self._gather_until = _EVER
        self._failures: list[tuple[T, Failure]] = []
        self._sent: Parcel | None = None  # collected and not settled yet

    @property
    def urgent(self) -> bool:
        """Whether something is recorded that needn't linger: a failure, or a lease that is done."""
        return bool(self._whole or self._failures or (self._behind and not self._partly))

    @property
    def due(self) -> float | None:
        """When what `collect` has left out is to be settled. None if it has left out nothing."""
        lingered = self._lingers_until
        if not self._whole:
            return lingered
        return self._gather_until if lingered is None else min(self._gather_until, lingered)

    @property
    def _lingers_until(self) -> float | None:
        if self._partly_since is None:
            return None
        return self._partly_since + self.linger * max(1.0, sum(lease.size for lease in self._partly.values()) / CHEAP)

    def take(self, lease_id: int, seqs: Sequence[int], lanes: Sequence[Hashable], deadline: float) -> Lease:
        """Record a new lease of these messages, given in `history`, and return it.

        Args:
            lanes: the lane of each message. Different lanes run in parallel.
            deadline: the time on the caller's clock until which the store certainly keeps it.
        """
        self.held += len(seqs)
        self._term.until = min(self._term.until, deadline) if self.leases else deadline
        self.leases[lease_id] = lease = Lease(lease_id, seqs, lanes, deadline, self.history, self._term)
        self.on_take()
        return lease

    @property
    def sent(self) -> Parcel | None:
        """The parcel that was collected and is not known to have arrived."""
        return self._sent

    def lose(self, lease: Lease, hold: int | None = None) -> None:
        """Mark a lease as lost. The store may have a hold in its place, with another id."""
        if not lease.lost:
            self.lost += lease.left + len(lease.done)
        lease.lose()
        self.leases.pop(lease.id, None)
        lease.hold = hold is not None
        if hold is not None:
            if lease.lingers:
                self._partly[hold] = self._partly.pop(lease.id)
            lease.id = hold
            self.leases[hold] = lease

    def is_hold(self, lease_id: int) -> bool:
        """Whether this is a hold, and not a lease."""
        lease = self.leases.get(lease_id)
        return lease is not None and lease.hold

    def is_late(self, now: float) -> bool:
        """Whether the store may have expired the leases, because none was extended in time."""
        return bool(self.leases) and self._term.until <= now

    def verified(self, history: UUID, deadline: float) -> None:
        """Note that the store holds all leases that aren't lost in this history, until `deadline`."""
        self.history = history
        self._term.until = deadline
        for lease in self.leases.values():
            if not lease.lost:
                lease.history = history

    def ack(self, message: T) -> None:
        """Record an ack."""
        lease = message.lease
        self.acked += 1
        lease.done.append(message.seq)
        lease.left -= 1
        if not lease.left:
            self._finish(lease)
        elif not lease.lingers:
            self._linger(lease)

    def expire(self, message: T) -> None:
        """Record that a message expired before its handler began. It is settled like an ack."""
        message.lease.note_expired(message.seq)
        InFlightTracker.ack(self, message)
        self.acked -= 1
        self.expired += 1

    def _finish(self, lease: Lease) -> None:
        """Have a lease settled, because its last message is acked."""
        if lease.lingers:
            lease.lingers = False
            del self._partly[lease.id]
            if not self._partly:
                self._partly_since = None
        if lease.failed:  # it is collected together with its failures
            self.on_outcome()
            return
        self._whole.append(lease)
        if len(self._whole) in (1, MANY):
            self.on_outcome()

    def _linger(self, lease: Lease) -> None:
        """Let the first ack of a lease wait for the rest of it."""
        if not lease.stored:
            return
        lease.lingers = True
        self._partly[lease.id] = lease
        if len(self._partly) == 1:
            self.on_outcome()

    def fail(self, message: T, failure: Failure) -> None:
        """Record a failure or a release. The message goes back to the store or becomes a dead letter."""
        lease = message.lease
        lease.left -= 1
        lease.failed = True
        self._failures.append((message, failure))
        if failure.kind != "release":
            self.failed += 1
        self.on_outcome()

    def cancel(self, message: T) -> None:
        """Record the end of a message that an operator has cancelled. It is settled like a failure, but nothing of it goes
        back to the store, so its key stays open."""
        InFlightTracker.fail(self, message, CANCEL)
        self.failed -= 1
        self.cancelled += 1

    def note_cancelled(self, cancelled: Mapping[int, Iterable[int]]) -> bool:
        """Note which messages an operator has cancelled, by lease. Returns whether one of them is news, and has no outcome that
        was collected."""
        found = False
        for lease_id, seqs in cancelled.items():
            lease = self.leases.get(lease_id)
            if lease is not None and not lease.lost:
                news = (lease.open.keys() & set(seqs)) - (lease.cancelled or set())
                if news:
                    lease.cancelled = (lease.cancelled or set()) | news
                    found = True
        return found

    def unsettled(self, lane: Hashable) -> bool:
        """Whether a message of this lane has an outcome that may not be in the store yet, not even
        through a transaction."""
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
        """Return the outcomes to settle now, or None.

        Lingering acks, and what waits for them, are left out until they are due or a message fails. Finished leases are
        left out while they gather.

        Args:
            now: seconds, monotonic. Acks linger from the first call that leaves them out.
            everything: include lingering acks, and finished leases that gather.
        """
        if self._partly and self._partly_since is None:
            self._partly_since = now
        until = self._lingers_until
        lingered = until is not None and now >= until
        self._sent = None
        if everything or self._failures or lingered:
            parcel = self._collect_all()
        elif now < self._gather_until and 0 < len(self._whole) < MANY:
            return None
        else:
            parcel = self._collect_all() if self._partly_since is None else self._collect_done()
        if parcel.messages:
            self._gather_until = now + self.gather if parcel.messages < MANY else _EVER
            self._sent = parcel
        return self._sent

    def hurry(self) -> None:
        """Let no finished leases gather before the next settlement, because the store may lease no more until then."""
        self._gather_until = _EVER
        if self._whole:
            self.on_outcome()

    def _collect_all(self) -> Parcel:
        parcel = Parcel()
        touched = {message.lease.id: message.lease for message, _ in self._failures}
        for message, failure in self._failures:
            parcel.add_failure(message, failure)
        touched.update(self._partly)
        for lease in touched.values():
            parcel.add_acks(lease)
        for lease in (*self._behind, *self._whole):
            parcel.add_whole(lease)
        self._whole, self._behind, self._failures = [], [], []
        for lease in self._partly.values():
            lease.lingers = False
        self._partly.clear()
        self._partly_since = None
        return parcel

    def _collect_done(self) -> Parcel:
        """Collect the finished leases, except those that wait for a lingering ack, directly or through
        another such lease."""
        done, self._whole = self._whole, []
        while done:
            earliest: dict[Hashable, int] = {}
            for other in (*self._partly.values(), *self._behind):
                other.note_earliest(earliest)
            behind = {lease.id for lease in done if earliest and lease.follows(earliest)}
            if not behind:
                break
            self._behind += [lease for lease in done if lease.id in behind]
            done = [lease for lease in done if lease.id not in behind]
        parcel = Parcel()
        for lease in done:
            parcel.add_whole(lease)
        return parcel

    def settled(self, parcel: Parcel, lost: Iterable[Lost]) -> list[Lease]:
        """Note that the parcel has arrived. Returns the leases that turned out to be lost.

        A single message may be lost while its lease remains valid, because a transaction has
        committed its ack before.
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

    def extended(self, asked: Collection[Lease], alive: Collection[int], deadline: float) -> list[Lease]:
        """Note the result of an extension, perhaps in another thread. If none of the leases `asked` seems to be lost, all
        that are in `alive` hold until `deadline`. Returns those that seem to be lost."""
        held = self.leases.copy()
        asked_ids = {lease.id for lease in asked}
        # A lost one may have a hold in the store. One that is done may have been settled meanwhile.
        missing = [
            lease for lease in asked if not lease.lost and lease.left and lease.id in held and lease.id not in alive
        ]
        if not missing:
            later = (lease.granted_until for lease_id, lease in held.items() if lease_id not in asked_ids)
            self._term.until = min([deadline, *later])
        return missing

    def statistics(self) -> dict[str, int]:
        """Return the numbers of leases and messages held, and of messages acked, expired, cancelled, failed and lost so far."""
        return {
            "leases": len(self.leases),
            "held": self.held,
            "acked": self.acked,
            "expired": self.expired,
            "cancelled": self.cancelled,
            "failed": self.failed,
            "lost": self.lost,
        }
