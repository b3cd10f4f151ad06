"""A model of the store in plain Python. It says which messages may be delivered to which owner, and what each outcome
changes.

It does not predict which messages a lease returns, since bounds decide that. It judges the messages
that were returned, and knows which messages must be returned once nothing bounds the lease.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate

import msgspec

from headrace.model.keys import matches
from headrace.model.outcomes import Failure
from headrace.model.records import Batch, Lost
from headrace.model.specs import ConsumerSpec


@dataclass
class Message:
    seq: int
    key: str
    committed: bool
    state: str  # fresh, parked, leased, blocked, or done
    attempts: int = 0
    crashes: int = 0
    due: datetime | None = None  # when a parked message is due, where None is now
    again: bool = False  # it is in flight, and is redelivered after an earlier message that was released


@dataclass
class Lease:
    owner: str
    expires: datetime
    attempts: dict[int, int]  # for each seq that it still holds
    crashes: dict[int, int] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)  # by committed transactions
    acking: set[int] = field(default_factory=set)  # by open transactions


@dataclass
class Letter:
    key: str
    reason: str
    attempts: int
    blocks: bool


@dataclass
class Ledger:
    spec: ConsumerSpec
    messages: dict[int, Message] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    letters: dict[int, Letter] = field(default_factory=dict)
    position: float = -math.inf  # a message published at or below this seq later is not delivered
    paused_until: datetime | None = None

    # Publishers

    def published(self, seq: int, key: str, *, committed: bool) -> None:
        wanted = seq > self.position and any(matches(text, key) for text in self.spec.filters)
        self.messages[seq] = Message(seq, key, committed, "fresh" if wanted else "done")

    def committed(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self.messages[seq].committed = True

    def rolled_back(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            del self.messages[seq]

    # Leases

    def expire(self, now: datetime) -> None:
        late = {lease.owner for lease in self.leases.values() if lease.expires <= now}
        late -= {lease.owner for lease in self.leases.values() if lease.acking}
        for lease_id in [id_ for id_, lease in self.leases.items() if lease.owner in late]:
            lease = self.leases.pop(lease_id)
            for seq, attempt in lease.attempts.items():
                crashes = lease.crashes.get(seq, 0)
                if seq in lease.acked:
                    continue
                if crashes and seq not in lease.started:
                    self._fail(seq, attempt, Failure("release"), now, crashes)
                else:
                    self._fail(seq, attempt, Failure("retry"), now, crashes + 1)

    def room(self, limit: int) -> int:
        return min(limit, self.spec.max_ack_pending - sum(len(lease.attempts) for lease in self.leases.values()))

    def leased(
        self, batch: Batch, owner: str, limit: int, now: datetime, shares: Sequence[int] | None = None
    ) -> list[Batch]:
        """Judge and record the result of a lease call. Returns what each lease got. With shares, there
        is one lease for each share.
        """
        if self.paused(now):
            assert (batch.seqs, batch.more) == ([], False), "it is paused"
            return []
        self.expire(now)
        room = self.room(limit)
        if room > 0 and self.spec.ordered:
            for message in self.messages.values():
                if self._joins_its_tail(message, owner, now):
                    message.state, message.attempts, message.crashes, message.due = "blocked", 0, 0, None
        self._judge_due_in(batch, now, room)
        assert len(batch.seqs) <= max(room, 0)
        assert len(set(batch.seqs)) == len(batch.seqs)
        assert (batch.lease_id is None) == (batch.seqs == [])
        assert batch.lease_id not in self.leases
        attempts = batch.attempts or [1] * len(batch.seqs)
        crashes = batch.crashes or [0] * len(batch.seqs)
        assert crashes == [self.messages[seq].crashes for seq in batch.seqs]
        own = [lease for lease in self.leases.values() if lease.owner == owner]
        before = [seq for lease in own for seq in lease.attempts if seq not in lease.acked]
        for place, (seq, key, attempt) in enumerate(zip(batch.seqs, batch.keys, attempts, strict=True)):
            # A process that takes a share has no other lease. Nothing makes it settle its share before
            # another process settles the next.
            his = {*before, *batch.seqs[:place]} if shares is None else set()
            self._judge(seq, key, attempt, owner, his, now)
        for seq in batch.seqs:
            self.messages[seq].state = "leased"
        leases = [batch] if shares is None else self._dealt(batch, shares)
        for lease in leases:
            if lease.lease_id is not None:
                assert lease.lease_id not in self.leases
                self.leases[lease.lease_id] = Lease(
                    owner if shares is None else f"share {lease.lease_id}",
                    now + timedelta(seconds=self.spec.ack_wait),
                    dict(zip(lease.seqs, lease.attempts or [1] * len(lease.seqs), strict=True)),
                    dict(zip(lease.seqs, lease.crashes or [0] * len(lease.seqs), strict=True)),
                    started=set() if shares is None else set(lease.seqs),
                )
        return leases

    def _dealt(self, batch: Batch, shares: Sequence[int]) -> list[Batch]:
        """Cut the batch into shares, which are filled one after the other."""
        cuts = [slice(end - size, end) for size, end in zip(shares, accumulate(shares), strict=True)]
        cuts = [cut for cut in cuts if batch.seqs[cut]]
        assert len(batch.lease_ids or []) == len(cuts), "a lease for each share that got something"
        return [
            msgspec.structs.replace(
                batch, lease_id=lease_id, seqs=batch.seqs[cut], keys=batch.keys[cut],
                attempts=batch.attempts and batch.attempts[cut], crashes=batch.crashes and batch.crashes[cut],
            )
            for lease_id, cut in zip(batch.lease_ids or [], cuts, strict=True)
        ]  # fmt: skip

    def _joins_its_tail(self, message: Message, owner: str, now: datetime) -> bool:
        """Whether a parked message forgets its attempts, because it is due while its key is blocked."""
        due = message.state == "parked" and (message.due is None or message.due <= now)
        return due and self._blocked(message.key) and not self._busy(message.key, owner)

    def _judge(self, seq: int, key: str, attempt: int, owner: str, his: set[int], now: datetime) -> None:
        message = self.messages[seq]
        assert message.committed, f"{seq} was delivered before it was committed"
        assert message.key == key
        assert message.state in ("fresh", "parked"), f"{seq} is {message.state} and was delivered"
        assert message.due is None or message.due <= now, f"{seq} was delivered before it was due"
        assert attempt == message.attempts + 1, f"{seq}: attempt {attempt} after {message.attempts}"
        if not self.spec.ordered:
            return
        assert not self._blocked(key), f"{seq} was delivered though {key} is blocked"
        assert not self._busy(key, owner), f"{seq} was delivered to {owner} though somebody else holds {key}"
        for earlier in self._of_key(key):
            if earlier.seq < seq and earlier.state != "done":
                assert earlier.seq in his, f"{seq} overtook {earlier}"

    def _judge_due_in(self, batch: Batch, now: datetime, room: int) -> None:
        if batch.seqs and not batch.more and batch.due_in == 0.001:
            return  # a publisher is in flight, or was rolled back
        # A message that is overdue and locked by another session is asked for again soon.
        times = [max(lease.expires, now) for lease in self.leases.values()]
        times = [now + timedelta(seconds=0.1) if time == now else time for time in times]
        if room > 0:
            times += [
                m.due for m in self.messages.values()
                if m.state == "parked" and m.due and m.due > now and not (self.spec.ordered and self._blocked(m.key))
            ]  # fmt: skip
        expected = min(times) - now if times else None
        assert (batch.due_in is None) == (expected is None)
        assert expected is None or math.isclose(batch.due_in or 0, expected.total_seconds(), abs_tol=1e-5)

    def paused(self, now: datetime) -> bool:
        return self.paused_until is not None and self.paused_until > now

    def deliverable(self, owner: str, now: datetime) -> list[int]:
        """Return what the owner must be given before a lease call may return empty for good."""
        self.expire(now)
        found = []
        for key in {message.key for message in self.messages.values()}:
            ordered = self.spec.ordered
            if ordered and (self._blocked(key) or self._busy(key, owner)):
                continue
            for message in self._of_key(key):
                due = message.due is None or message.due <= now
                if message.state in ("fresh", "parked") and due:
                    found.append(message.seq)
                elif message.state == "parked" and ordered:
                    break
        return sorted(found)

    def extended(self, owner: str, now: datetime) -> list[int]:
        return self.extended_one_by_one(
            [lease_id for lease_id, lease in self.leases.items() if lease.owner == owner], now
        )

    def extended_one_by_one(self, leases: Iterable[int], now: datetime) -> list[int]:
        """Return those of the leases that still exist."""
        alive = [lease_id for lease_id in leases if lease_id in self.leases]
        for lease_id in alive:
            self.leases[lease_id].expires = now + timedelta(seconds=self.spec.ack_wait)
        return alive

    # Outcomes

    def settled(self, lease_id: int, seq: int | None, failure: Failure | None, now: datetime) -> Lost | None:
        """Record one outcome, or report that it is lost. It is an ack of everything that the lease
        holds if `seq` is None.
        """
        lease = self.leases.get(lease_id)
        if lease is None or (seq is not None and seq not in lease.attempts):
            return Lost(lease_id, seq)
        too_late = seq in lease.acked and failure is not None
        for done in [seq] if seq is not None else list(lease.attempts):
            attempt = lease.attempts.pop(done)
            if too_late:
                continue
            if failure is not None:
                crashes = lease.crashes.get(done, 0) if failure.kind == "release" else 0
                self._fail(done, attempt, failure, now, crashes)
            elif done not in lease.acked:
                self._end(self.messages[done])
        if not lease.attempts:
            del self.leases[lease_id]
        return Lost(lease_id, seq) if too_late else None

    def folded(self, lease_id: int) -> None:
        """Remove acked messages from a lease that is about to end."""
        lease = self.leases[lease_id]
        lease.attempts = {seq: attempt for seq, attempt in lease.attempts.items() if seq not in lease.acked}
        if not lease.attempts:
            del self.leases[lease_id]

    def _fail(self, seq: int, attempt: int, failure: Failure, now: datetime, crashes: int) -> None:
        message = self.messages[seq]
        message.crashes = 0
        if failure.kind == "release":
            self._park(message, attempt - 1, crashes=crashes)
        elif failure.kind == "reject":
            self._end(message)
            self.letters[seq] = Letter(message.key, "rejected", attempt, False)
        elif self.spec.max_deliver == -1 or attempt < self.spec.max_deliver:
            due = None if failure.delay is None else now + timedelta(seconds=failure.delay)
            self._park(message, attempt, due, crashes)
        elif self.spec.on_exhausted == "block":
            message.state, message.attempts, message.due = "blocked", 0, None
            self.letters[seq] = Letter(message.key, "exhausted", attempt, True)
        else:
            self._end(message)
            if self.spec.on_exhausted == "dead_letter":
                self.letters[seq] = Letter(message.key, "exhausted", attempt, False)

    # Transactions

    def ackable(self, lease_id: int, seq: int, now: datetime) -> bool:
        lease = self.leases.get(lease_id)
        return lease is not None and lease.expires > now and seq in lease.attempts and seq not in lease.acked

    def acking(self, lease_id: int, seqs: Iterable[int]) -> None:
        self.leases[lease_id].acking.update(seqs)

    def acked(self, lease_id: int, seqs: Iterable[int], *, committed: bool) -> None:
        """Record that the transaction has ended."""
        lease = self.leases[lease_id]
        for seq in seqs:
            lease.acking.remove(seq)
            if committed:
                lease.acked.add(seq)
                self._end(self.messages[seq])

    def started(self, lease_id: int, seqs: Iterable[int]) -> list[int]:
        """Return which leases are lost."""
        if lease_id not in self.leases:
            return [lease_id]
        self.leases[lease_id].started.update(seqs)
        return []

    # Ways out, and moves

    def replayed(self, first: int, last: int) -> int:
        chosen = [
            message
            for message in self.messages.values()
            if first <= message.seq <= last
            and message.committed
            and message.state == "done"
            and any(matches(text, message.key) for text in self.spec.filters)
        ]
        for message in chosen:
            self._park(message, 0)
        return len(chosen) + self._repeat_in_flight(chosen)

    def _repeat_in_flight(self, put_back: Iterable[Message]) -> int:
        """Later messages of these keys that are in flight are redelivered. Their keys are busy for their own process, too."""
        later = [
            (lease.owner, message)
            for lease in self.leases.values()
            for message in (self.messages[seq] for seq in lease.attempts if seq not in lease.acked)
            if self.spec.ordered and any(one.key == message.key and one.seq < message.seq for one in put_back)
        ]
        owners = {owner for owner, _ in later}
        for lease in self.leases.values():
            if lease.owner in owners:
                lease.owner += " before"
        added = {message.seq for _, message in later if not message.again}
        for _, message in later:
            message.again = True
        return len(added)

    def redriven(self, seqs: list[int] | None) -> int:
        chosen = set(self.letters) if seqs is None else set(seqs) & set(self.letters)
        keys = {self.letters[seq].key for seq in chosen if self.letters[seq].blocks}
        chosen |= {seq for seq, letter in self.letters.items() if letter.blocks and letter.key in keys}
        put_back = []
        for seq in chosen:
            blocked = self.letters.pop(seq).blocks
            if blocked or self.messages[seq].state == "done":
                self._park(self.messages[seq], 0)
                put_back.append(self.messages[seq])
        self._unblock(keys)
        self._repeat_in_flight(put_back)
        return len(chosen)

    def discarded(self, seqs: list[int] | None) -> int:
        chosen = set(self.letters) if seqs is None else set(seqs) & set(self.letters)
        keys = set()
        for seq in chosen:
            letter = self.letters.pop(seq)
            if letter.blocks:
                self._end(self.messages[seq])
                keys.add(letter.key)
        self._unblock({key for key in keys if not self._blocked(key)})
        return len(chosen)

    def _unblock(self, keys: set[str]) -> None:
        for message in self.messages.values():
            if message.key in keys and message.state == "blocked" and not self._is_blocking(message):
                self._park(message, 0)

    def sought(self, position: int | None, before: int) -> int:
        """Return what the seek has to return. `before`: the position until now."""
        end = max((message.seq for message in self.messages.values() if message.committed), default=0)
        kept = position if position is not None and position <= before else -1
        self.position = -math.inf if position is None else position
        for lease_id in [id_ for id_, lease in self.leases.items() if any(seq > kept for seq in lease.attempts)]:
            lease = self.leases.pop(lease_id)
            for seq, attempt in lease.attempts.items():
                if seq <= kept and seq not in lease.acked:
                    self._park(self.messages[seq], attempt - 1, crashes=lease.crashes.get(seq, 0))
        unblocked = {letter.key for seq, letter in self.letters.items() if letter.blocks and seq > kept}
        for seq, letter in self.letters.items():
            letter.blocks = letter.blocks and seq <= kept
        for message in self.messages.values():
            if message.seq <= kept:
                continue
            wanted = message.seq > position if position is not None else not message.committed
            wanted = wanted and any(matches(text, message.key) for text in self.spec.filters)
            message.state, message.attempts, message.due = "fresh" if wanted else "done", 0, None
            message.crashes, message.again = 0, False
        self._unblock({key for key in unblocked if not self._blocked(key)})
        return end if position is None else position

    def changed(self, spec: ConsumerSpec) -> None:
        """The settings are changed."""
        self.spec = spec
        if spec.on_exhausted != "block":
            keys = {letter.key for letter in self.letters.values() if letter.blocks}
            for seq, letter in self.letters.items():
                if letter.blocks:
                    letter.blocks = False
                    self._end(self.messages[seq])
            self._unblock(keys)
        if not spec.ordered:
            for message in self.messages.values():
                message.again = False
                if message.state == "blocked" and not self._is_blocking(message):
                    self._park(message, 0)

    def _is_blocking(self, message: Message) -> bool:
        return message.seq in self.letters and self.letters[message.seq].blocks

    def unsettled(self) -> list[Message]:
        return [message for message in self.messages.values() if message.committed and message.state != "done"]

    def _end(self, message: Message) -> None:
        """The message is done, unless it is redelivered."""
        message.state = "done"
        if message.again:
            self._park(message, 0)

    def _park(self, message: Message, attempts: int, due: datetime | None = None, crashes: int = 0) -> None:
        message.again = False
        message.state, message.attempts, message.due, message.crashes = "parked", attempts, due, crashes

    def _of_key(self, key: str) -> list[Message]:
        """Return the messages of a key in the order of their seq, which differs from the order of their commits."""
        return sorted((m for m in self.messages.values() if m.key == key and m.committed), key=lambda m: m.seq)

    def _blocked(self, key: str) -> bool:
        return any(letter.blocks and letter.key == key for letter in self.letters.values())

    def _busy(self, key: str, owner: str) -> bool:
        return any(
            self.messages[seq].key == key
            for lease in self.leases.values()
            if lease.owner != owner
            for seq in lease.attempts
        )
