"""Gathering: requests that come within a moment join the next call of the database.

Clients that were answered together mostly ask again together, some tenths of a millisecond apart. A call that began with
the first of them would leave the others to the next one, and cost the database about as much as a call for all of them. So
a call waits for as many requests as the last one had: for no longer than that one took, and for at most a millisecond. After
a call for few requests, the next one doesn't wait, nor does one that begins long after the last one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager

LONGEST = 0.001
"""The longest time that a call waits for requests, in seconds."""

FEW = 4
"""Number of requests in a call below which the next one doesn't wait. Little would be saved."""

RECENT = 0.1
"""Seconds after the end of a call from which the next one doesn't wait, since its requests no longer come together."""


class Gathering:
    """Gathers the requests of one queue.

    Args:
        clock: monotonic time in seconds.

    Attributes:
        limit: the longest time that the next call waits, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._expected = 0
        self._ended = 0.0  # when the last call ended
        self.limit = 0.0
        self._waiting: asyncio.Future[None] | None = None

    async def gather(self, queue: Sized) -> None:
        """Wait until as many requests as in the last call are in a queue, or until the time is over."""
        if len(queue) >= self._expected or self._expected < FEW or self._waiting is not None:
            return
        if self._clock() - self._ended > RECENT:
            return
        loop = asyncio.get_running_loop()
        waiting = self._waiting = loop.create_future()
        timer = loop.call_later(self.limit, _end, waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting = None

    def joined(self, queue: Sized) -> None:
        """Notice that a request has joined the queue."""
        if self._waiting is not None and len(queue) >= self._expected:
            _end(self._waiting)

    @contextmanager
    def call(self, requests: Sized) -> Iterator[None]:
        """Make a call for these requests in this context."""
        began = self._clock()
        try:
            yield
        finally:
            self._expected = len(requests)
            self._ended = self._clock()
            self.limit = min(self._ended - began, LONGEST)


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
