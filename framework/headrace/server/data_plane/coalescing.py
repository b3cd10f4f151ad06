"""Coalescing of database calls. Calls of one kind run one after the other, as long as that costs
little time.

Under load a call grows while it waits its turn. More requests join it, and a call for ten of them
costs the database little more than one for two. The result of one call also spares others. A call
waits at most twice as long as the last call took, within bounds. With many consumers, more calls
run at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from headrace.server.errors import unavailable

MIN_WAIT, MAX_WAIT = 0.005, 0.05
"""Default bounds of the time that a call waits for others, in seconds."""


class Coalescer:
    """Lets calls take turns, by `async with coalescer.turn():` around each call.

    Args:
        clock: monotonic time in seconds.
        min_wait, max_wait: bounds of the time that a call waits for others, in seconds.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, min_wait: float = MIN_WAIT, max_wait: float = MAX_WAIT
    ) -> None:
        self._clock = clock
        self._min_wait = min_wait
        self._max_wait = max_wait
        self._running = 0
        self._wait_limit = min_wait
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn and take it."""
        if self._running:
            await self._wait()
        self._running += 1
        began = self._clock()
        try:
            yield
        finally:
            self._running -= 1
            self._wait_limit = min(max(self._min_wait, 2 * (self._clock() - began)), self._max_wait)
            self._start_next()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        timer = loop.call_later(self._wait_limit, _begin, turn)
        try:
            await turn
        finally:
            timer.cancel()

    def _start_next(self) -> None:
        while self._waiting and not self._running:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


def _begin(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


def fail(answers: Iterable[asyncio.Future[Any]], error: BaseException) -> None:
    """Raise an error in all requests of a shared call that have no result yet.

    A cancellation becomes `StoreUnavailable`, since it is unknown how far the call came.
    """
    if not isinstance(error, Exception):
        error = unavailable("The server stops, so it is unknown whether this was done. Try again.")
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
