"""Gathers a batch from the messages of the ready lanes, until there are enough of them, or enough bytes.

    a lane ──▶ fill ──▶ full, or nothing more is ready ──▶ (more comes: fill again) ──▶ handled ──▶ return_lanes

A batch keeps its lanes until it is done, so that the order of each key holds. When more messages
arrive, the batch that gathers is offered them before other actors are woken. So batches fill one
after the other, instead of many by halves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic

from headrace.flow.lanes import Lanes, T


class Gathering(Generic[T]):
    """A batch that is being gathered, from its first message on.

    Args:
        lanes: where its messages come from.
        first: the message that it begins with, which was taken from a ready lane.
        limit: the largest number of messages.
        one_key: take messages of the first lane only.
        max_size: the batch is full once its messages have this size. None for no such limit.
        size_of: the size of a message.
    """

    def __init__(
        self,
        lanes: Lanes[T],
        first: T,
        limit: int,
        *,
        one_key: bool,
        max_size: int | None = None,
        size_of: Callable[[T], int] = lambda _: 0,
    ) -> None:
        self.messages = [first]
        self._lanes = lanes
        self._held = [first.lane]
        self._unwatched = 0  # the place of the first held lane that is not watched yet
        # The held lanes that have more messages. A large batch holds too many lanes to look into
        # each.
        self._more: list[Hashable] = []
        self._limit = limit
        self._one_key = one_key
        self._max_size = max_size
        self._size_of = size_of
        self._size = self._measured = 0  # the size of the first messages, and their number
        self._take_from(first.lane)
        self.fill()

    @property
    def over(self) -> bool:
        """Whether it can't get more messages, because it is full or the lanes were cleared."""
        return self._lanes.over or self._room() <= 0

    def fill(self) -> None:
        """Take messages up to the limit, first from the lanes that it holds, because no other actor
        may take those."""
        for lane in self._more:
            self._take_from(lane)
        self._more.clear()
        if not self._one_key:
            while (room := self._room()) > 0:
                messages, lanes = self._lanes.take_runs(room)
                self.messages += messages
                self._held += lanes
                if len(messages) < room:
                    break
                self._take_from(lanes[-1])  # of which `room` may have left some
        if not self.over:
            for lane in self._held[self._unwatched :]:
                self._lanes.watch(lane, self._more)
            self._unwatched = len(self._held)

    def return_lanes(self) -> None:
        """Return the lanes, because the batch is done."""
        held, self._held = self._held, []
        self._lanes.return_lanes(held)

    def _take_from(self, lane: Hashable) -> None:
        while (room := self._room()) > 0:
            run = self._lanes.take_run(lane, room)
            self.messages += run
            if len(run) < room:
                return

    def _room(self) -> int:
        """How many messages it takes next. With a limited size, as many of the usual size as there is room for."""
        count = len(self.messages)
        if self._max_size is None:
            return self._limit - count
        self._size += sum(map(self._size_of, self.messages[self._measured :]))
        self._measured = count
        left = self._max_size - self._size
        return min(self._limit - count, max(left * count // max(self._size, 1), 1) if left > 0 else 0)
