"""Deletes unique keys whose messages are no longer pending.

Publishers decide by themselves whether a message is pending, and consumers write nothing. So a unique key stays
after its message is done, until it is published again or deleted here.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from headrace import store

PASS_EVERY = 60.0
"""Seconds between the beginnings of two passes through all unique keys. So a key that is published all the time is
seldom deleted and inserted again.
"""

CALLS = 20
"""How many calls one run makes. Each looks at a thousand unique keys."""


class UniqueKeys:
    """Goes through the unique keys of all streams, in bounded runs.

    Args:
        database: an open database.
        clock: monotonic time in seconds.
    """

    def __init__(self, database: store.Database, clock: Callable[[], float] = monotonic) -> None:
        self._database = database
        self._clock = clock
        self._next_pass = 0.0
        self._streams: list[int] = []  # of this pass, the current one last
        self._reached = ""

    async def delete_done(self) -> int:
        """Continue the pass, or begin one if it is time. Returns how many unique keys were deleted.

        Raises:
            StoreUnavailable, FilterTooSlow: the rest of that stream is left to the next pass.
        """
        if not self._streams and self._clock() >= self._next_pass:
            self._next_pass = self._clock() + PASS_EVERY
            self._streams = await store.streams_with_unique_keys(self._database)
        deleted = 0
        for _ in range(CALLS):
            if not self._streams:
                break
            stream, after = self._streams.pop(), self._reached
            self._reached = ""
            done = await store.delete_done_unique_keys(self._database, stream, after)
            deleted += done.keys
            if done.reached is not None:
                self._streams.append(stream)
                self._reached = done.reached
        return deleted
