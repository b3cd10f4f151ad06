"""Cache of streams and consumers, by their ids and names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from headrace import store
from headrace.model.errors import UnknownConsumer
from headrace.model.specs import ConsumerSpec
from headrace.server.errors import Problem

K = TypeVar("K")
T = TypeVar("T")

CACHE_TTL = 2.0
"""Cache TTL in seconds. If something was deleted meanwhile, the store's calls raise an error."""

MAX_ENTRIES = 10_000
"""Largest number of cached entries of each kind."""

MAX_NAMED = 20
"""Largest number of consumers that the error about an ambiguous name lists."""


class CachedStream(msgspec.Struct, frozen=True):
    """A stream. `number` is its id in the database, `id` the one in the API."""

    number: int
    id: str
    name: str


class CachedConsumer(msgspec.Struct, frozen=True):
    """A consumer. `number` is its id in the database, `id` the one in the API. `version` is the
    version of its settings."""

    number: int
    id: str
    name: str
    stream: CachedStream
    spec: ConsumerSpec
    version: int


class Registry:
    """Looks up streams and consumers, and caches them for `CACHE_TTL` seconds.

    Args:
        database: returns the open database. It is called at each look-up.
        clock: monotonic time in seconds.
    """

    def __init__(self, database: Callable[[], store.Database], clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._streams: dict[str, tuple[float, CachedStream]] = {}
        self._named: dict[frozenset[str], tuple[float, dict[str, CachedStream]]] = {}
        self._consumers: dict[tuple[str | None, str], tuple[float, CachedConsumer]] = {}
        self._among: dict[tuple[frozenset[str], str], tuple[float, CachedConsumer | None]] = {}
        self._lookups: dict[tuple[int, Any], asyncio.Future[Any]] = {}

    def clear(self) -> None:
        """Clear the cache after something was created, changed or deleted."""
        self._streams.clear()
        self._named.clear()
        self._consumers.clear()
        self._among.clear()
        self._lookups.clear()

    async def stream(self, ref: str) -> CachedStream:
        """Return a stream by its id or name. Raises `UnknownStream`."""
        return await self._cached(self._streams, ref, lambda: self._find_stream(ref))

    async def streams_named(self, names: frozenset[str]) -> Mapping[str, CachedStream]:
        """Return those of the streams with these names that exist, by their names and ids. Ids win over names."""
        return await self._cached(self._named, names, lambda: self._find_streams(names))

    async def consumer(self, stream: str, ref: str) -> CachedConsumer:
        """Return a consumer by its id or name, of a stream given by its id or name. Raises
        `UnknownStream`, `UnknownConsumer`."""
        return await self._cached(self._consumers, (stream, ref), lambda: self._find_consumer(stream, ref))

    def cached_consumer(self, stream: str, ref: str) -> CachedConsumer | None:
        """Return a cached consumer by the arguments of `consumer`. None if it isn't cached."""
        entry = self._consumers.get((stream, ref))
        return None if entry is None or entry[0] <= self._clock() else entry[1]

    async def consumer_anywhere(self, ref: str) -> CachedConsumer:
        """Return a consumer by its id, by a name that is unique among all streams, or as
        `stream:name`.

        Raises `UnknownConsumer`, or a `Problem` if several streams have a consumer of this name.
        """
        return await self._cached(self._consumers, (None, ref), lambda: self._find_anywhere(ref))

    async def consumer_among(self, streams: frozenset[str], ref: str) -> CachedConsumer | None:
        """Return a consumer by its id or name, of one of the streams with these names. None if none
        of them has it. Raises a `Problem` if several have one of this name."""
        return await self._cached(self._among, (streams, ref), lambda: self._find_among(streams, ref))

    async def _cached(self, cache: dict[K, tuple[float, T]], key: K, find: Callable[[], Coroutine[Any, Any, T]]) -> T:
        entry = cache.get(key)
        if entry is not None and entry[0] > self._clock():
            return entry[1]
        # Many requests miss the cache when an entry expires. They share one look-up, which goes on
        # if the request that began it is cancelled.
        lookup = self._lookups.get((id(cache), key))
        if lookup is None:
            lookup = asyncio.ensure_future(self._look_up(cache, key, find))
            self._lookups[id(cache), key] = lookup
            lookup.add_done_callback(lambda done: self._end_lookup((id(cache), key), done))
        found: T = await asyncio.shield(lookup)
        return found

    def _end_lookup(self, place: tuple[int, Any], done: asyncio.Future[Any]) -> None:
        if self._lookups.get(place) is done:
            del self._lookups[place]
        if not done.cancelled():
            done.exception()  # retrieve it, all waiting requests may have ended

    async def _look_up(self, cache: dict[K, tuple[float, T]], key: K, find: Callable[[], Coroutine[Any, Any, T]]) -> T:
        found = await find()
        if len(cache) >= MAX_ENTRIES:
            cache.clear()
        cache[key] = (self._clock() + CACHE_TTL, found)
        return found

    async def _find_stream(self, ref: str) -> CachedStream:
        return CachedStream(*await store.find_stream(self._database(), ref))

    async def _find_streams(self, names: frozenset[str]) -> dict[str, CachedStream]:
        found = [CachedStream(*row) for row in await store.streams_named(self._database(), names)]
        return {stream.name: stream for stream in found} | {stream.id: stream for stream in found}

    async def _find_among(self, streams: frozenset[str], ref: str) -> CachedConsumer | None:
        found = await store.find_consumers(self._database(), ref, streams)
        return await self._with_settings(_only(found, ref)) if found else None

    async def _find_consumer(self, stream: str, ref: str) -> CachedConsumer:
        parent = await self.stream(stream)
        found = await store.find_consumers(self._database(), ref, [parent.name])
        if not found:
            await store.stream(self._database(), parent.name)  # raises if the stream no longer exists
            raise UnknownConsumer(f"The stream {parent.name!r} has no consumer {ref!r}.")
        return await self._with_settings(found[0])

    async def _find_anywhere(self, ref: str) -> CachedConsumer:
        stream, colon, name = ref.partition(":")
        if colon:
            return await self.consumer(stream, name)
        found = await store.find_consumers(self._database(), ref)
        if not found:
            raise UnknownConsumer(f"No stream has a consumer {ref!r}.")
        return await self._with_settings(_only(found, ref))

    async def _with_settings(self, found: store.Found) -> CachedConsumer:
        spec, version = await store.consumer_spec(self._database(), found.number)
        stream = CachedStream(found.stream_number, found.stream_id, found.stream)
        return CachedConsumer(found.number, found.id, found.name, stream, spec, version)


def _only(found: Sequence[store.Found], ref: str) -> store.Found:
    """Return the one consumer that was found. Raises a `Problem` if there are several."""
    if len(found) > 1:
        names = [f"{one.stream}:{one.name}" for one in found[:MAX_NAMED]]
        raise Problem(
            409, "ambiguous", f"Several streams have a consumer {ref!r:.80}. Name the stream, too: {' or '.join(names)}."
        )  # fmt: skip
    return found[0]
