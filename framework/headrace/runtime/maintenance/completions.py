"""Deletes the completions that consumers no longer keep, see the setting `history` of consumers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from time import monotonic

from headrace import store

PASS_EVERY = 60.0
"""Seconds between the beginnings of two passes through the consumers that have completions."""

CALLS = 20
"""How many calls one run makes. Each deletes some thousand rows."""


class Completions:
    """Goes through the consumers that have completions, in bounded runs.

    Args:
        database: an open database.
        clock: monotonic time in seconds.
    """

    def __init__(self, database: store.Database, clock: Callable[[], float] = monotonic) -> None:
        self._database = database
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Look for consumers in the next run, and read their completions from the beginning once. The rows of a consumer that
        keeps no history may all be dead, so it is not looked for in each pass."""
        self._next_pass = 0.0
        self._floors: dict[int, datetime | None] | None = None  # by consumer, the time up to which nothing is left
        self._left: list[int] = []  # the consumers of this pass

    async def delete_old(self, now: datetime | None = None) -> int:
        """Continue the pass, or begin one if it is time. Returns how many rows were deleted. Raises `StoreUnavailable`.

        Args:
            now: the time, for tests. By default the server's clock.
        """
        if not self._left and self._clock() >= self._next_pass:
            self._next_pass = self._clock() + PASS_EVERY
            if self._floors is None:
                self._floors = dict.fromkeys(await store.consumers_with_completions(self._database))
            self._left = list(self._floors)
        deleted = 0
        for _ in range(CALLS):
            if not self._left or self._floors is None:
                break
            consumer = self._left[-1]
            done = await store.delete_old_completions(self._database, consumer, self._floors[consumer], now=now)
            deleted += done.rows
            self._floors[consumer] = done.reached
            if not done.more:
                self._left.pop()
        return deleted
