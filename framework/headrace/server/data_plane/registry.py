"""Cache of streams and consumers, by their ids and names."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from headrace import store
from headrace.model.errors import UnknownConsumer
from headrace.model.specs import ConsumerSpec
from headrace.server.data_plane.lookup_cache import LookupCache
from headrace.server.errors import Problem

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
    """Looks up streams and consumers, and caches them, see `LookupCache`.

    Args:
        database: returns the open database. It is called at each look-up.
        clock: monotonic time in seconds.
    """

    def __init__(self, database: Callable[[], store.Database], clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._streams: LookupCache[str, CachedStream] = LookupCache(clock)
        self._named: LookupCache[frozenset[str], dict[str, CachedStream]] = LookupCache(clock)
        self._consumers: LookupCache[tuple[str | None, str], CachedConsumer] = LookupCache(clock)
        self._among: LookupCache[tuple[frozenset[str], str], CachedConsumer | None] = LookupCache(clock)

    def clear(self) -> None:
        """Clear the cache after something was created, changed or deleted."""
        self._streams.clear()
        self._named.clear()
        self._consumers.clear()
        self._among.clear()

    async def stream(self, ref: str) -> CachedStream:
        """Return a stream by its id or name. Raises `UnknownStream`."""
        return await self._streams.get(ref, lambda: self._find_stream(ref))

    def cached_stream(self, ref: str) -> CachedStream | None:
        """Return a cached stream by its id or name. None if it isn't cached."""
        return self._streams.cached(ref)

    async def streams_named(self, names: frozenset[str]) -> Mapping[str, CachedStream]:
        """Return those of the streams with these names that exist, by their names and ids. Ids win over names."""
        return await self._named.get(names, lambda: self._find_streams(names))

    async def consumer(self, stream: str, ref: str) -> CachedConsumer:
        """Return a consumer by its id or name, of a stream given by its id or name. Raises
        `UnknownStream`, `UnknownConsumer`."""
        return await self._consumers.get((stream, ref), lambda: self._find_consumer(stream, ref))

    def cached_consumer(self, stream: str | None, ref: str) -> CachedConsumer | None:
        """Return a cached consumer by the arguments of `consumer`, or with None of `consumer_anywhere`. None if it isn't
        cached."""
        return self._consumers.cached((stream, ref))

    async def consumer_anywhere(self, ref: str) -> CachedConsumer:
        """Return a consumer by its id, by a name that is unique among all streams, or as
        `stream:name`.

        Raises `UnknownConsumer`, or a `Problem` if several streams have a consumer of this name.
        """
        return await self._consumers.get((None, ref), lambda: self._find_anywhere(ref))

    async def consumer_among(self, streams: frozenset[str], ref: str) -> CachedConsumer | None:
        """Return a consumer by its id or name, of one of the streams with these names. None if none
        of them has it. Raises a `Problem` if several have one of this name."""
        return await self._among.get((streams, ref), lambda: self._find_among(streams, ref))

    async def _find_stream(self, ref: str) -> CachedStream:
        return CachedStream(*await store.find_stream(self._database(), ref))

    async def _find_streams(self, names: frozenset[str]) -> dict[str, CachedStream]:
        found = [CachedStream(*row) for row in await store.streams_named(self._database(), names)]
        return {stream.name: stream for stream in found} | {stream.id: stream for stream in found}

    async def _find_among(self, streams: frozenset[str], ref: str) -> CachedConsumer | None:
        found = await store.find_consumers(self._database(), ref, streams)
        return await self._with_settings(only_one(found, ref)) if found else None

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
        return await self._with_settings(only_one(found, ref))

    async def _with_settings(self, found: store.Found) -> CachedConsumer:
        spec, version = await store.consumer_spec(self._database(), found.number)
        stream = CachedStream(found.stream_number, found.stream_id, found.stream)
        return CachedConsumer(found.number, found.id, found.name, stream, spec, version)


class Named(Protocol):
    """A consumer, or a schedule."""

    @property
    def stream(self) -> str:
        """The name of its stream."""

    @property
    def name(self) -> str:
        """Its name, which those of other streams may have, too."""


N = TypeVar("N", bound=Named)


def only_one(found: Sequence[N], ref: str, kind: str = "consumer") -> N:
    """Return the one that was found. Raises a `Problem` if there are several."""
    if len(found) > 1:
        names = [f"{one.stream}:{one.name}" for one in found[:MAX_NAMED]]
        raise Problem(
            409, "ambiguous", f"Several streams have a {kind} {ref!r:.80}. Name the stream, too: {' or '.join(names)}."
        )
    return found[0]
