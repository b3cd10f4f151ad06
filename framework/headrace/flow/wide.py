"""Wide lanes: messages of a key that needn't be in order, with a limit on how many are handled at the
same time.

A lane is ready while messages wait in it and fewer actors than its width work on it. Each actor
takes one message after the other until the lane is empty. There is no order, so a failed message
takes no other message back with it, and no key is ever closed.
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
    """Lanes on which up to `width` actors work at the same time."""

    by_key = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width
        self._wide: dict[Hashable, WideLane[T]] = {}
        self._open: OrderedDict[Hashable, WideLane[T]] = OrderedDict()  # the ready lanes

    @property
    def ready(self) -> int:
        """The number of lanes that have work for at least one more actor."""
        return len(self._open)

    @property
    def empty(self) -> bool:
        """Whether no message waits and no lane is in work."""
        return not self._wide

    def add(self, items: Sequence[T]) -> list[T]:
        """Add the messages of a lease call that has ended. None is refused."""
        for item in items:
            lane = self._wide.get(item.lane)
            if lane is None:
                lane = self._wide[item.lane] = WideLane(item.lane)
            lane.waiting.append(item)
            self.waiting += 1
            self._note(lane)
        return []

    def take(self) -> T | None:
        """Take a ready lane for one more actor, and return its next message. None if no lane is ready. The actor calls
        `next` with each message that it is done with, until that returns None."""
        if not self._open:
            return None
        _, lane = self._open.popitem(last=False)
        lane.at_work += 1
        item = self._take_from(lane)
        if self._open:
            self.on_ready()
        else:
            self.on_drained()
        return item

    def next(self, item: T, onward: bool = False) -> T | None:
        """Return the next message of the lane. If there is none, the actor is done with the lane, and takes another ready
        one with `onward`."""
        lane = self._wide[item.lane]
        if lane.waiting:
            return self._take_from(lane)
        lane.at_work -= 1
        self._note(lane)
        return self.take() if onward else None

    def _take_from(self, lane: WideLane[T]) -> T:
        item: T = lane.waiting.popleft()
        self._note(lane)
        self._left(1)
        return item

    def close(self, lane: Hashable) -> list[T]:
        """Return nothing. Messages behind a failed message needn't wait for it."""
        return []

    def clear(self) -> list[T]:
        """Take out and return all waiting messages. Lanes in work end with their current messages."""
        taken: list[T] = []
        for lane in list(self._wide.values()):
            taken.extend(lane.waiting)
            lane.waiting.clear()
            self._note(lane)
        self.over = True
        self._left(len(taken))
        self.on_ready()
        return taken

    def give_back(self, key: Hashable) -> None:
        """Do nothing. The key of a message that goes back stays open."""

    def confirm(self, keys: Iterable[Hashable]) -> None:
        """Do nothing. No key was closed for the messages that the store has taken back."""

    def statistics(self) -> dict[str, int]:
        """Return the numbers of lanes, ready lanes, and waiting messages."""
        return {"lanes": len(self._wide), "ready": self.ready, "waiting": self.waiting, "closed": 0}

    def _note(self, lane: WideLane[T]) -> None:
        """Update whether the lane is ready, full or removed, after a change."""
        if lane.waiting and lane.at_work < self._width:
            self._open.setdefault(lane.key, lane)
        else:
            self._open.pop(lane.key, None)
            if not lane.waiting and not lane.at_work:
                del self._wide[lane.key]
