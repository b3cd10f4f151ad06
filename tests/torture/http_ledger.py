"""A ledger that checks the promises of the HTTP API against what clients see, at each delivery and at the end."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

Place = tuple[str, int]
"""A message: its key, and its number within the key."""


@dataclass
class Delivery:
    place: Place
    seq: int
    ack_id: str
    attempt: int
    asked_at: float  # when its client asked for messages, which is before its lease
    came_at: float
    over: bool = False  # acked, nacked, or its ack has an unknown outcome


@dataclass
class HttpLedger:
    """The ledger of one consumer, over all its clients.

    Args:
        ack_wait: The visibility timeout in seconds.
        slack: Additional seconds that a redelivery may take.
    """

    ack_wait: float
    slack: float
    published: dict[Place, bool] = field(default_factory=dict)  # whether the server has confirmed it
    deliveries: dict[Place, list[Delivery]] = field(default_factory=dict)
    acked: Counter[Place] = field(default_factory=Counter)  # confirmed by the server
    perhaps: set[Place] = field(default_factory=set)  # acks that never got an answer
    under_way: Counter[Place] = field(default_factory=Counter)  # acks without an answer yet
    done_up_to: dict[str, int] = field(default_factory=dict)  # per key: all below this number may be acked
    slowest: float = 0.0  # longest time between a visibility timeout and the next delivery

    def came(self, place: Place, seq: int, ack_id: str, attempt: int, asked_at: float) -> Delivery:
        """Judge and record a delivery that a client has read."""
        now = time.monotonic()
        key, number = place
        assert place in self.published, f"{place} was never sent"
        before = self.deliveries.setdefault(place, [])
        assert all(one.seq == seq for one in before), f"{place} is in the stream twice"
        assert all(one.attempt != attempt for one in before), f"attempt {attempt} of {place} came twice"
        if before and not before[-1].over:
            early = before[-1].asked_at + self.ack_wait - now
            assert early <= 0, f"{place} came again {early:.3f} s before its visibility timeout"
        assert not self.acked[place], f"{place} came again after its ack was confirmed"
        first = self.done_up_to.get(key, 0)
        while first < number and self._may_be_done((key, first)):
            first += 1
        self.done_up_to[key] = first
        assert first >= number, f"{place} overtook {(key, first)}"
        delivery = Delivery(place, seq, ack_id, attempt, asked_at, now)
        before.append(delivery)
        return delivery

    def _may_be_done(self, place: Place) -> bool:
        return bool(self.acked[place] or self.under_way[place] or place in self.perhaps)

    def acking(self, deliveries: list[Delivery]) -> None:
        """Record that an ack is about to be sent."""
        self.under_way.update(one.place for one in deliveries)

    def answered(self, deliveries: list[Delivery], stale: set[str] | None) -> None:
        """Record the answer of an ack. Everything but the stale ids is acked. None means that no answer came."""
        for one in deliveries:
            self.under_way[one.place] -= 1
            if stale is None:
                self.perhaps.add(one.place)
                one.over = True
            elif one.ack_id not in stale:
                self.acked[one.place] += 1
                one.over = True
                assert self.acked[one.place] == 1, f"{one.place} was acked twice"

    # --- at the end

    def judge(self) -> None:
        """Check that every message that was sent was delivered, was acked once, and was never held for long."""
        assert all(self.published.values()), "a publisher was never answered"
        never = self.published.keys() - self.deliveries.keys()
        assert never == set(), f"{len(never)} messages never came to anybody who read them"
        open_ = {place for place in self.published if not self.acked[place] and place not in self.perhaps}
        assert open_ == set(), f"{len(open_)} messages were never acked"
        for place, tries in self.deliveries.items():
            for one, other in pairwise(tries):
                if not one.over:
                    # Attempts between the two went to clients that left before they had read them.
                    unread = other.attempt - one.attempt - 1
                    late = other.came_at - (one.came_at + (1 + unread) * self.ack_wait)
                    self.slowest = max(self.slowest, late)
                    assert late <= self.slack, f"{place} came again {late:.1f} s after its visibility timeout"

    def again(self) -> int:
        """Return how many deliveries were redeliveries."""
        return sum(len(tries) - 1 for tries in self.deliveries.values())
