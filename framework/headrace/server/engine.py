"""Engine of the API's dialects. Each server process has one.

    publish ── PublishBatcher (of a stream) ── store.publish_many
    receive ── Receivers (of a consumer) ── store.lease, divided into shares
    settle ─── SettleBatcher (of a consumer) ─── store.settle

Concurrent requests share database calls. The engine keeps no state that another server would need.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol
from uuid import UUID

import anyio
import anyio.abc
import msgspec

from headrace import store
from headrace.admin import Admin
from headrace.app.app import App
from headrace.model.ack_ids import AckId, AckIds, InvalidAckId
from headrace.model.errors import InvalidInput, StoreUnavailable, UnknownConsumer, UnknownStream
from headrace.model.outcomes import Failure
from headrace.runtime.pipeline.shared import Shared
from headrace.server.access.transform_modules import TransformModules
from headrace.server.data_plane.background_tasks import BackgroundTasks
from headrace.server.data_plane.bounds import MAX_PUBLISHED, MAX_RECEIVED, MAX_WAIT
from headrace.server.data_plane.coalescing import Coalescer
from headrace.server.data_plane.given_leases import GivenLeases
from headrace.server.data_plane.message_cache import MessageCaches
from headrace.server.data_plane.publish_batching import Incoming, PublishBatcher
from headrace.server.data_plane.receive_request import Gone, Receiver, Share
from headrace.server.data_plane.receiving import Receivers
from headrace.server.data_plane.registry import CachedConsumer, CachedStream, Registry
from headrace.server.data_plane.settle_batching import Lost, SettleBatcher
from headrace.server.errors import unavailable
from headrace.server.options import Options
from headrace.sources.postgres.connection.untrusted import Refusal, SourceDatabase
from headrace.sources.postgres.spec import PostgresSpec

IDLE_TIMEOUT = 60.0
"""Seconds after which the state of an unused consumer is removed from memory."""


class Counts(msgspec.Struct):
    """Numbers of messages since the start, by what happened to them."""

    published: int = 0
    received: int = 0
    acked: int = 0
    nacked: int = 0
    stale: int = 0
    given_back: int = 0


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


class Engine:
    """Publishes, leases and settles for the API, beside an app's consumers. See
    `headrace.app.attached`.

    Args:
        app: the app with the database. The engine works while the app runs.
        refusal: returns why a source may not connect to an address. None allows all.
        options: the options of the server.

    Attributes:
        counts: numbers of messages by what happened to them.
        names: the names of the database, if it is a further one.
        further: the further databases, if it is the server's own.
        requests: returns the number of answered requests as `requests` and that of running requests
            as `in_flight`, where they are counted.
    """

    def __init__(
        self, app: App, clock: Callable[[], float] = time.monotonic, *, refusal: Refusal | None = None,
        options: Options | None = None,
    ) -> None:  # fmt: skip
        self.app = app
        self._options = options or Options()
        self.transforms = TransformModules(self._options.transforms)
        self._refusal = refusal
        self.counts = Counts()
        self.requests: Callable[[], dict[str, int]] = dict
        self.names: Names | None = None
        self.further: Further | None = None
        self._clock = clock
        self._registry = Registry(lambda: app.database, clock)
        self._clear_functions = [self._registry.clear]
        self._ack_ids: AckIds | None = None
        self._history: UUID | None = None  # of the last lease call
        self._tasks = BackgroundTasks()
        self._shared: Shared | None = None
        self._draining = anyio.Event()
        self._group: anyio.abc.TaskGroup | None = None
        self._waits_ended = False
        self._polling = True
        self._publishes: dict[str, PublishBatcher] = {}
        self._receivers: dict[int, Receivers] = {}
        self._settles: dict[int, SettleBatcher] = {}
        self._leasing, self._settling = Coalescer(), Coalescer()
        self._caches = MessageCaches(self._options.max_cached)
        self._given = GivenLeases()

    # --- administration

    @property
    def admin(self) -> Admin:
        """The administration on behalf of users of the API."""
        return Admin(self.app.database, stored_database=self.database_of, given_database=self.database_of)

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

    def clear_caches(self) -> None:
        """Clear all caches after something was created, changed or deleted."""
        for clear in self._clear_functions:
            clear()

    def on_clear_caches(self, clear: Callable[[], None]) -> None:
        """Register a function for `clear_caches` to call."""
        self._clear_functions.append(clear)

    # --- messages

    async def publish(self, stream: CachedStream, messages: Incoming) -> int:
        """Publish messages, all or none. Returns after the commit.

        Returns:
            The number of published messages. It excludes messages with a known message id. For a
            request that was published alone, it also excludes those that `dedupe` found unchanged.

        Raises:
            UnknownStream, InvalidInput, StreamFull, StoreUnavailable.
        """
        answer = self.begin_publish(stream, messages)
        with suppress(Exception):
            await answer
        return self.end_publish(stream, messages, answer)

    def begin_publish(self, stream: CachedStream, messages: Incoming) -> asyncio.Future[int]:
        """Begin what `publish` does. Call `end_publish` with the future once it is done. Raises as `publish` does."""
        if not 1 <= len(messages) <= MAX_PUBLISHED:
            raise InvalidInput(f"A request has {len(messages):,} messages. Send 1 to {MAX_PUBLISHED:,}.")
        publishes = self._publishes.get(stream.name)
        if publishes is None:
            publishes = self._publishes[stream.name] = PublishBatcher(
                self._running().database, stream.name, self._tasks.start, self._clock
            )
        return publishes.publish(messages)

    def end_publish(self, stream: CachedStream, messages: Incoming, answer: asyncio.Future[int]) -> int:
        """Return the result of a publish that is done, as `publish` does."""
        try:
            count = answer.result()
        except UnknownStream:
            self._publishes.pop(stream.name, None)
            self.clear_caches()
            raise
        self.counts.published += count
        if self._shared is not None:
            self._shared.publisher.committed(stream.name, max(filter(None, messages.deliver_at), default=None))
        return count

    async def receive(
        self, consumer: CachedConsumer, batch_size: int = 1, wait_for: float = 0.0, gone: Gone | None = None
    ) -> Share:
        """Lease messages for one client. A cancelled call changes nothing.

        Args:
            batch_size: the largest number of messages.
            wait_for: seconds to wait for the first message.
            gone: waits until the client has disconnected.

        Raises:
            ClientGone: the client has disconnected. Nothing has changed.
            TooManyWaiting: the consumer's max_waiting is reached.
            UnknownConsumer, StoreUnavailable, InvalidInput.
        """
        if not 1 <= batch_size <= MAX_RECEIVED:
            raise InvalidInput(f"batch_size={batch_size} is out of range. Give 1 to {MAX_RECEIVED:,}.")
        if not 0 <= wait_for <= MAX_WAIT:
            raise InvalidInput(f"wait_for={wait_for:g} is out of range. Give 0 to {MAX_WAIT:,.0f} seconds.")
        self._running()
        receivers = self.receivers(consumer) or await self._receivers_of(consumer)
        try:
            share = await receivers.receive(batch_size, wait_for, gone)
        except UnknownConsumer:
            self._forget_consumer(consumer)
            raise
        self._count_received(consumer, share)
        return share

    def receivers(self, consumer: CachedConsumer) -> Receivers | None:
        """Return the receivers of a consumer. None if it has none with its current settings."""
        receivers = self._receivers.get(consumer.number)
        return None if receivers is None or consumer.version > receivers.consumer.version else receivers

    def end_receive(self, consumer: CachedConsumer, receivers: Receivers, receiver: Receiver) -> Share:
        """Return the share of a request that `receivers` have begun, now that it is done. Raises as `receive` does."""
        receivers.end(receiver)
        try:
            share = receiver.answer.result()
        except UnknownConsumer:
            self._forget_consumer(consumer)
            raise
        self._count_received(consumer, share)
        return share

    def _count_received(self, consumer: CachedConsumer, share: Share) -> None:
        self.counts.received += len(share.seqs)
        if share.lease is not None and share.ack_ids:  # retention may have deleted all of them meanwhile
            self._given.add(consumer.number, share.lease, share.ack_ids)

    async def release(self, consumer: CachedConsumer, share: Share) -> None:
        """Release the messages of a client that disconnected before its answer. The attempt is not counted."""
        self.counts.received -= len(share.seqs)
        await (await self._receivers_of(consumer)).give_back(share)

    def start_release(self, consumer: CachedConsumer, share: Share) -> None:
        """Begin what `release` does. While the server stops, the messages are delivered again after their lease."""
        with suppress(StoreUnavailable):
            self._tasks.start(self.release, consumer, share)

    async def settle(
        self, consumer: CachedConsumer, ack_ids: Sequence[str], failure: Failure | None = None, *, strict: bool = False
    ) -> list[str]:
        """Ack messages, or nack them with a failure. Returns after the commit.

        Args:
            strict: whether to check the lease of every message. See `SettleBatcher.settle`.

        Returns:
            The ids that changed nothing, because their leases were lost.

        Raises:
            InvalidAckId: an ack id is invalid. Nothing is settled.
            UnknownConsumer, StoreUnavailable.
        """
        if failure is None and not strict:
            begun = self.begin_ack(consumer, ack_ids)
            if begun is not None:
                with suppress(Exception):
                    await begun[1]
                return self.end_ack(consumer, ack_ids, *begun)
        ours, stale = await self._opened(consumer, ack_ids)
        distinct = len(ours) + len(stale)
        if ours:
            lost = await self._settles_of(consumer).settle(list(ours.values()), failure, strict=strict)
            if lost:
                stale += [
                    text for text, one in ours.items() if (one.lease, one.seq) in lost or (one.lease, None) in lost
                ]
        return self._count_settled(consumer, distinct, failure, stale)

    def begin_ack(self, consumer: CachedConsumer, ack_ids: Sequence[str]) -> tuple[int, asyncio.Future[Lost]] | None:
        """Begin to ack all messages of a lease that this server has given. Call `end_ack` with what it returns, once
        the future is done. None if these are not the ack ids of such a lease. Raises as `settle` does."""
        lease = self._given.take(consumer.number, ack_ids)
        return None if lease is None else (lease, self._settles_of(consumer).ack_lease(lease))

    def end_ack(
        self, consumer: CachedConsumer, ack_ids: Sequence[str], lease: int, answer: asyncio.Future[Lost]
    ) -> list[str]:
        """Return the stale ids of such an ack that is done, as `settle` does."""
        stale = list(ack_ids) if (lease, None) in answer.result() else []
        return self._count_settled(consumer, len(ack_ids), None, stale)

    def _settles_of(self, consumer: CachedConsumer) -> SettleBatcher:
        settles = self._settles.get(consumer.number)
        if settles is None:
            settles = self._settles[consumer.number] = SettleBatcher(
                self._running().database, consumer.number, self._tasks.start, self._settling, self._clock
            )
        return settles

    def _count_settled(
        self, consumer: CachedConsumer, distinct: int, failure: Failure | None, stale: list[str]
    ) -> list[str]:
        """Count what a request has settled, and look for messages that may have become free. Returns the stale ids."""
        done = distinct - len(stale)
        receivers = self._receivers.get(consumer.number)
        if receivers is not None and done:
            receivers.wake()  # keys have become free, and there is capacity
        if failure is None:
            self.counts.acked += done
        else:
            self.counts.nacked += done
        self.counts.stale += len(stale)
        return stale

    async def extend(self, consumer: CachedConsumer, ack_ids: Sequence[str]) -> list[str]:
        """Extend leases by another `ack_wait` from now. A lease covers all messages of one answer.

        Returns:
            The ids of lost leases. Raises as `settle` does.
        """
        ours, stale = await self._opened(consumer, ack_ids)
        if ours:
            leases = list({one.lease for one in ours.values()})
            alive = set(await store.extend_leases(self._running().database, consumer.number, leases))
            stale += [text for text, one in ours.items() if one.lease not in alive]
        return stale

    async def _opened(self, consumer: CachedConsumer, ack_ids: Sequence[str]) -> tuple[dict[str, AckId], list[str]]:
        """Decode distinct ack ids. Returns those of this consumer, and those of others, such as
        a deleted consumer of the same name."""
        ack_id_codec = self._ack_ids or await self.ack_ids()
        texts = list(dict.fromkeys(ack_ids))
        ours = dict(zip(texts, ack_id_codec.open_all(texts), strict=True))
        stale = [text for text, one in ours.items() if one.consumer != consumer.number]
        for text in stale:
            del ours[text]
        return ours, stale

    async def are_of_deleted_consumer(self, ack_ids: Sequence[str], streams: frozenset[str] | None = None) -> bool:
        """Return whether these are valid ack ids, of one consumer that was deleted since.

        Args:
            streams: the names of the only streams whose consumers count as existing. None for all.
        """
        codec = await self.ack_ids()
        try:
            numbers = {one.consumer for one in codec.open_all(ack_ids)}
        except InvalidAckId:
            return False
        if len(numbers) != 1:
            return False
        return not await store.consumer_exists(self._running().database, numbers.pop(), streams)

    async def ack_ids(self) -> AckIds:
        """Return the object that makes and reads ack ids."""
        if self._ack_ids is None:
            self._ack_ids = AckIds(await store.secret(self._running().database, "ack_ids"))
        return self._ack_ids

    async def _ack_ids_in(self, history: UUID | None) -> AckIds:
        """Like `ack_ids`, for a given history of the database. Ids, tokens and the key that were
        read in another history may have changed."""
        if history != self._history:
            self._history = history
            self._ack_ids = None
            self._given.clear()
            self.clear_caches()
        return await self.ack_ids()

    async def _receivers_of(self, consumer: CachedConsumer) -> Receivers:
        receivers = self._receivers.get(consumer.number)
        if receivers is None:
            ack_ids, shared = await self.ack_ids(), self._running()
            receivers = self._receivers.get(consumer.number)
            if receivers is None:
                receivers = Receivers(
                    shared.database,
                    consumer,
                    ack_ids,
                    self._tasks.start,
                    self._count_released,
                    self._leasing,
                    self._caches,
                    shared.idle,
                    self._ack_ids_in,
                    self._clock,
                )
                receivers.calls.polling = self._polling
                if self._waits_ended:
                    receivers.drain()
                self._receivers[consumer.number] = receivers
        elif consumer.version > receivers.consumer.version:
            receivers.renew(consumer)
        return receivers

    def _count_released(self, count: int) -> None:
        self.counts.given_back += count

    def _forget_consumer(self, consumer: CachedConsumer) -> None:
        self._receivers.pop(consumer.number, None)
        self._settles.pop(consumer.number, None)
        self.clear_caches()

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
        """Answer all requests that wait for messages, and let no others wait. Everything else goes on."""
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

    def _running(self) -> Shared:
        if self._shared is None:
            raise unavailable("The server is starting or stopping. Try again.")
        return self._shared

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
