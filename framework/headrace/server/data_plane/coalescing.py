"""Coalescing of database calls. Calls of one kind run one after the other, as long as that costs
little time.

Under load a call grows while it waits its turn. More requests join it, and a call for ten of them
costs the database little more than one for two. The result of one call also spares others. A call
waits at most twice as long as the last call took, and at most `LONGEST`. With many consumers, more
calls run at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

SHORTEST, LONGEST = 0.005, 0.05
"""Bounds of the time that a call waits for others, in seconds."""


class Coalescer:
    """Lets calls take turns, by `async with turns.one():` around each call.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._under_way = 0
        self._patience = SHORTEST
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a turn and take it."""
        if self._under_way:
            await self._wait()
        self._under_way += 1
        began = self._clock()
        try:
            yield
        finally:
            self._under_way -= 1
            self._patience = min(max(SHORTEST, 2 * (self._clock() - began)), LONGEST)
            self._call_next()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        timer = loop.call_later(self._patience, _give, turn)
        try:
            await turn
        finally:
            timer.cancel()

    def _call_next(self) -> None:
        while self._waiting and not self._under_way:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


def _give(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
