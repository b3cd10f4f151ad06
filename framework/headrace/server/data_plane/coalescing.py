"""Coalescing of database calls. Calls of one kind run one after the other, as long as that costs
little time.

Under load a call grows while it waits its turn. More requests join it, and a call for ten of them
costs the database little more than one for two. The result of one call also spares others: what it has
read, they leave out. A call waits at most `PATIENCE` times as long as the last call of its own consumer
took, within bounds. So slow calls of one consumer don't delay those of another, and with many consumers,
more calls run at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from headrace.server.errors import unavailable

PATIENCE = 4
"""With half of it, three consumers in turn reach it now and then, and two of them read the same messages."""

MIN_WAIT, MAX_WAIT = 0.005, 0.05
"""Default bounds of the time that a call waits for others, in seconds."""


class Coalescer:
    """Lets calls take turns. Each consumer has its `turns`.

    Args:
        clock: monotonic time in seconds.
        min_wait, max_wait: bounds of the time that a call waits for others, in seconds.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, min_wait: float = MIN_WAIT, max_wait: float = MAX_WAIT
    ) -> None:
        self.clock = clock
        self.min_wait = min_wait
        self.max_wait = max_wait
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def turns(self) -> CoalescedCalls:
        """Return the turns of one consumer."""
        return CoalescedCalls(self)

    async def enter(self, wait_limit: float) -> None:
        """Wait until no call runs, at most for some seconds, and count one."""
        if self._running:
            await self._wait(wait_limit)
        self._running += 1

    def leave(self) -> None:
        """End a call."""
        self._running -= 1
        while self._waiting and not self._running:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def _wait(self, wait_limit: float) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        timer = loop.call_later(wait_limit, _begin, turn)
        try:
            await turn
        finally:
            timer.cancel()


class CoalescedCalls:
    """The calls of one consumer, by `async with turns.turn():` around each."""

    def __init__(self, coalescer: Coalescer) -> None:
        self._coalescer = coalescer
        self._wait_limit = coalescer.min_wait

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn and take it."""
        coalescer = self._coalescer
        await coalescer.enter(self._wait_limit)
        began = coalescer.clock()
        try:
            yield
        finally:
            took = coalescer.clock() - began
            self._wait_limit = min(max(coalescer.min_wait, PATIENCE * took), coalescer.max_wait)
            coalescer.leave()


def _begin(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


def fail(answers: Iterable[asyncio.Future[Any]], error: BaseException) -> None:
    """Raise an error in all requests of a shared call that have no result yet.

    A cancellation becomes `StoreUnavailable`, since it is unknown how far the call came.
    """
    if not isinstance(error, Exception):
        error = unavailable("The server is stopping, so it is unknown whether this was done. Try again.")
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
