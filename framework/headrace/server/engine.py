"""Engine of the API's dialects. Each server process has one for each database.

It publishes, leases and settles as `MessageEngine` does, knows the streams and consumers, and runs beside an app's consumers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import anyio
import anyio.abc
import msgspec

from headrace import store
from headrace.admin import Admin
from headrace.app.app import App
from headrace.model.watching.audit import Actor
from headrace.runtime.pipeline.shared import Shared
from headrace.server.access.transform_modules import TransformModules
from headrace.server.data_plane.message_cache import MessageCaches
from headrace.server.data_plane.message_engine import MessageEngine
from headrace.server.data_plane.registry import CachedConsumer, CachedStream, Registry
from headrace.server.options import Options
from headrace.sources.postgres.connection.untrusted import Refusal, SourceDatabase
from headrace.sources.postgres.spec import PostgresSpec

IDLE_TIMEOUT = 60.0
"""Seconds after which the state of an unused consumer is removed from memory."""


class Names(Protocol):
    """The names of a further database's streams and sources, which are unique among all databases.

    Attributes:
        database: the name of the database.
    """

    database: str

    async def reachable(self, kind: store.PlaceKind, names: Iterable[str]) -> frozenset[str]:
        """Return those of these names that lead to this database."""

    async def claim(self, kind: store.PlaceKind, name: str) -> None:
        """Reserve a name before it is created. Raises `AlreadyExists` if another database has it."""

    async def confirm(self, kind: store.PlaceKind, name: str, uid: str) -> None:
        """Note the id of what was created under a name."""

    async def forget(self, kind: store.PlaceKind, name: str) -> None:
        """Free a name after what had it was deleted."""


class Further(Protocol):
    """The further databases of a server, as its routes use them."""

    @property
    def exist(self) -> bool:
        """Whether there may be any."""

    async def engines(self) -> tuple[Mapping[str, Engine], list[str]]:
        """Return the engines of those that are open, by name, and the names of the others."""

    async def engine(self, name: str) -> Engine:
        """Return the engine of one. Raises `UnknownDatabase`, or `StoreUnavailable` if it is away."""

    def look(self) -> None:
        """Notice soon that one was added or removed."""


class Engine(MessageEngine):
    """Publishes, leases and settles for the API, beside an app's consumers. See
    `headrace.app.attached`.

    Args:
        app: the app with the database. The engine works while the app runs.
        refusal: returns why a source may not connect to an address. None allows all.
        options: the options of the server.

    Attributes:
        names: the names of the database, if it is a further one.
        further: the further databases, if it is the server's own.
        requests: returns the number of answered requests as `requests` and that of running requests
            as `in_flight`, where they are counted.
        look_for_jobs: called when a job was created.
    """

    def __init__(
        self,
        app: App,
        clock: Callable[[], float] = time.monotonic,
        *,
        refusal: Refusal | None = None,
        options: Options | None = None,
    ) -> None:
        options = options or Options()
        super().__init__(options.max_cached, clock)
        self.app = app
        self._options = options
        self.transforms = TransformModules(options.transforms)
        self._refusal = refusal
        self.requests: Callable[[], dict[str, int]] = dict
        self.look_for_jobs: Callable[[], None] = lambda: None
        self.names: Names | None = None
        self.further: Further | None = None
        self._registry = Registry(lambda: app.database, clock)
        self.on_clear_caches(self._registry.clear)
        self._draining = anyio.Event()
        self._group: anyio.abc.TaskGroup | None = None

    # --- administration

    def admin(self, actor: Actor) -> Admin:
        """Return the administration, whose changes are recorded in the name of an actor."""
        admin = Admin(self.app.database, stored_database=self.database_of, given_database=self.database_of)
        return admin.acting_as(actor)

    def database_of(self, spec: PostgresSpec) -> SourceDatabase | None:
        """Return the database of a source whose URL may come from a user of the API. Otherwise None."""
        return self.app.database_of(spec, self._refusal)

    # --- streams and consumers

    async def stream(self, ref: str) -> CachedStream:
        """Return a stream by its id or name. Raises `UnknownStream`."""
        return await self._registry.stream(ref)

    def cached_stream(self, ref: str) -> CachedStream | None:
        """Like `stream`, from the cache only. None if it isn't cached."""
        return self._registry.cached_stream(ref)

    async def streams_named(self, names: frozenset[str]) -> Mapping[str, CachedStream]:
        """Return those of the streams with these names that exist, by their names and ids. Ids win over names."""
        return await self._registry.streams_named(names)

    async def consumer_among(self, streams: frozenset[str], ref: str) -> CachedConsumer | None:
        """Return a consumer by its id or name, of one of the streams with these names. None if none
        of them has it. Raises a `Problem` if several have one of this name."""
        return await self._registry.consumer_among(streams, ref)

    async def consumer(self, stream: str, ref: str) -> CachedConsumer:
        """Return a consumer by its id or name, of a stream given by its id or name. Raises
        `UnknownStream`, `UnknownConsumer`."""
        return await self._registry.consumer(stream, ref)

    def cached_consumer(self, stream: str, ref: str) -> CachedConsumer | None:
        """Like `consumer`, from the cache only. None if it isn't cached."""
        return self._registry.cached_consumer(stream, ref)

    def cached_consumer_anywhere(self, ref: str) -> CachedConsumer | None:
        """Like `consumer_anywhere`, from the cache only. None if it isn't cached."""
        return self._registry.cached_consumer(None, ref)

    async def consumer_anywhere(self, ref: str) -> CachedConsumer:
        """Return a consumer by its id, by a name that is unique among all streams, or as
        `stream:name`.

        Raises `UnknownConsumer`, or a `Problem` if several streams have a consumer of this name.
        """
        return await self._registry.consumer_anywhere(ref)

    def statistics(self) -> dict[str, Any]:
        """Return the counts since the start and the number of requests that wait for messages."""
        waiting = sum(one.waiting for one in self._receivers.values())
        return {**msgspec.structs.asdict(self.counts), "waiting": waiting}

    def app_statistics(self) -> dict[str, Any]:
        """Return the server's part of the app's statistics: messages and requests."""
        return {"server": {**self.statistics(), **self.requests()}}

    # --- as attached to the app

    async def run(self, shared: Shared) -> None:
        """Serve until `drain`, and until the tasks that were started have ended."""
        self._waits_ended = False
        self._shared = shared
        if self._options.max_judging is not None:
            shared.database.limit_judging(self._options.max_judging)
        self._ack_ids = None  # the database may not be the same as last time
        self.clear_caches()
        self._tasks.open()
        try:
            async with anyio.create_task_group() as self._group:
                self._group.start_soon(self._remove_unused)
                await self._draining.wait()
                await self._tasks.finish()
                self._group.cancel_scope.cancel()
        finally:
            self._draining = anyio.Event()  # reset here, since `drain` may be called before `run` begins
            self._group = self._shared = None
            self._publishes.clear()
            self._receivers.clear()
            self._settles.clear()
            self._given.clear()
            self._caches = MessageCaches(self._options.max_cached)
            await self._tasks.cancel()

    def end_waits(self) -> None:
        """Answer all requests that wait for messages, and let no others wait. Everything else continues."""
        self._waits_ended = True
        for receivers in self._receivers.values():
            receivers.drain()

    def drain(self) -> None:
        """Answer waiting requests, and end once the running database calls have ended."""
        self.end_waits()
        self._draining.set()

    def hurry(self) -> None:
        """End without waiting for running database calls."""
        if self._group is not None:
            self._group.cancel_scope.cancel()

    def notified(self, stream_id: int) -> None:
        """Wake the receivers of a stream after a commit by any process."""
        for receivers in self._receivers.values():
            if receivers.consumer.stream.number == stream_id:
                receivers.wake()

    def published(self, stream: str) -> None:
        """Wake the receivers of a stream, given by name, after a publish by this process."""
        for receivers in self._receivers.values():
            if receivers.consumer.stream.name == stream:
                receivers.wake()

    def set_polling(self, *, polling: bool) -> None:
        """Set whether `notified` is called on commits."""
        self._polling = polling
        if polling:  # history may be rewound, which the next lease call detects
            self._caches.clear()
        for receivers in self._receivers.values():
            receivers.calls.polling = polling
            receivers.wake()

    async def _remove_unused(self) -> None:
        while True:
            await anyio.sleep(IDLE_TIMEOUT)
            self.remove_unused()

    def remove_unused(self) -> None:
        """Remove the state of streams and consumers that were not used for `IDLE_TIMEOUT`."""
        before = self._clock() - IDLE_TIMEOUT
        for number, receivers in list(self._receivers.items()):
            if receivers.used_at < before and receivers.unused:
                del self._receivers[number]
        for number, settles in list(self._settles.items()):
            if settles.used_at < before and settles.unused:
                del self._settles[number]
        for name, publishes in list(self._publishes.items()):
            if publishes.used_at < before and publishes.unused:
                del self._publishes[name]
        self._caches.keep({one.cache for one in self._receivers.values()})
        self.forget_messages()  # another server may have erased some

    def forget_messages(self) -> None:
        """Remove all messages from the memory of this server. They are read again when they are needed."""
        self._caches.clear()
