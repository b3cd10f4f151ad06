"""Cache of streams and consumers, by their ids and names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from headrace import store
from headrace.model.errors import UnknownConsumer
from headrace.model.specs import ConsumerSpec
from headrace.server.errors import Problem

K = TypeVar("K")
T = TypeVar("T")

FRESH = 2.0
"""Cache TTL in seconds. If something was deleted meanwhile, the store's calls raise an error."""

MOST = 10_000
"""Largest number of cached entries of each kind."""


class KnownStream(msgspec.Struct, frozen=True):
    """A stream. `number` is its id in the database, `id` the one in the API."""

    number: int
    id: str
    name: str


class KnownConsumer(msgspec.Struct, frozen=True):
    """A consumer. `number` is its id in the database, `id` the one in the API. `version` is the
    version of its settings."""

    number: int
    id: str
    name: str
    stream: KnownStream
    spec: ConsumerSpec
    version: int


class Registry:
    """Looks up streams and consumers, and caches them for `FRESH` seconds.

    Args:
        database: returns the open database. It is called at each look-up.
        clock: monotonic time in seconds.
    """

    def __init__(self, database: Callable[[], store.Database], clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._streams: dict[str, tuple[float, KnownStream]] = {}
        self._consumers: dict[tuple[str | None, str], tuple[float, KnownConsumer]] = {}
        self._searches: dict[tuple[int, Any], asyncio.Future[Any]] = {}

    def forget(self) -> None:
        """Clear the cache after something was created, changed or deleted."""
        self._streams.clear()
        self._consumers.clear()
        self._searches.clear()

    async def stream(self, ref: str) -> KnownStream:
        """Return a stream by its id or name. Raises `UnknownStream`."""
        return await self._remembered(self._streams, ref, lambda: self._find_stream(ref))

    async def consumer(self, stream: str, ref: str) -> KnownConsumer:
        """Return a consumer by its id or name, of a stream given by its id or name. Raises
        `UnknownStream`, `UnknownConsumer`."""
        return await self._remembered(self._consumers, (stream, ref), lambda: self._find_consumer(stream, ref))

    def known(self, stream: str, ref: str) -> KnownConsumer | None:
        """Return a cached consumer by the arguments of `consumer`. None if it isn't cached."""
        known = self._consumers.get((stream, ref))
        return None if known is None or known[0] <= self._clock() else known[1]

    async def consumer_anywhere(self, ref: str) -> KnownConsumer:
        """Return a consumer by its id, by a name that is unique among all streams, or as
        `stream:name`.

        Raises `UnknownConsumer`, or a `Problem` if several streams have a consumer of this name.
        """
        return await self._remembered(self._consumers, (None, ref), lambda: self._find_anywhere(ref))

    async def _remembered(
        self, memory: dict[K, tuple[float, T]], key: K, find: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        known = memory.get(key)
        if known is not None and known[0] > self._clock():
            return known[1]
        # Many requests miss the cache when an entry expires. They share one look-up, which goes on
        # if the request that began it is cancelled.
        search = self._searches.get((id(memory), key))
        if search is None:
            search = asyncio.ensure_future(self._search(memory, key, find))
            self._searches[id(memory), key] = search
            search.add_done_callback(lambda done: self._searched((id(memory), key), done))
        found: T = await asyncio.shield(search)
        return found

    def _searched(self, place: tuple[int, Any], done: asyncio.Future[Any]) -> None:
        if self._searches.get(place) is done:
            del self._searches[place]
        if not done.cancelled():
            done.exception()  # retrieve it, all waiting requests may have ended

    async def _search(self, memory: dict[K, tuple[float, T]], key: K, find: Callable[[], Coroutine[Any, Any, T]]) -> T:
        found = await find()
        if len(memory) >= MOST:
            memory.clear()
        memory[key] = (self._clock() + FRESH, found)
        return found

    async def _find_stream(self, ref: str) -> KnownStream:
        return KnownStream(*await store.find_stream(self._database(), ref))

    async def _find_consumer(self, stream: str, ref: str) -> KnownConsumer:
        known = await self.stream(stream)
        found = await store.find_consumers(self._database(), ref, known.name)
        if not found:
            await store.stream(self._database(), known.name)  # raises if the stream no longer exists
            raise UnknownConsumer(f"There is no consumer {ref!r} on the stream {known.name!r}.")
        return await self._known(found[0])

    async def _find_anywhere(self, ref: str) -> KnownConsumer:
        stream, colon, name = ref.partition(":")
        if colon:
            return await self.consumer(stream, name)
        found = await store.find_consumers(self._database(), ref)
        if not found:
            raise UnknownConsumer(f"No stream has a consumer {ref!r}.")
        if len(found) > 1:
            names = [f"{one.stream}:{one.name}" for one in found]
            raise Problem(
                409,
                "ambiguous",
                f"Several streams have a consumer {ref!r}: write which is meant, {' or '.join(names)}.",
            )
        return await self._known(found[0])

    async def _known(self, found: store.Found) -> KnownConsumer:
        spec, version = await store.consumer_spec(self._database(), found.number)
        stream = KnownStream(found.stream_number, found.stream_id, found.stream)
        return KnownConsumer(found.number, found.id, found.name, stream, spec, version)
