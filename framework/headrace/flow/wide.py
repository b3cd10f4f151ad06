"""Wide lanes: the messages of a key, which needn't be in order, but of which only so many are handled at a time.

A lane is ready while messages wait in it and fewer actors than its width work on it. Each of them takes one message after the
other until the lane is dry. There is no order, so a message that failed takes nothing back with it, and no key is ever closed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable

from headrace.flow.lanes import Lane, Lanes, T


class WideLane(Lane[T]):
    """The messages of one key that wait, and how many actors are at work on them."""

    __slots__ = ("at_work", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.waiting: deque[T] = deque()
        self.at_work = 0


class WideLanes(Lanes[T]):
    """Lanes on which up to `width` actors work at a time."""

    by_key = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width
        self._wide: dict[Hashable, WideLane[T]] = {}
        self._open: OrderedDict[Hashable, WideLane[T]] = OrderedDict()  # those that are ready

    @property
    def ready(self) -> int:
        """How many lanes have work for one more actor, at least."""
        return len(self._open)

    @property
    def empty(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._wide

    def add(self, items: Iterable[T]) -> list[T]:
        """The lease call has ended and brought `items`. None is refused."""
        for item in items:
            lane = self._wide.get(item.lane)
            if lane is None:
                lane = self._wide[item.lane] = WideLane(item.lane)
            lane.waiting.append(item)
            self.waiting += 1
            self._note(lane)
        return []

    def take(self) -> WideLane[T] | None:
        """A ready lane for one more actor, who calls `next` until it says None; or None when no lane is ready."""
        if not self._open:
            return None
        _, lane = self._open.popitem(last=False)
        lane.at_work += 1
        self._note(lane)
        if self._open:
            self.on_ready()
        return lane

    def next(self, lane: Lane[T]) -> T | None:
        """The lane's next message, or None when it has run dry, and then the actor is done with it."""
        assert isinstance(lane, WideLane)
        if lane.waiting:
            item: T = lane.waiting.popleft()
            self._note(lane)
            self._left(1)
            return item
        lane.at_work -= 1
        self._note(lane)
        return None

    def close(self, key: Hashable) -> list[T]:
        """Nothing: what waits behind a message that failed needn't wait for it."""
        return []

    def clear(self) -> list[T]:
        """Everything that waits, taken out. Lanes in work end when their messages do."""
        taken: list[T] = []
        for lane in list(self._wide.values()):
            taken.extend(lane.waiting)
            lane.waiting.clear()
            self._note(lane)
        self.over = True
        self._left(len(taken))
        return taken

    def give_back(self, key: Hashable) -> None:
        """A message goes back to the store, and its key stays open."""

    def confirm(self, keys: Iterable[Hashable]) -> None:
        """The store has taken messages back, and no key was closed for them."""

    def statistics(self) -> dict[str, int]:
        """Lanes, those that are ready, and waiting messages."""
        return {"lanes": len(self._wide), "ready": self.ready, "waiting": self.waiting, "closed": 0}

    def _note(self, lane: WideLane[T]) -> None:
        """The lane is ready, or full, or gone, after something has changed."""
        if lane.waiting and lane.at_work < self._width:
            self._open.setdefault(lane.key, lane)
        else:
            self._open.pop(lane.key, None)
            if not lane.waiting and not lane.at_work:
                del self._wide[lane.key]
