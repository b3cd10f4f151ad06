"""The rules of one consumer: its leases, its handlers and their outcomes, line by line.

Two orders are used. The leases of a consumer are numbered by the database, one after the other, so of two leases the one with
the larger number was given later, whatever clocks say. And what one process had the answer to before another one sent its
request happened before it: this compares times of one clock only, see `reading`. Histories of several clocks are judged
without the second order, so less is found in them.

What a process sent and got no answer to may have happened or not. It never counts as a violation, and it never excuses one
that is certain.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple, Protocol

from tests.histories.columns import Column, Contents
from tests.histories.keys import Key, Open
from tests.histories.outcomes import NEVER, Outcome, Published, Settle
from tests.histories.reading import Fields, Line

PROMISES = {
    "lost": "each committed message is delivered or accounted for",
    "order": "messages of a key are delivered, handled and settled in their order",
    "overlap": "one process at a time has the messages of a key",
    "stale": "no outcome counts after its lease has passed on",
    "doubled": "no effect of a transactional handler is there twice",
}

SEEN, SENT, SETTLED, COMMITTED = 1, 2, 3, 4
"""What is known of a message: it was leased, an outcome was sent, one was accepted, one was committed with effects."""

_FINAL = frozenset(("ack", "reject", "invalid", "cancel"))


class Violation(NamedTuple):
    """A promise that was broken, and the messages that show it. Without any, it is one that was never leased."""

    promise: str
    what: str
    consumer: int
    key: str
    seqs: tuple[int, ...]


class World(Protocol):
    """What a consumer must know of the history.

    Attributes:
        comparable: whether times of different processes can be compared.
        durable: whether a crash reverts no outcome that was answered.
        violations: what was found.
        contents: the keys and digests of the messages, by stream.
    """

    comparable: bool
    durable: bool
    violations: list[Violation]
    contents: defaultdict[str, Contents]


class Consumer:
    """What is known of one consumer."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.stream = ""
        self.filters: list[str] = []
        self.ordered = self.conditional = False
        self.max_deliver = -1
        self.world = world
        self.status = Column("b")
        self.settled_in = Column("q")
        self.effects = Column("b")
        self.keys: defaultdict[str, Key] = defaultdict(Key)
        self.open: dict[int, Open] = {}
        self.by_lease: dict[int, set[int]] = {}
        self.runs: dict[tuple[int, int], list[Open]] = {}
        self.old_leases: set[int] = set()
        self.lowest: int | None = None
        self.pending: dict[str, deque[Published]] = {}
        self.timelines: list[str | None] = []
        self.newest_since = float("-inf")
        self.histories: set[str | None] = {None}

    def configure(self, fields: Fields) -> None:
        self.stream, self.filters = fields["stream"], fields["filters"]
        self.ordered, self.conditional = fields["ordered"], fields["conditional"]
        self.max_deliver = fields["max_deliver"]

    def violation(self, promise: str, what: str, key: str, *seqs: int) -> None:
        self.world.violations.append(Violation(promise, what, self.number, key, seqs))

    # --- leases

    def lease(self, line: Line) -> None:
        fields, old = line.fields, not self._is_current(line)
        if not old:
            self.histories.add(fields.get("history"))
        self.lowest = min(fields["seqs"] if self.lowest is None else [self.lowest, *fields["seqs"]])
        attempts = fields["attempts"] or [1] * len(fields["seqs"])
        contents = self.world.contents[self.stream]
        leased: list[Open] = []
        first = 0
        for lease, end in fields["leases"]:
            owner = fields["owner"] or f"lease {lease}"
            self.by_lease[lease] = set(fields["seqs"][first:end])
            if old:
                self.old_leases.add(lease)
            for place in range(first, end):
                seq = fields["seqs"][place]
                key, digest = contents.learn(seq, fields["keys"][place], fields["digests"][place])
                if not self.status[seq]:
                    self._first_seen(seq, key, digest, fields["began"])
                message = Open(seq, key, lease, owner, attempts[place], line.at)
                message.old = old
                if self._deliver(message):
                    leased.append(message)
            first = end
        if self.ordered and self.world.comparable:
            for message in leased:
                self._judge_lease(message, fields["began"])

    def _is_current(self, line: Line) -> bool:
        """Whether a lease was given in the newest timeline, which begins when the database crashes or fails over. Then the
        latest outcomes may have been taken back, and the numbers of leases may begin again a little lower. A lease is read
        late if its call began before the newest timeline was known. Then its own timeline may be an older one."""
        timeline = line.fields["timeline"]
        if self.timelines and timeline == self.timelines[-1]:
            return True
        if line.fields["began"] > self.newest_since if self.world.comparable else timeline not in self.timelines:
            self.timelines.append(timeline)
            self.newest_since = line.at
            if not self.world.durable:
                for seq, status in self.status.items():
                    self.status[seq] = min(status, SENT)
                    self.settled_in[seq] = 0
            for message in self.open.values():
                message.old = True
            self.keys.clear()
            self.old_leases = set(self.by_lease)
            return True
        return False

    def _first_seen(self, seq: int, key: str, digest: int, began: float) -> None:
        """Find what a process published, and see whether earlier messages of the key were left out."""
        self.status[seq] = SEEN
        pending = self.pending.get(key)
        found = next((one for one in pending or () if one.digest == digest), None)
        if pending is None or found is None:
            return
        for one in pending:
            if one is found:
                break
            if self.ordered and self.world.comparable and one.precedes(found) and self._waits(one, began):
                self.violation(
                    "order", f"message {seq} was leased, and an earlier message of its key was not", key, seq
                )
                break
        pending.remove(found)
        while pending and pending[0].answered is None:
            pending.popleft()
        if not pending:
            del self.pending[key]

    def _waits(self, published: Published, until: float) -> bool:
        """Whether a message was committed before a time, and is not leased."""
        return (published.answered or NEVER) < until and not self.status[published.seq]

    def _deliver(self, message: Open) -> bool:
        """Record a delivery. False if its place among the others is not known, or a later one is known already."""
        seq, before, settled_in = message.seq, self.open.get(message.seq), self.settled_in[message.seq]
        if self.status[seq] >= SETTLED:
            earlier = self.world.durable if settled_in in self.old_leases else settled_in < message.lease
            if earlier and not message.old:
                what = f"message {seq} was settled in lease {settled_in}, and leased again in {message.lease}"
                self.violation("stale", what, message.key, seq)
            return False
        if message.old:
            if self.status[seq] < SENT:  # otherwise it may have been settled before the crash
                self.open.setdefault(seq, message)
            return False
        if before and not before.old and before.lease > message.lease:
            return False
        self.status[seq] = SEEN
        self.open[seq] = message
        self.keys[message.key].add(message)
        return True

    def _judge_lease(self, message: Open, began: float) -> None:
        """Compare a message that was leased with the other open messages of its key."""
        for other in self.keys[message.key].others(message.owner):
            if other.lease >= message.lease or self._exhausted(other):
                continue
            if other.seq > message.seq:
                if other.state != "back" and other.owner != message.owner:
                    other.passed = message.at
            elif other.owner != message.owner or (other.state == "back" and other.since < began):
                what = (
                    f"message {message.seq} was leased in {message.lease}, and message {other.seq} of its key, which was leased in"
                    f" {other.lease}, was not settled"
                )
                self.violation("order", what, message.key, other.seq, message.seq)
                return

    def _exhausted(self, message: Open) -> bool:
        """Whether the database may have made it a dead letter when its lease expired."""
        return 0 < self.max_deliver <= message.attempt

    # --- handlers

    def begin(self, line: Line) -> None:
        """A handler begins. What it does under a lease that is over is no violation, since its outcome won't count."""
        run = (line.file, line.fields["run"])
        messages = [
            self.open[seq]
            for lease, seq in line.fields["messages"]
            if seq in self.open and self.open[seq].lease == lease and not self.open[seq].old
        ]
        self.runs[run] = messages
        if not self.ordered:
            return
        for message in messages:
            key = self.keys[message.key]
            if (
                key.run is not None and key.run != run and key.run[0] == line.file
            ):  # another process may have died in it
                self.violation("overlap", f"two handlers of one process are at work on the key, the second on message {message.seq}", message.key, message.seq)  # fmt: skip
            key.run = run
            key.change(message, "begun")
        for message in messages:
            first = self.keys[message.key].first_waiting()
            if (
                first is not None
                and first.seq < message.seq
                and first.lease <= message.lease
                and first.owner == message.owner
            ):
                message.early = first.seq

    def end(self, line: Line) -> None:
        run = (line.file, line.fields["run"])
        for message in self.runs.pop(run, ()):
            if (key := self.keys.get(message.key)) is None:
                continue
            if key.run == run:
                key.run = None
            if key.messages.get(message.seq) is message and message.state == "begun":
                key.change(message, "returned" if line.fields["outcome"] == "returned" else "raised")
                key.wait_again(message)
            self._forget(message.key, key)

    # --- outcomes

    def settle(self, line: Line) -> Settle:
        """An outcome is sent. From here on the message may be settled."""
        fields = line.fields
        named = [one for one in zip(fields["leases"], fields["seqs"], fields["kinds"], strict=True) if one[1] > 0]
        for lease in fields["whole"]:
            named += [(lease, seq, "ack") for seq in self.by_lease.get(lease, ())]
        outcomes = []
        for lease, seq, kind in named:
            message, left = self.open.get(seq), self.by_lease.get(lease, set())
            first = seq in left
            left.discard(seq)
            final = kind in _FINAL or (message is not None and self._exhausted(message) and kind != "release")
            closed = message if final and message and message.lease == lease and not message.sent else None
            outcomes.append(Outcome(lease, seq, first, final, closed))
            if final and self.status[seq] < SENT:
                self.status[seq] = SENT
            if closed is not None:
                closed.sent = True
                self._leave_key(closed)
        return Settle(self, line.at, fields.get("history"), frozenset(fields["whole"]), outcomes, fields["tx"])

    def answer(self, settle: Settle, line: Line) -> None:
        """An answer has come. Without one, everything that is left is unknown."""
        fields = line.fields
        if fields["answer"] == "unknown":
            return
        refused = fields["answer"] == "refused"
        lost = set() if refused else {(lease, seq) for lease, seq in fields["lost"]}
        for outcome in settle.outcomes:
            lease, seq, _, final, closed = outcome
            if refused or (lease, seq) in lost or (lease in settle.whole and (lease, None) in lost):
                self._refused(outcome, line.at, gone=not refused)
            elif final:
                self._accepted(lease, seq, settle, closed)
            elif (message := self.open.get(seq)) is not None:
                if message.lease == lease:
                    self.keys[message.key].change(message, "back", line.at)
                elif message.lease != lease and self._passed_on_before(settle, message):
                    self.violation("stale", f"message {seq} was put back in lease {lease} after lease {message.lease} had it", message.key, seq)  # fmt: skip

    def _refused(self, outcome: Outcome, at: float, *, gone: bool) -> None:
        """An outcome changed nothing. If its lease was lost, the message is delivered again, and perhaps it was before the
        answer was read."""
        lease, seq, first, _, closed = outcome
        if first and not gone and lease in self.by_lease:
            self.by_lease[lease].add(seq)
        if closed is None or self.open.get(seq) is not closed:
            return
        closed.sent = False
        self.status[seq] = SEEN
        if not closed.old:
            self.keys[closed.key].add(closed)
        if gone:
            self.keys[closed.key].change(closed, "back", at)

    def _accepted(self, lease: int, seq: int, settle: Settle, closed: Open | None) -> None:
        message, status, before = self.open.get(seq), self.status[seq], self.settled_in[seq]
        key = message.key if message else closed.key if closed else ""
        if message is not None and self._is_stale(lease, message, settle):
            what = f"an outcome of message {seq} in lease {lease} was accepted, and lease {message.lease} had it later"
            self.violation("stale", what, key, seq)
        elif status >= SETTLED and before not in (0, lease) and self._comparable(before, lease):
            self.violation(
                "stale", f"outcomes of message {seq} were accepted in the leases {before} and {lease}", key, seq
            )
        elif (
            closed is not None
            and closed.passed is not None
            and closed.passed < settle.sent
            and not self._may_be_reverted(settle, closed)
        ):
            what = f"an outcome of message {seq} was sent after another process had its key, and was accepted"
            self.violation("overlap", what, key, seq)
        if closed is not None and closed.early:
            what = f"the handler of message {seq} began before that of message {closed.early}, and its outcome was accepted"
            self.violation("order", what, key, closed.early, seq)
        if settle.tx is not None and status == COMMITTED:
            self.violation("doubled", f"message {seq} was acked in two transactions that were committed", key, seq)
        self.status[seq] = COMMITTED if settle.tx is not None else max(status, SETTLED)
        self.settled_in[seq] = max(lease, before)
        if message is not None:
            self._leave_key(self.open.pop(seq))
        if (
            closed is not None
            and not closed.old
            and self.ordered
            and self.world.comparable
            and (left := self.keys.get(key)) is not None
        ):
            first = left.first()
            if first is not None and first.seq < seq and first.lease <= lease and not self._exhausted(first):
                self.violation("order", f"message {seq} was settled, and message {first.seq} of its key before it was not", key, first.seq, seq)  # fmt: skip
            self._forget(key, left)

    def _is_stale(self, lease: int, message: Open, settle: Settle) -> bool:
        """Whether a lease had passed on: to a later one of its timeline, or to one that was known when the outcome was sent."""
        if message.lease == lease or self._may_be_reverted(settle, message):
            return False
        return self._passed_on_before(settle, message) or (lease not in self.old_leases and message.lease > lease)

    def _passed_on_before(self, settle: Settle, message: Open) -> bool:
        """Whether another lease of a message was known when an outcome was sent."""
        return self.world.comparable and message.at < settle.sent and not self._may_be_reverted(settle, message)

    def _may_be_reverted(self, settle: Settle, message: Open) -> bool:
        """Whether a crash may have reverted a lease before an outcome was sent. The outcome can be the first sign of it."""
        return message.old or settle.history not in self.histories

    def _comparable(self, *leases: int) -> bool:
        """Whether outcomes in these leases can't both be accepted."""
        return self.world.durable or self.old_leases.isdisjoint(leases)

    def _leave_key(self, message: Open) -> None:
        if (key := self.keys.get(message.key)) is not None:
            key.remove(message.seq)

    def _forget(self, name: str, key: Key) -> None:
        if key.idle:
            self.keys.pop(name, None)

    # --- what a test knows from the database, and the end

    def effect(self, seq: int) -> None:
        """An effect of a transactional handler is there."""
        self.effects[seq] += 1
        if self.effects[seq] == 2:
            self.violation("doubled", f"the effect of message {seq} is there twice", "", seq)

    def stored(self, seq: int, key: str) -> None:
        """A message is in the stream. Those from before the consumer began are not its own."""
        if not self.conditional and self.lowest is not None and seq >= self.lowest and not self.status[seq]:
            self.violation("lost", f"message {seq} is in the stream and was never leased", key, seq)

    def finish(self) -> None:
        """Nothing more happens: whatever is open now is lost."""
        for message in self.open.values():
            if not (message.sent or self._exhausted(message)):
                self.violation("lost", f"message {message.seq} was leased in {message.lease} and never settled", message.key, message.seq)  # fmt: skip
        if self.conditional:
            return
        for key, pending in self.pending.items():
            for one in pending:
                if self._waits(one, NEVER):
                    self.violation("lost", f"a message with the digest {one.digest} was committed and never leased", key,)  # fmt: skip
