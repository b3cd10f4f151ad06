"""Cache of look-ups, with one look-up at a time for each key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")

CACHE_TTL = 2.0
"""Cache TTL in seconds. If something was deleted meanwhile, the store's calls raise an error."""

MAX_ENTRIES = 10_000
"""Largest number of entries of a cache."""


class LookupCache(Generic[K, T]):
    """Results of look-ups, for `CACHE_TTL` seconds.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[K, tuple[float, T]] = {}
        self._lookups: dict[K, asyncio.Future[T]] = {}

    def clear(self) -> None:
        """Forget everything, also the results of running look-ups."""
        self._entries = {}
        self._lookups = {}

    def cached(self, key: K) -> T | None:
        """Return what is cached. None if nothing is."""
        entry = self._entries.get(key)
        return None if entry is None or entry[0] <= self._clock() else entry[1]

    async def get(self, key: K, find: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what is cached, or else look it up. Raises what `find` raises."""
        entry = self._entries.get(key)
        if entry is not None and entry[0] > self._clock():
            return entry[1]
        # Many requests miss the cache when an entry expires. They share one look-up, which continues
        # if the request that began it is cancelled.
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = asyncio.ensure_future(self._look_up(self._entries, key, find))
            self._lookups[key] = lookup
            lookup.add_done_callback(lambda done: self._end_lookup(key, done))
        return await asyncio.shield(lookup)

    def _end_lookup(self, key: K, done: asyncio.Future[T]) -> None:
        if self._lookups.get(key) is done:
            del self._lookups[key]
        if not done.cancelled():
            done.exception()  # retrieve it, all waiting requests may have ended

    async def _look_up(
        self, entries: dict[K, tuple[float, T]], key: K, find: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        found = await find()
        if len(entries) >= MAX_ENTRIES:
            entries.clear()
        entries[key] = (self._clock() + CACHE_TTL, found)
        return found
