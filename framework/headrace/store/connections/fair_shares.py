"""Places that owners share fairly, such as the connections that may evaluate conditions at the same time.

An owner that asks for many places gets few at a time, and free places go round the owners that wait. So one owner
delays another by one use of a place at most, however much it asks for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from itertools import islice


class NoPlace(Exception):
    """No place became free in time, or too many calls of the owner wait already."""


class FairShares:
    """A number of places, of which each owner has a part at most.

    Args:
        places: how many places there are.
        per_owner: the most places of one owner at a time.
        max_waiting: the most calls of one owner that wait for a place.
    """

    def __init__(self, places: int, per_owner: int, max_waiting: int) -> None:
        self.places = places
        self.per_owner = per_owner
        self.max_waiting = max_waiting
        self.in_use = 0
        self._of: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}  # in the order of their next turns

    @property
    def owners(self) -> int:
        """How many owners have a place or wait for one. Nothing is kept about any other."""
        return len(self._of.keys() | self._waiting.keys())

    @asynccontextmanager
    async def place(
        self, owner: Hashable, timeout: float | None = None, *, bounded: bool = True
    ) -> AsyncIterator[None]:
        """Hold a place.

        Args:
            timeout: the longest wait for it in seconds. None waits for as long as it takes.
            bounded: refuse if `max_waiting` calls of this owner wait already. Leave it out only where their number is
                bounded in another way.

        Raises:
            NoPlace.
        """
        await self.take(owner, timeout, bounded=bounded)
        try:
            yield
        finally:
            self.release(owner)

    async def take(self, owner: Hashable, timeout: float | None = None, *, bounded: bool = True) -> None:
        """Take a place, as `place` does. Call `release` when it is no longer needed."""
        if owner not in self._waiting and self._has_room(owner):
            self._give(owner)
            return
        queue = self._waiting.setdefault(owner, deque())
        if bounded and len(queue) >= self.max_waiting:
            raise NoPlace
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            async with asyncio.timeout(timeout):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # the place was given just as the wait ended
                self.release(owner)
            else:
                self._leave(owner, turn)
            if isinstance(error, TimeoutError):
                raise NoPlace from None
            raise

    def _leave(self, owner: Hashable, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(owner)
        if queue is not None:
            if turn in queue:
                queue.remove(turn)
            if not queue:
                del self._waiting[owner]

    def _has_room(self, owner: Hashable) -> bool:
        return self.in_use < self.places and self._of.get(owner, 0) < self.per_owner

    def _give(self, owner: Hashable) -> None:
        self.in_use += 1
        self._of[owner] = self._of.get(owner, 0) + 1

    def release(self, owner: Hashable) -> None:
        """Release a place."""
        self.in_use -= 1
        if self._of[owner] == 1:
            del self._of[owner]
        else:
            self._of[owner] -= 1
        while following := [*islice(filter(self._has_room, self._waiting), 1)]:
            self._serve(following[0])

    def _serve(self, owner: Hashable) -> None:
        """Give a place to the first call of an owner, and put the owner behind all others."""
        queue = self._waiting.pop(owner)
        turn = queue.popleft()
        if queue:
            self._waiting[owner] = queue
        if not turn.done():
            self._give(owner)
            turn.set_result(None)
