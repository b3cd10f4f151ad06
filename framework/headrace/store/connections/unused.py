"""What waits for its next use, and is ended if there is none for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Thing = TypeVar("Thing")


class Unused(Generic[Thing]):
    """Things that wait for their next use. One that stays unused is ended, in a separate task.

    Args:
        seconds: returns how long a thing may wait.
        end: ends one.

    Attributes:
        things: since when each is unused, on the clock of `time.monotonic`, the oldest first.
        ending: the tasks that end one now.
    """

    def __init__(self, seconds: Callable[[], float], end: Callable[[Thing], Coroutine[Any, Any, None]]) -> None:
        self._seconds = seconds
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.things: list[tuple[float, Thing]] = []
        self.ending: set[asyncio.Task[None]] = set()

    def keep(self, thing: Thing) -> None:
        """Keep a thing for its next use."""
        self.things.append((time.monotonic(), thing))
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds(), self._end_unused)

    def take_all(self) -> list[Thing]:
        """Take all of them, the oldest first."""
        things, self.things = self.things, []
        return [thing for _, thing in things]

    def end_soon(self, thing: Thing) -> None:
        """End a thing that was taken."""
        task = self._loop.create_task(self._end(thing))
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    def forget(self) -> None:
        """Stop the timer, because something else ends them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_unused(self) -> None:
        before = time.monotonic() - self._seconds() / 2
        unused = [thing for since, thing in self.things if since <= before]
        del self.things[: len(unused)]
        for thing in unused:
            self.end_soon(thing)
        self._timer = self._loop.call_later(self._seconds(), self._end_unused) if self.things else None
