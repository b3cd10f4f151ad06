"""Durable lanes: a key's next message begins once the outcome of the one before is in the store.

    take ──▶ next ──▶ message, handled, its outcome recorded ──▶ next says None: the lane rests, its actor goes on with another
                                                                   │
                                                    settled ───────┴──▶ ready again if more waits, or else gone

With plain lanes the next message begins as soon as the handler has returned, and a crash brings back the whole run that was
not settled yet: 1, 2, 3, and again 1, 2, 3. Here it brings back one message of each key at most, or one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Protocol, TypeVar

from headrace.flow.lanes import Lane, Lanes


class Numbered(Protocol):
    """What durable lanes carry: it knows its lane, and its number in the stream."""

    @property
    def lane(self) -> Hashable: ...
    @property
    def seq(self) -> int: ...


T = TypeVar("T", bound=Numbered)


class DurableLanes(Lanes[T]):
    """Lanes that rest between a message and the next one, until `settled` names the message."""

    def __init__(self, on_low: Callable[[], None] = lambda: None) -> None:
        super().__init__(on_low)
        self._out: dict[Hashable, set[int]] = {}  # messages handed to an actor and not settled yet, by lane
        self._resting: dict[Hashable, Lane[T]] = {}

    def next(self, lane: Lane[T]) -> T | None:
        """The lane's next message; None when it has run dry, and as long as the message before is not settled."""
        if lane.key in self._out:
            self._resting[lane.key] = lane
            return None
        item = super().next(lane)
        if item is not None:
            self._out[lane.key] = {item.seq}
        return item

    def take_run(self, lane: Lane[T], limit: int) -> list[T]:
        """Up to `limit` of the lane's messages, in order. A batch is handled as one, so it may have several of a key."""
        run = super().take_run(lane, limit)
        if run:
            self._out.setdefault(lane.key, set()).update(item.seq for item in run)
        return run

    def put_down(self, lane: Lane[T]) -> None:
        """An actor is done with the lane: it rests until what was taken of it is settled."""
        if lane.key in self._out:
            self._resting[lane.key] = lane
        else:
            super().put_down(lane)

    def settled(self, outcomes: Iterable[tuple[Hashable, int]]) -> None:
        """The store has these outcomes: lane and number of each message."""
        for key, seq in outcomes:
            out = self._out.get(key)
            if out is None:
                continue  # given back before any actor had it
            out.discard(seq)
            if not out:
                del self._out[key]
                lane = self._resting.pop(key, None)
                if lane is not None:
                    super().put_down(lane)

    def statistics(self) -> dict[str, int]:
        """As those of plain lanes, and the lanes that rest."""
        return {**super().statistics(), "resting": len(self._resting)}
