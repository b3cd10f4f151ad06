"""What the operations of a schedule learn."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.schedules.sessions import Session

State = dict[str, Any]
"""What gate.state returns."""


@dataclass
class Delivery:
    """What a lease call returned, with the states before and after it."""

    owner: str
    lease: int
    seqs: list[int]
    before: State
    after: State
    acked: set[int]
    """The messages whose acks had counted when the call began."""


@dataclass
class Log:
    """What the operations of a schedule have learned."""

    controller: Session
    leases: dict[str, tuple[int, list[int]]]
    """The lease of each owner at the start: its id, and its messages."""
    initial: State
    operations: frozenset[str] = frozenset()
    """The names of all operations of the schedule."""
    stored: int = 0
    """The number of messages at the start ..."""
    filled: int = 0
    """... of which these were published after the preludes."""
    deliveries: list[Delivery] = field(default_factory=list)
    acked: list[tuple[int, int]] = field(default_factory=list)
    """The lease and the seq of each ack of a single message that counted."""
    acked_whole: list[tuple[int, int]] = field(default_factory=list)
    """The same of leases that were acked with all that they still held."""
    settled: set[int] = field(default_factory=set)
    """Messages that are done in another way, such as discarded ones."""
    put_back: set[tuple[int, int]] = field(default_factory=set)
    """The lease and the seq of each outcome that counted and was no ack."""
    moves: list[int] = field(default_factory=list)
    """The positions to which calls have moved the consumer, in the order of their answers."""
    forward: int = 0
    """The highest position to which a call may have moved the consumer forward."""
    erased: set[int] = field(default_factory=set)
    """Messages whose erasure is complete."""
    published: int = 0
    """How many messages calls have published that returned, or whose transaction committed."""
    removes: bool = False
    """Whether messages are removed from the stream."""
    kept: set[int] = field(default_factory=set)
    """Messages that were there when an edit of the stream's policy was done, which lets none be removed."""
    rewound: bool = False
    """Whether messages may be delivered again, or passed over, because an operator wanted that."""
    tolerated: frozenset[str] = frozenset()
    """The SQLSTATEs with which any operation of the schedule may fail."""
    violations: list[str] = field(default_factory=list)
    uncertain: bool = False
    """Whether a session was cut, perhaps after its commit."""
    known: State | None = None
    """The state, if nothing has happened since it was read."""

    @property
    def expected(self) -> int:
        """The number of messages that are in the stream, or are scheduled."""
        return self.stored + self.published

    @property
    def may_deadlock(self) -> bool:
        """Whether Postgres may end a session as a deadlock. A replay and retention read the table of a stream before they
        have the consumer's lock. A deletion of the stream locks them the other way round, and takes the stream from both
        in any case. So does the removal of segments. It waits for the table for a shorter time than Postgres takes to look
        for deadlocks, but not here, where others stop for long."""
        removing, reading = {"drop_segments", "delete_stream"}, {"replay", "trim"}
        return not (self.operations.isdisjoint(removing) or self.operations.isdisjoint(reading))

    @property
    def may_miss_a_segment(self) -> bool:
        """Whether a call may fail because a segment was dropped that it had looked up. A client repeats it."""
        return "drop_segments" in self.operations

    def violation(self, text: str) -> None:
        self.violations.append(text)

    def acks(self) -> set[tuple[int, int]]:
        """The lease and the seq of each ack that counted."""
        return set(self.acked) | set(self.acked_whole) - self.put_back

    def changed(self) -> None:
        """Forget the state, since a session goes on."""
        self.known = None

    def state(self) -> State | None:
        """Return the state, or None while the stream's table is locked."""
        if self.known is None:
            self.known = json.loads(self.controller.value("select gate.state()") or "null")
        return self.known

    def messages(self) -> set[int]:
        """The messages that have committed. While the stream's table is locked, those of the start."""
        return {seq for seq, *_ in (self.state() or self.initial)["messages"]}

    def key(self) -> str:
        """Return all that decides whether the final state is right, besides the state."""
        deliveries = [(d.owner, d.lease, d.seqs) for d in self.deliveries]
        return repr(
            (
                deliveries,
                sorted(self.acks()),
                sorted(self.put_back),
                sorted(self.settled),
                self.forward,
                sorted(self.erased),
                sorted(self.kept),
                self.published,
                self.rewound,
                self.removes,
                self.uncertain,
            )
        )
