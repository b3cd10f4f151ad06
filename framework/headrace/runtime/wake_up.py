"""A flag for which one task waits (`WakeUp`)."""

from __future__ import annotations

import asyncio


class WakeUp:
    """A flag for which one task waits, at most for some seconds.

    Parts that wait once per message use it, since a wait costs one future and one timer. An event and a cancel scope of anyio
    cost several times as much: uvloop's timers fire up to a millisecond early, and the scope starts others until its deadline.
    """

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Set the flag, which ends the wait."""
        self._is_set = True
        if self._waiter is not None:
            _end(self._waiter)

    def clear(self) -> None:
        """Clear the flag, so that the next wait takes until it is set again."""
        self._is_set = False

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until the flag is set.

        Args:
            seconds: the longest wait. None for no limit.

        Returns:
            Whether it is set.
        """
        if self._is_set:
            await asyncio.sleep(0)  # other tasks run, and a cancellation is raised
            return True
        assert self._waiter is None, "another task waits for this flag"
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _end, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        return self._is_set


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
