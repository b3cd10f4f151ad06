"""Bounds what screens cost the database, however many there are, and shares it among their users."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import anyio
import msgspec

from headrace.server.errors import Problem
from headrace.store.connections.fair_shares import FairShares, NoPlace

T = TypeVar("T")

RATE = 1.0
"""Reads a second that all screens together may cause, beside the snapshots. One takes up to five short statements."""

BURST = 4.0
"""Reads that may come at once after a pause."""

LONGEST = 5.0
"""Seconds that a poll waits for its turn. Then it is refused, and its screen keeps what it shows."""

FRESH = 5.0
"""Seconds for which a value that was read is returned again, unless somebody changes something."""

OLDEST = 60.0
"""Seconds after which a value is read again also while no turn is free."""

MAX_KEPT = 1_000
"""The most values that are kept."""

MAX_WAITING = 5
"""The most polls of one user that wait for a turn. More would not get one in time."""


_POLL = (b"x-headrace-console", b"poll")
_FIRST = (b"x-headrace-console", b"first")
_FROM_SNAPSHOT = re.compile("/(?:v1|api)/live(?:/|$)")


def is_poll(headers: Iterable[tuple[bytes, bytes]], path: str) -> bool:
    """Return whether a screen asks again for what it shows, beside the snapshot."""
    return _FROM_SNAPSHOT.match(path) is None and any((name, value) == _POLL for name, value in headers)


def is_first(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a page that is being opened asks, before its modules are there."""
    return _FIRST in headers


class Pace:
    """Turns of reads, `RATE` a second. They go round the users that wait for one.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = float("-inf")
        self._users = FairShares(1, 1, MAX_WAITING)

    def take(self, longest: float = 0.0) -> float | None:
        """Take the next turn. Returns the seconds until it comes. None if it would take longer than `longest`."""
        now = self._clock()
        turn = max(self._next, now - (BURST - 1) / RATE)
        if turn - now > longest:
            return None
        self._next = turn + 1 / RATE
        return max(turn - now, 0.0)

    async def turn(self, user: str) -> None:
        """Wait for a turn of a user. Raises a `Problem` with 429 if it doesn't come soon."""
        try:
            async with self._users.place(user, LONGEST):
                seconds = self.take(LONGEST)
                if seconds is None:
                    raise NoPlace
                if seconds:
                    await anyio.sleep(seconds)
        except NoPlace:
            raise Problem(
                429,
                "too_many_screens",
                "Too many screens are open. This one is refreshed later.",
                headers={"retry-after": "5"},
            ) from None


class _Kept(msgspec.Struct):
    value: Any
    read_at: float


class KeptReads:
    """Values that screens show beside the snapshot, such as the settings of a consumer, each read once for all.

    A value is read again when it is five seconds old and a turn is free, when it is a minute old, and after `forget`.

    Args:
        pace: of the reads.
        clock: monotonic time in seconds.
    """

    def __init__(self, pace: Pace, clock: Callable[[], float] = time.monotonic) -> None:
        self._pace = pace
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._locks: dict[str, anyio.Lock] = {}
        self._round = 0

    def forget(self) -> None:
        """Read everything again, since somebody changed something."""
        self._kept.clear()
        self._round += 1

    async def get(self, key: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return the value of a key. Raises what `read` raises."""
        kept = self._kept.get(key)
        age = math.inf if kept is None else self._clock() - kept.read_at
        if kept is not None and (age < FRESH or (age < OLDEST and self._pace.take() is None)):
            return kept.value  # type: ignore[no-any-return]
        lock = self._locks.setdefault(key, anyio.Lock())
        asked = self._clock()
        try:
            async with lock:
                kept = self._kept.get(key)
                if kept is None or kept.read_at < asked:
                    kept = await self._read(key, read)
                return kept.value  # type: ignore[no-any-return]
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._locks.pop(key, None)

    async def _read(self, key: str, read: Callable[[], Awaitable[Any]]) -> _Kept:
        started, read_at = self._round, self._clock()
        kept = _Kept(await read(), read_at)
        if started == self._round:  # else it may be from before the change
            self._kept[key] = kept
            while len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        return kept
