"""The directory: streams and consumers by what clients call them, an id or a name."""

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
"""Seconds for which what was found is taken to be so still. What was deleted meanwhile is told by the store."""

MOST = 10_000
"""How many are remembered."""


class KnownStream(msgspec.Struct, frozen=True):
    """A stream. `number` is the database's, `id` the API's."""

    number: int
    id: str
    name: str


class KnownConsumer(msgspec.Struct, frozen=True):
    """A consumer. `number` is the database's, `id` the API's; `version` that of its settings."""

    number: int
    id: str
    name: str
    stream: KnownStream
    spec: ConsumerSpec
    version: int


class Directory:
    """Finds streams and consumers, and remembers them for a moment.

    Args:
        database: the open database, asked for at each look.
        clock: seconds, monotonic.
    """

    def __init__(self, database: Callable[[], store.Database], clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._streams: dict[str, tuple[float, KnownStream]] = {}
        self._consumers: dict[tuple[str | None, str], tuple[float, KnownConsumer]] = {}
        self._searches: dict[tuple[int, Any], asyncio.Future[Any]] = {}

    def forget(self) -> None:
        """Something was made, changed or deleted: look anew."""
        self._streams.clear()
        self._consumers.clear()
        self._searches.clear()

    async def stream(self, ref: str) -> KnownStream:
        """A stream by its id or name. Raises `UnknownStream`."""
        return await self._remembered(self._streams, ref, lambda: self._find_stream(ref))

    async def consumer(self, stream: str, ref: str) -> KnownConsumer:
        """A consumer by its id or name, of a stream by its. Raises `UnknownStream`, `UnknownConsumer`."""
        return await self._remembered(self._consumers, (stream, ref), lambda: self._find_consumer(stream, ref))

    def known(self, stream: str, ref: str) -> KnownConsumer | None:
        """A consumer that is remembered, by what `consumer` was asked."""
        known = self._consumers.get((stream, ref))
        return None if known is None or known[0] <= self._clock() else known[1]

    async def consumer_anywhere(self, ref: str) -> KnownConsumer:
        """A consumer by its id, by a name that only one stream has a consumer of, or as `stream:name`.

        Raises `UnknownConsumer`, or a `Problem` when several streams have one.
        """
        return await self._remembered(self._consumers, (None, ref), lambda: self._find_anywhere(ref))

    async def _remembered(
        self, memory: dict[K, tuple[float, T]], key: K, find: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        known = memory.get(key)
        if known is not None and known[0] > self._clock():
            return known[1]
        # Many ask at the moment that it grows old: one of them looks for all, whatever becomes of his own request.
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
            done.exception()  # those who asked may all have gone

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
            await store.stream(self._database(), known.name)  # says so when it is the stream that has gone
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
