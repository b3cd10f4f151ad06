"""Lanes: the messages of a key wait in one lane, and one actor at a time works on a lane.

    add ──▶ ready ──take──▶ in work ──next──▶ message, message, …  ──▶ nothing behind it: the lane is removed
                               │
                             close: a message failed, and the messages behind it are returned

A lane is not an object. The first message of a ready lane stands for it, and while the lane is in work its
current message does. Most lanes have only this one, so only further messages are kept by lane.

An actor that handles batches takes messages behind the first one with `take_run`, and keeps the lane until it
returns it with `return_lanes`. See `headrace.flow.gathering`.

A failed message goes back to the store together with everything behind it in its lane. The key is
closed until the store has confirmed that. A lease call that is already in progress may bring later
messages of the key, leased while the store still saw the key as held by this process. These would
overtake, so they are refused and returned. The same holds for messages of the key from any call
that began before the confirmation.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from headrace.flow.signal import Signal


class Item(Protocol):
    """An item of lanes: anything with a lane and a sequence number."""

    @property
    def lane(self) -> Hashable: ...
    @property
    def seq(self) -> int: ...


T = TypeVar("T", bound=Item)

_SEQ = operator.attrgetter("seq")


class Lanes(Generic[T]):
    """All lanes of one consumer in one process.

    Attributes:
        waiting: the number of messages that are added and not yet handed to an actor.
        low_water: the number of waiting messages at which `on_low` is emitted.
        on_low: few messages wait.
        on_more: messages have arrived or a lane has become ready again, so that a gathering batch
            may take them.
        on_ready: lanes have become ready while actors worked on them, or were cleared.
        on_drained: the last ready lane was taken.
        over: whether the lanes were cleared, so that it is useless to wait for more.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.low_water = 0
        self.on_low = Signal()
        self.on_more = Signal()
        self.on_ready = Signal()
        self.on_drained = Signal()
        self.over = False
        # The first message of each lane that waits for an actor: of new lanes, and of those that an actor has returned.
        # See `_older`.
        self._ready: deque[T] = deque()
        self._returned: deque[T] = deque()
        self._choices = 0
        # Of each lane, what waits behind that or the current message: nothing, one message, or several. Most lanes with
        # more have one, and a deque takes 600 bytes and work of Python's garbage collector.
        self._behind: dict[Hashable, T | deque[T] | None] = {}
        self._watched: dict[Hashable, list[Hashable]] = {}  # lanes of gathering batches, see `watch`
        self._unconfirmed: dict[Hashable, int] = {}  # closed keys, each with the number of its unconfirmed returns
        self._barred: set[Hashable] = set()  # confirmed, while a lease call that began before is still in progress
        self._call_out = False

    def names(self, keys: Sequence[str], seqs: Sequence[int], ordered: bool) -> Sequence[Hashable]:
        """Return the lanes of messages: those of their keys. Messages that needn't be in order have one each."""
        return keys if ordered else seqs

    @property
    def ready(self) -> int:
        """The number of lanes that wait for an actor."""
        return len(self._ready) + len(self._returned)

    @property
    def empty(self) -> bool:
        """Whether no message waits and no lane is in work."""
        return not self._behind

    def begin_call(self) -> None:
        """Note that a lease call begins. Calls don't overlap."""
        self._call_out = True

    def add(self, items: Sequence[T]) -> list[T]:
        """Add the messages of a lease call that has ended. Returns the refused ones, which must be released."""
        refused: list[T] = []
        if self._unconfirmed or self._barred:
            shut = self._unconfirmed.keys() | self._barred
            refused = [item for item in items if item.lane in shut]
            items = [item for item in items if item.lane not in shut]
        behind, ready = self._behind, self._ready
        for item in items:
            lane = item.lane
            if lane not in behind:
                behind[lane] = None
                ready.append(item)
            else:
                self._add_behind(lane, item)
        self.waiting += len(items)
        self._call_out = False
        self._barred.clear()
        self.on_more()
        return refused

    def _add_behind(self, lane: Hashable, item: T) -> None:
        """Add a message to a lane that has others or is in work."""
        waiting = self._behind[lane]
        if waiting is None:
            self._behind[lane] = item
            if lane in self._watched:
                self._watched[lane].append(lane)
        elif type(waiting) is deque:
            waiting.append(item)
        else:
            self._behind[lane] = deque((waiting, item))  # type: ignore[arg-type]

    def _pop(self, lane: Hashable, waiting: T | deque[T]) -> T:
        """Take the first message of what waits in a lane."""
        if type(waiting) is deque:
            item: T = waiting.popleft()
            if not waiting:
                self._behind[lane] = None
            return item
        self._behind[lane] = None
        return waiting  # type: ignore[return-value]

    def take(self) -> T | None:
        """Take a ready lane for an actor, and return its first message. None if no lane is ready. The actor calls
        `next` with each message that it is done with, until that returns None."""
        ready = self._ready
        if self._returned:
            ready = self._older() if ready else self._returned
        elif not ready:
            return None
        item = ready.popleft()
        if not self._ready and not self._returned:
            self.on_drained()
        self.waiting -= 1
        if self.waiting == self.low_water:
            self.on_low()
        return item

    def _older(self) -> deque[T]:
        """Choose between new and returned lanes, when both are ready: the lane with the older message.

        Every eighth time it is the other one. After a seek back, the newer messages may be those of lost leases, and
        their keys would wait until everything older is done.
        """
        self._choices += 1
        first, second = self._ready, self._returned
        if second[0].seq < first[0].seq:
            first, second = second, first
        return first if self._choices % 8 else second

    def next(self, item: T, onward: bool = False) -> T | None:
        """Return the message after one that the actor is done with: the next of its lane. If there is none, the lane is
        removed, and with `onward` the actor takes another ready lane, as `take` does."""
        lane = item.lane
        waiting = self._behind[lane]
        if type(waiting) is deque and len(waiting) > 1:  # as in `_pop`, without a call
            item = waiting.popleft()
        elif waiting is not None:
            item = self._pop(lane, waiting)
        else:
            del self._behind[lane]
            if not onward:
                return None
            if self._returned or not self._ready:
                return self.take()
            # As in `take`. It is not called, since most lanes have one message, and a call costs as much as all of
            # this.
            item = self._ready.popleft()
            if not self._ready:
                self.on_drained()
        self.waiting -= 1
        if self.waiting == self.low_water:
            self.on_low()
        return item

    def take_run(self, lane: Hashable, limit: int) -> list[T]:
        """Take up to `limit` further messages of a lane, in order. The actor keeps the lane until it calls
        `return_lanes`."""
        run: list[T] = []
        while len(run) < limit and (waiting := self._behind[lane]) is not None:
            run.append(self._pop(lane, waiting))
        self._left(len(run))
        return run

    def take_runs(self, limit: int) -> tuple[list[T], list[Hashable]]:
        """Take ready lanes with what waits behind their first messages, up to `limit` messages. Returns these messages,
        and the lanes, which the actor keeps until it calls `return_lanes`."""
        messages: list[T] = []
        lanes: list[Hashable] = []
        while len(messages) < limit and (item := self.take()) is not None:
            lane = item.lane
            messages.append(item)
            lanes.append(lane)
            if self._behind[lane] is not None:
                messages += self.take_run(lane, limit - len(messages))
        return messages, lanes

    def watch(self, lane: Hashable, refilled: list[Hashable]) -> None:
        """Add a lane in work to this list each time when messages arrive for it after none was left. Until
        `return_lanes`."""
        self._watched[lane] = refilled

    def return_lanes(self, lanes: Iterable[Hashable]) -> None:
        """Return lanes that no actor works on any more. Those that have messages are ready again, the others are
        removed.

        They become ready in the order of their messages. So the next batch completes the oldest leases, instead of
        taking some messages of each.
        """
        behind, watched = self._behind, self._watched
        returned: list[T] = []
        for lane in lanes:
            if watched:
                watched.pop(lane, None)
            waiting = behind[lane]
            if waiting is None:
                del behind[lane]
            else:
                returned.append(self._pop(lane, waiting))
        if returned:
            returned.sort(key=_SEQ)
            self._returned += returned
            self.on_more()
            if self.ready:
                self.on_ready()

    def close(self, lane: Hashable) -> list[T]:
        """Take out and return what waits in a lane in work, because its current message has failed. The actor keeps the
        lane."""
        waiting = self._behind.get(lane)
        if waiting is None:
            return []
        self._behind[lane] = None
        taken = _listed(waiting)
        self._left(len(taken))
        return taken

    def trim(self, keep: int) -> list[T]:
        """Take out and return the last messages of lanes, while none is ready, so that at most `keep` messages wait.
        The lanes with the most messages lose them."""
        queues = [(1 if type(w) is not deque else len(w), lane) for lane, w in self._behind.items() if w is not None]
        queues.sort(key=operator.itemgetter(0))
        taken: list[T] = []
        for place, (count, lane) in enumerate(queues):
            share = keep // (len(queues) - place)
            keep -= min(count, share)
            if count > share:
                waiting = _listed(self._behind[lane])
                self._behind[lane] = deque(waiting[:share]) if share else None
                taken += waiting[share:]
        self._left(len(taken))
        return taken

    def take_ready(self) -> list[T]:
        """Take out and return the messages of the lanes that wait for an actor, in the order of each key."""
        taken: list[T] = []
        for first in (*self._returned, *self._ready):
            taken += (first, *_listed(self._behind.pop(first.lane)))
        self._ready.clear()
        self._returned.clear()
        self._left(len(taken))
        self.on_drained()
        return taken

    def clear(self) -> list[T]:
        """Take out and return all waiting messages, in the order of each key. Lanes in work end with
        their current message."""
        taken = self.take_ready()
        behind = [message for waiting in self._behind.values() for message in _listed(waiting)]
        self._behind = dict.fromkeys(self._behind)
        self._left(len(behind))
        taken += behind
        self.over = True
        self.on_more()
        self.on_ready()
        return taken

    def _left(self, count: int) -> None:
        """Note that `count` messages have left their lanes together."""
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
            "lanes": len(self._behind),
            "ready": self.ready,
            "waiting": self.waiting,
            "closed": len(self._unconfirmed) + len(self._barred),
        }


def _listed(waiting: T | deque[T] | None) -> list[T]:
    """The messages that wait in a lane, in order."""
    if waiting is None:
        return []
    return list(waiting) if type(waiting) is deque else [waiting]  # type: ignore[list-item]
