"""Durable lanes: the next message of a key starts after the outcome of the one before is in the store.

    take ──▶ next ──▶ message, handled, outcome recorded ──▶ next returns None: the lane rests, its actor takes another
                                                               │
                                                settled ───────┴──▶ ready again if more waits, otherwise removed

With plain lanes the next message starts as soon as the handler has returned. A crash then
redelivers the whole unsettled run: 1, 2, 3, and again 1, 2, 3. With durable lanes a crash
redelivers at most one message of each key, or one batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from headrace.flow.lanes import Lanes, T


class DurableLanes(Lanes[T]):
    """Lanes that rest after each message until `settled` is called for it."""

    def __init__(self) -> None:
        super().__init__()
        self._out: dict[Hashable, set[int]] = {}  # messages handed to an actor and not settled yet, by lane
        self._resting: set[Hashable] = set()

    def take(self) -> T | None:
        """Take a ready lane for an actor, and return its first message. None if no lane is ready."""
        item = super().take()
        if item is not None:
            self._out[item.lane] = {item.seq}
        return item

    def next(self, item: T, onward: bool = False) -> T | None:
        """Return the next message of the lane. If there is none, or if the message before is not settled yet, the actor
        takes another ready lane with `onward`."""
        following = None
        if item.lane in self._out:
            self._resting.add(item.lane)
        else:
            following = super().next(item)
        if following is None:
            return self.take() if onward else None
        self._out[following.lane] = {following.seq}
        return following

    def take_run(self, lane: Hashable, limit: int) -> list[T]:
        """Take up to `limit` further messages of a lane, in order. A batch may have several messages of a
        key, since it is handled as one."""
        run = super().take_run(lane, limit)
        if run:
            self._out.setdefault(lane, set()).update(item.seq for item in run)
        return run

    def return_lanes(self, lanes: Iterable[Hashable]) -> None:
        """Return lanes from an actor. Each rests until the messages taken from it are settled."""
        settled = []
        for lane in lanes:
            if lane in self._out:
                self._watched.pop(lane, None)
                self._resting.add(lane)
            else:
                settled.append(lane)
        super().return_lanes(settled)

    def settled(self, outcomes: Iterable[tuple[Hashable, int]]) -> None:
        """Note that the store has these outcomes, given as lane and seq of each message."""
        rested = []
        for lane, seq in outcomes:
            out = self._out.get(lane)
            if out is None:
                continue  # returned before any actor had it
            out.discard(seq)
            if not out:
                del self._out[lane]
                if lane in self._resting:
                    self._resting.remove(lane)
                    rested.append(lane)
        super().return_lanes(rested)

    def statistics(self) -> dict[str, int]:
        """Return the figures of plain lanes, and the number of resting lanes."""
        return {**super().statistics(), "resting": len(self._resting)}
