"""Lanes: the messages of a key wait in one lane, and one actor at a time works on a lane.

    add ──▶ ready ──take──▶ running ──next──▶ message, message, …  ──▶ empty: the lane is removed
                               │
                             close: a message failed, and the messages behind it are returned

An actor that handles batches takes messages of a lane with `take_run`, and keeps the lane until it
returns it with `return_lane`. See `headrace.flow.gathering`.

A failed message goes back to the store together with everything behind it in its lane. The key is
closed until the store has confirmed that. A lease call that is already in progress may bring later
messages of the key, leased while the store still saw the key as held by this process. These would
overtake, so they are refused and returned. The same holds for messages of the key from any call
that began before the confirmation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, Protocol, TypeVar

import msgspec

from headrace.flow.signal import Signal


class Item(Protocol):
    """An item of lanes: anything with a lane."""

    @property
    def lane(self) -> Hashable: ...


T = TypeVar("T", bound=Item)


class Lane(msgspec.Struct, Generic[T], eq=False, gc=False):
    """The waiting messages of one key, in order. Most lanes hold one message, so the deque is created
    for the second.

    A gathering batch that holds the lane sets `refilled` to its list. The lane is added to that
    list when messages arrive after it was empty.
    """

    key: Hashable
    first: T | None = None
    rest: deque[T] | None = None
    refilled: list[Lane[T]] | None = None


class Lanes(Generic[T]):
    """All lanes of one consumer in one process.

    Attributes:
        waiting: the number of messages that are added and not yet handed to an actor.
        low_water: the number of waiting messages at which `on_low` is emitted.
        on_low: few messages wait.
        on_more: messages have arrived or a lane has become ready again, so that a gathering batch
            may take them.
        on_ready: lanes have become ready while actors worked on them, or were cleared.
        over: whether the lanes were cleared, so that it is useless to wait for more.
    """

    by_key = False
    """Whether messages share the lane of their key even if they needn't be in order. Otherwise each of
    these has its own lane."""

    def __init__(self) -> None:
        self.waiting = 0
        self.low_water = 0
        self.on_low = Signal()
        self.on_more = Signal()
        self.on_ready = Signal()
        self.over = False
        self._lanes: dict[Hashable, Lane[T]] = {}
        self._ready: deque[Lane[T]] = deque()
        self._unconfirmed: dict[Hashable, int] = {}  # closed keys, each with the number of its unconfirmed returns
        self._barred: set[Hashable] = set()  # confirmed, while a lease call that began before is still in progress
        self._call_out = False

    @property
    def ready(self) -> int:
        """The number of lanes that wait for an actor."""
        return len(self._ready)

    @property
    def empty(self) -> bool:
        """Whether no message waits and no lane is in work."""
        return not self._lanes

    def begin_call(self) -> None:
        """Note that a lease call begins. Calls don't overlap."""
        self._call_out = True

    def add(self, items: Iterable[T]) -> list[T]:
        """Add the messages of a lease call that has ended. Returns the refused ones, which must be
        given back."""
        refused: list[T] = []
        shut = self._unconfirmed or self._barred
        lanes, ready, added = self._lanes, self._ready, 0
        for item in items:
            key = item.lane
            if shut and (key in self._unconfirmed or key in self._barred):
                refused.append(item)
                continue
            added += 1
            lane = lanes.get(key)
            if lane is None:
                lanes[key] = lane = Lane(key, item)
                ready.append(lane)
            elif lane.first is None and not lane.rest:
                lane.first = item
                if lane.refilled is not None:
                    lane.refilled.append(lane)
            elif lane.rest is None:
                lane.rest = deque((item,))
            else:
                lane.rest.append(item)
        self.waiting += added
        self._call_out = False
        self._barred.clear()
        self.on_more()
        return refused

    def take(self) -> Lane[T] | None:
        """Take a ready lane for an actor, or None if no lane is ready. The actor calls `next` until it
        returns None."""
        return self._ready.popleft() if self._ready else None

    def next(self, lane: Lane[T]) -> T | None:
        """Return the lane's next message, or None if the lane is empty. An empty lane is removed."""
        item = lane.first
        if item is not None:
            lane.first = None
        elif lane.rest:
            item = lane.rest.popleft()
        else:
            # A lane that was closed is no longer the key's lane.
            if self._lanes.get(lane.key) is lane:
                del self._lanes[lane.key]
            return None
        self.waiting -= 1
        if self.waiting == self.low_water:
            self.on_low()
        return item

    def take_run(self, lane: Lane[T], limit: int) -> list[T]:
        """Take up to `limit` of the lane's messages, in order. The actor keeps the lane until it calls
        `return_lane`."""
        run = []
        if limit > 0 and lane.first is not None:
            run.append(lane.first)
            lane.first = None
        while lane.rest and len(run) < limit:
            run.append(lane.rest.popleft())
        self._left(len(run))
        return run

    def return_lane(self, lane: Lane[T]) -> None:
        """Return a lane that no actor works on any more. It is ready again if it has messages,
        otherwise it is removed."""
        if lane.first is None and not lane.rest:
            del self._lanes[lane.key]
            return
        self._ready.append(lane)
        self.on_more()
        if self._ready:
            self.on_ready()

    def close(self, key: Hashable) -> list[T]:
        """Take out and return what waits in the key's lane, because the message before it failed. The
        actor keeps the lane."""
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
        """Take out and return all waiting messages, in the order of each key. Lanes in work end with
        their current message."""
        taken = [item for key in self._lanes for item in self.close(key)]
        for lane in self._ready:
            del self._lanes[lane.key]
        self._ready.clear()
        self.over = True
        self.on_more()
        self.on_ready()
        return taken

    def _left(self, count: int) -> None:
        """Note that `count` messages have left their lanes at once."""
        self.waiting -= count
        if count and self.waiting <= self.low_water:
            self.on_low()

    def give_back(self, key: Hashable) -> None:
        """Close the key, because one of its messages goes back to the store. It stays closed until
        that is confirmed."""
        self._unconfirmed[key] = self._unconfirmed.get(key, 0) + 1

    def confirm(self, keys: Iterable[Hashable]) -> None:
        """Note that the store has taken messages of these keys back. A key is named once for each message."""
        for key in keys:
            left = self._unconfirmed[key] - 1
            if left:
                self._unconfirmed[key] = left
            else:
                del self._unconfirmed[key]
                if self._call_out:
                    self._barred.add(key)

    def settled(self, outcomes: Iterable[tuple[Hashable, int]]) -> None:
        """Note that the store has these outcomes, given as lane and seq. Plain lanes don't wait for
        that and ignore it."""

    def statistics(self) -> dict[str, int]:
        """Return the numbers of lanes, ready lanes, waiting messages, and closed keys."""
        return {
            "lanes": len(self._lanes),
            "ready": len(self._ready),
            "waiting": self.waiting,
            "closed": len(self._unconfirmed) + len(self._barred),
        }
