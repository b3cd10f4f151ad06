"""A lease of this process (`Lease`) with what is known of its messages, and a settlement of several leases (`Parcel`)."""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol
from uuid import UUID

from headrace.model.outcomes import CANCEL, Failure, HandlingReport, Settlement

_NEVER = float("inf")


class Term:
    """The time on the caller's clock until which the store certainly keeps leases. All leases of an owner have the same
    term, since none outlasts another one that expires, see `expire_leases` in parking.sql."""

    __slots__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until


_ENDED = Term(-_NEVER)


class Lease:
    """A lease that this process holds.

    A lost lease may become a hold. The store keeps the keys of its messages for this process, and has
    negated seqs in it. Each key is free again once the outcome of its message is settled.
    """

    __slots__ = (
        "_lane_of",
        "_lanes",
        "_seqs",
        "cancelled",
        "done",
        "durable",
        "expired",
        "failed",
        "granted_until",
        "history",
        "hold",
        "id",
        "left",
        "lingers",
        "lost",
        "seconds",
        "settled",
        "term",
    )

    def __init__(
        self,
        lease_id: int,
        seqs: Sequence[int],
        lanes: Sequence[Hashable],
        granted_until: float,
        history: UUID | None = None,
        term: Term | None = None,
    ) -> None:
        self.id = lease_id
        self.history = history  # the history of the database in which it is known to be held, see `Batch.history`
        self.left = len(seqs)  # messages without an outcome
        self.granted_until = granted_until  # before the first extension
        self.term = term or Term(granted_until)
        self.done: list[int] = []  # acked and not collected yet
        self.durable: set[int] | None = None  # those in `done` with an ack that a transaction has committed already
        self.failed = False  # whether it has failures that are not collected yet
        self.lingers = False  # whether its acks wait for the rest of it
        self.lost = False
        self.hold = False
        self.cancelled: set[int] | None = None  # those that an operator has cancelled, None for none
        self.settled: set[int] | None = None  # those that were collected one by one
        self.expired: list[int] | None = None  # those that expired before their handler began
        self.seconds: dict[int, float] | None = None  # how long handlers took. None if that is not wanted
        self._seqs = seqs
        self._lanes = lanes
        self._lane_of: dict[int, Hashable] | None = None

    @property
    def size(self) -> int:
        """How many messages it had when it was given."""
        return len(self._seqs)

    def lane(self, seq: int) -> Hashable:
        """Return the lane of one of its messages."""
        if self._lane_of is None:
            self._lane_of = dict(zip(self._seqs, self._lanes, strict=True))
        return self._lane_of[seq]

    def lose(self) -> None:
        """Mark the lease as lost. Another process may hold it, or none. Its waiting messages must not start."""
        self.lost = True
        self.term = _ENDED

    @property
    def deadline(self) -> float:
        """The time on the caller's clock from which none of its messages may start, unless it is extended before."""
        return self.term.until

    @property
    def stored(self) -> bool:
        """Whether the store may have it, or a hold in its place."""
        return self.hold or not self.lost

    @property
    def open(self) -> dict[int, Hashable]:
        """The lanes of the messages with no outcome that was collected, by seq."""
        settled = self.settled or ()
        return {seq: lane for seq, lane in zip(self._seqs, self._lanes, strict=True) if seq not in settled}

    @property
    def remaining(self) -> Sequence[int]:
        """The messages with no outcome that was collected one by one, in the store's order."""
        return self._seqs if self.settled is None else [seq for seq in self._seqs if seq not in self.settled]

    def durations(self, seqs: Iterable[int]) -> Iterable[float | None]:
        """Return how long the handlers of these messages took, in seconds, None for those that were not measured."""
        return map((self.seconds or {}).get, seqs)

    def packed_durations(self, seqs: Sequence[int]) -> bytes:
        """Return the same as numbers of IEEE 754 binary32, NaN for those that were not measured."""
        return struct.pack(f">{len(seqs)}f", *map((self.seconds or {}).get, seqs, repeat(math.nan)))

    def note_settled(self, seqs: Iterable[int]) -> None:
        """Note that the outcomes of these messages are collected, one by one."""
        if self.settled is None:
            self.settled = set()
        self.settled.update(seqs)

    def note_durable(self, seq: int) -> None:
        """Note that a transaction has committed the ack of this message."""
        if self.durable is None:
            self.durable = set()
        self.durable.add(seq)

    def note_expired(self, seq: int) -> None:
        """Note that a message expired before its handler began."""
        if self.expired is None:
            self.expired = []
        self.expired.append(seq)

    def note_seconds(self, seq: int, began: float | None, now: float) -> float | None:
        """Note how long the handler of a message has taken until now, in seconds, and return it. None if that is not wanted,
        or if its beginning is not known."""
        if began is None or self.seconds is None:
            return None
        self.seconds[seq] = seconds = now - began
        return seconds

    def note_earliest(self, earliest: dict[Hashable, int]) -> None:
        """Note the seq of the first message of each lane that is done and not collected, unless an earlier one is noted."""
        if not self.lost:
            for seq in self.done:
                lane = self.lane(seq)
                if seq < earliest.get(lane, _NEVER):
                    earliest[lane] = seq

    def follows(self, earliest: Mapping[Hashable, int]) -> bool:
        """Whether one of its messages that are done is behind the noted one of its lane."""
        return any(seq > earliest.get(self.lane(seq), _NEVER) for seq in self.done)


