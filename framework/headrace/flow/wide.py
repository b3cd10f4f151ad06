"""Wide lanes: messages of a key that needn't be in order, with a limit on how many are handled at the
same time.

A lane is ready while messages wait in it and fewer actors than its width work on it. Each actor
takes one message after the other until the lane is empty. There is no order, so a failed message
takes no other message back with it, and no key is ever closed.

A consumer may become ordered while it runs. The messages that it leases from then on wait in plain
lanes, and those of before are left in their wide lanes. Both may have work for the actors.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic

import msgspec

from headrace.flow.lanes import Lanes, T


class WideLane(msgspec.Struct, Generic[T], eq=False, gc=False):
    """The waiting messages of one key, and the number of actors that work on them."""

    key: Hashable
    waiting: deque[T] = msgspec.field(default_factory=deque)
    at_work: int = 0


class WideLanes(Lanes[T]):
    """Lanes on which up to `width` actors work at the same time, and plain lanes for messages that must be in order."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width
        self._wide: dict[Hashable, WideLane[T]] = {}
        self._open: OrderedDict[Hashable, WideLane[T]] = OrderedDict()  # the ready wide lanes
        self._plain_next = False  # if both kinds are ready, they take turns

    def names(self, keys: Sequence[str], seqs: Sequence[int], ordered: bool) -> Sequence[Hashable]:
        """Return the lanes of messages: the plain ones of their keys, or the wide ones, which are named by tuples."""
        return keys if ordered else list(zip(keys))

    @property
    def ready(self) -> int:
        """The number of lanes that have work for at least one more actor."""
        return len(self._open) + super().ready

    @property
    def empty(self) -> bool:
        """Whether no message waits and no lane is in work."""
        return not self._wide and super().empty

    def add(self, items: Sequence[T]) -> list[T]:
        """Add the messages of a lease call that has ended. Returns the refused ones, which must be released. None of a wide
        lane is refused."""
        plain: list[T] = []
        for item in items:
            if not _is_wide(item.lane):
                plain.append(item)
                continue
            lane = self._wide.get(item.lane)
            if lane is None:
                lane = self._wide[item.lane] = WideLane(item.lane)
            lane.waiting.append(item)
            self.waiting += 1
            self._note(lane)
        return super().add(plain)

    def take(self) -> T | None:
        """Take a ready lane for one more actor, and return its next message. None if no lane is ready. The actor calls
        `next` with each message that it is done with, until that returns None."""
        item: T | None
        if self._open and not (self._plain_next and super().ready):
            _, lane = self._open.popitem(last=False)
            lane.at_work += 1
            item = self._take_from(lane)
            self._plain_next = True
        else:
            item = super().take()
            self._plain_next = False
        if item is None:
            return None
        if self.ready:
            self.on_ready()
        else:
            self.on_drained()
        return item

    def next(self, item: T, onward: bool = False) -> T | None:
        """Return the next message of the lane. If there is none, the actor is done with the lane, and takes another ready
        one with `onward`."""
        lane = self._wide.get(item.lane)
        if lane is None:
            following = super().next(item)
            return self.take() if following is None and onward else following
        if lane.waiting:
            return self._take_from(lane)
        lane.at_work -= 1
        self._note(lane)
        return self.take() if onward else None

    def return_lanes(self, lanes: Iterable[Hashable]) -> None:
        """Return lanes that an actor no longer works on. They may have work for others."""
        for name in lanes:
            lane = self._wide.get(name)
            if lane is None:
                super().return_lanes((name,))
                continue
            lane.at_work -= 1
            self._note(lane)
            if self._open:
                self.on_ready()

    def _take_from(self, lane: WideLane[T]) -> T:
        item: T = lane.waiting.popleft()
        self._note(lane)
        self._left(1)
        return item

    def clear(self) -> list[T]:
        """Take out and return all waiting messages. Lanes in work end with their current messages."""
        taken: list[T] = []
        for lane in list(self._wide.values()):
            taken.extend(lane.waiting)
            lane.waiting.clear()
            self._note(lane)
        self._left(len(taken))
        return taken + super().clear()

    def give_back(self, key: Hashable) -> None:
        """Close the key of a plain lane, because one of its messages goes back to the store. A wide lane stays open."""
        if not _is_wide(key):
            super().give_back(key)

    def confirm(self, keys: Iterable[Hashable]) -> None:
        """Note that the store has taken messages of these keys back."""
        super().confirm(key for key in keys if not _is_wide(key))

    def statistics(self) -> dict[str, int]:
        """Return the numbers of lanes, ready lanes, waiting messages, and closed keys."""
        plain = super().statistics()
        return {**plain, "lanes": plain["lanes"] + len(self._wide)}

    def _note(self, lane: WideLane[T]) -> None:
        """Update whether the lane is ready, full or removed, after a change."""
        if lane.waiting and lane.at_work < self._width:
            self._open.setdefault(lane.key, lane)
        else:
            self._open.pop(lane.key, None)
            if not lane.waiting and not lane.at_work:
                del self._wide[lane.key]


def _is_wide(lane: Hashable) -> bool:
    return type(lane) is tuple
