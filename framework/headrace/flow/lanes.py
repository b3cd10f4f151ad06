"""Lanes: a key's messages wait in one lane, and a lane is worked on by one actor at a time.

    add ──▶ ready ──take──▶ running ──next──▶ message, message, …  ──▶ empty: the lane is gone
                               │
                             close: a message failed, and what waits behind it is handed back

Who handles many messages at a time takes what he can of a lane with `take_run`, and keeps the lane until he is done with them:
`put_down` lets it go on. See `headrace.flow.gathering`.

A message that failed goes back to the store, and everything behind it in its lane with it. Until the store has
confirmed that, the key is closed: a lease call already on its way may bring more of it, leased while the store still
saw the key as ours, and that would overtake. It is refused and given back, and so is whatever of the key is brought by
any call that began before the confirmation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar


class Item(Protocol):
    """What lanes carry: anything that says which lane is its own."""

    @property
    def lane(self) -> Hashable: ...


T = TypeVar("T", bound=Item)


class Lane(Generic[T]):
    """The messages of one key that wait, in order. Most lanes hold one, so the deque comes with the second.

    `tell` is for who holds the lane while a batch fills: the lane is put there when more comes into it, once it was empty.
    """

    __slots__ = ("first", "key", "rest", "tell")

    def __init__(self, key: Hashable, first: T) -> None:
        self.key = key
        self.first: T | None = first
        self.rest: deque[T] | None = None
        self.tell: list[Lane[T]] | None = None


class Lanes(Generic[T]):
    """All lanes of one consumer in one process.

    Attributes:
        waiting: messages added and not yet handed to an actor.
        low_water: `on_low` is called when so few wait.
        on_more: called when messages have come, or a lane has become ready again: whoever gathers a batch may take them.
        on_ready: called when lanes have become ready while they were worked on: actors may be woken for them.
        over: whether all was cleared, so that it isn't worth while to wait for more.
    """

    by_key = False
    """Whether messages that needn't be in order have their key's lane, too, and not each a lane of its own."""

    def __init__(self, on_low: Callable[[], None] = lambda: None) -> None:
        self.waiting = 0
        self.low_water = 0
        self.on_low = on_low
        self.on_more: Callable[[], None] = lambda: None
        self.on_ready: Callable[[], None] = lambda: None
        self.over = False
        self._lanes: dict[Hashable, Lane[T]] = {}
        self._ready: deque[Lane[T]] = deque()
        self._unconfirmed: dict[Hashable, int] = {}  # closed keys, and how many of their give-backs are on the way
        self._barred: set[Hashable] = set()  # confirmed, but a lease call that began before is still out
        self._call_out = False

    @property
    def ready(self) -> int:
        """How many lanes wait for an actor."""
        return len(self._ready)

    @property
    def empty(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._lanes

    def begin_call(self) -> None:
        """A lease call begins. Calls don't overlap."""
        self._call_out = True

    def add(self, items: Iterable[T]) -> list[T]:
        """The lease call has ended and brought `items`. Returns those that are refused, to be given back."""
        refused: list[T] = []
        shut = self._unconfirmed or self._barred
        lanes, ready = self._lanes, self._ready
        for item in items:
            key = item.lane
            if shut and (key in self._unconfirmed or key in self._barred):
                refused.append(item)
                continue
            self.waiting += 1
            lane = lanes.get(key)
            if lane is None:
                lanes[key] = lane = Lane(key, item)
                ready.append(lane)
            elif lane.first is None and not lane.rest:
                lane.first = item
                if lane.tell is not None:
                    lane.tell.append(lane)
            elif lane.rest is None:
                lane.rest = deque((item,))
            else:
                lane.rest.append(item)
        self._call_out = False
        self._barred.clear()
        self.on_more()
        return refused

    def take(self) -> Lane[T] | None:
        """A ready lane for an actor, who calls `next` until it says None; or None when no lane is ready."""
        return self._ready.popleft() if self._ready else None

    def next(self, lane: Lane[T]) -> T | None:
        """The lane's next message, or None when it has run dry, and then the lane is gone."""
        item = lane.first
        if item is not None:
            lane.first = None
        elif lane.rest:
            item = lane.rest.popleft()
        if item is not None:
            self.waiting -= 1
            if self.waiting == self.low_water:
                self.on_low()
            return item
        # A lane that was closed is no longer the key's lane.
        if self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]
        return None

    def take_run(self, lane: Lane[T], limit: int) -> list[T]:
        """Up to `limit` of the lane's messages, in order. The lane stays with who took it, until `put_down`."""
        run = []
        if limit > 0 and lane.first is not None:
            run.append(lane.first)
            lane.first = None
        while lane.rest and len(run) < limit:
            run.append(lane.rest.popleft())
        self._left(len(run))
        return run

    def put_down(self, lane: Lane[T]) -> None:
        """Nobody works on the lane any more: it is ready again if more has come, or else gone."""
        if lane.first is None and not lane.rest:
            del self._lanes[lane.key]
            return
        self._ready.append(lane)
        self.on_more()
        if self._ready:
            self.on_ready()

    def close(self, key: Hashable) -> list[T]:
        """What waits in the key's lane, taken out, because the message before it failed. The lane stays its actor's."""
        lane = self._lanes.get(key)
        if lane is None:
            return []
        rest = [] if lane.first is None else [lane.first]
        if lane.rest:
            rest.extend(lane.rest)
        lane.first = lane.rest = None
        self._left(len(rest))
        return rest

    def clear(self) -> list[T]:
        """Everything that waits, taken out, in the order of each key. Lanes in work end when their message does."""
        taken = [item for key in self._lanes for item in self.close(key)]
        for lane in self._ready:
            del self._lanes[lane.key]
        self._ready.clear()
        self.over = True
        self.on_more()
        return taken

    def _left(self, count: int) -> None:
        """So many messages have left their lanes at once."""
        self.waiting -= count
        if count and self.waiting <= self.low_water:
            self.on_low()

    def give_back(self, key: Hashable) -> None:
        """A message of the key goes back to the store: the key is closed until that is confirmed."""
        self._unconfirmed[key] = self._unconfirmed.get(key, 0) + 1

    def confirm(self, keys: Iterable[Hashable]) -> None:
        """The store has taken messages of these keys back (a key once for each)."""
        for key in keys:
            left = self._unconfirmed[key] - 1
            if left:
                self._unconfirmed[key] = left
            else:
                del self._unconfirmed[key]
                if self._call_out:
                    self._barred.add(key)

    def settled(self, outcomes: Iterable[tuple[Hashable, int]]) -> None:
        """The store has these outcomes, lane and number of each message. Plain lanes don't wait for that, and don't look."""

    def statistics(self) -> dict[str, int]:
        """Lanes, those that are ready, waiting messages, and closed keys."""
        return {
            "lanes": len(self._lanes),
            "ready": len(self._ready),
            "waiting": self.waiting,
            "closed": len(self._unconfirmed) + len(self._barred),
        }