class InFlightMessage(Protocol):
    """A message in flight."""

    @property
    def seq(self) -> int: ...
    @property
    def lane(self) -> Hashable: ...
    @property
    def lease(self) -> Lease: ...


class Parcel:
    """A settlement to be sent to the store, with the leases that it ends, the failed messages, and
    their keys."""

    __slots__ = ("_singles", "_whole", "acked", "ending", "failures", "keys", "messages")

    def __init__(self) -> None:
        self.messages = 0  # number of messages with an outcome in it
        self.acked: list[tuple[Lease, list[int]]] = []
        self.ending: list[Lease] = []
        self.keys: list[Hashable] = []
        self.failures: list[tuple[Any, Failure]] = []
        self._whole: list[Lease] = []
        self._singles: list[tuple[Lease, list[int]]] = []

    @property
    def settlement(self) -> Settlement:
        """The outcomes that may count now, without those of lost leases, and what ends holds."""
        result = Settlement([lease.id for lease in self._whole if lease.stored], [], [], [])
        for message, failure in self.failures:
            _add_single(result, message.lease, (message.seq,), failure)
        for lease, seqs in self._singles:
            _add_single(result, lease, seqs, None)
        return result

    def report(self, process: str) -> HandlingReport:
        """Return how the process has handled the messages with an outcome in it."""
        report = HandlingReport(process, [], [], b"", [], [], [])
        packed: list[bytes] = []
        for lease in self._whole:
            if lease.stored:
                seqs = lease.remaining
                report.counts.append(len(seqs))
                report.firsts.append(None if lease.expired or lease.hold else _first_of_run(seqs))
                packed.append(lease.packed_durations(seqs))
                report.expired += lease.expired or ()
        for lease, seqs in self._singles:
            report.seqs += seqs
            report.seconds += lease.durations(seqs)
            report.expired += lease.expired or ()
        for message, _ in self.failures:
            report.seqs.append(message.seq)
            report.seconds += message.lease.durations((message.seq,))
        report.whole_seconds = b"".join(packed)
        return report

    @property
    def leases(self) -> Iterator[Lease]:
        """Yield the leases that it ends, and those that it changes, some more than once."""
        yield from self.ending
        yield from (lease for lease, _ in self._singles)
        yield from (message.lease for message, _ in self.failures)

    @property
    def outcomes(self) -> Iterator[tuple[Hashable, int]]:
        """Yield the lane and the seq of each message with an outcome in it."""
        for message, _ in self.failures:
            yield message.lane, message.seq
        for lease, seqs in self.acked:
            for seq in seqs:
                yield lease.lane(seq), seq

    def add_failure(self, message: InFlightMessage, failure: Failure) -> None:
        """Add a message that failed, is released, or was cancelled."""
        self.messages += 1
        if failure is not CANCEL:
            self.keys.append(message.lane)
        self.failures.append((message, failure))
        message.lease.note_settled((message.seq,))

    def add_acks(self, lease: Lease) -> None:
        """Add the acked messages of a lease, one by one."""
        seqs = self._take(lease)
        lease.failed = False
        lease.note_settled(seqs)
        self._singles.append((lease, seqs))
        if not lease.left:
            self.ending.append(lease)

    def add_whole(self, lease: Lease) -> None:
        """Add a lease that is settled whole, because all messages left in it are acked."""
        self._take(lease)
        self.ending.append(lease)
        self._whole.append(lease)

    def _take(self, lease: Lease) -> list[int]:
        seqs, lease.done = lease.done, []
        self.messages += len(seqs)
        if seqs:
            self.acked.append((lease, seqs))
        return seqs


def _first_of_run(seqs: Sequence[int]) -> int | None:
    """Return the first of seqs that follow one another, or None if they don't."""
    first = seqs[0]
    return first if seqs[-1] - first == len(seqs) - 1 and seqs == list(range(first, seqs[-1] + 1)) else None


def _add_single(settlement: Settlement, lease: Lease, seqs: Sequence[int], failure: Failure | None) -> None:
    """Add the outcome of messages of a lease. Each message of a hold only ends its part of the hold."""
    if lease.stored:
        settlement.leases += [lease.id] * len(seqs)
        settlement.seqs += [-seq for seq in seqs] if lease.hold else seqs
        settlement.failures += [None if lease.hold else failure] * len(seqs)
