"""Engine of the API's dialects. Each server process has one.

    publish ── Publishes (a stream) ── store.publish_many
    receive ── Receivers (a consumer) ── store.lease, dealt in shares
    settle ─── Settles (a consumer) ─── store.settle

Concurrent requests share database calls. The engine keeps no state that another server would need.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import UUID

import anyio
import anyio.abc
import msgspec

from headrace import store
from headrace.app.app import App
from headrace.model.ack_ids import AckId, AckIds
from headrace.model.errors import HeadraceError, InvalidInput, StoreUnavailable, UnknownConsumer, UnknownStream
from headrace.model.outcomes import Failure
from headrace.runtime.pipeline.shared import Shared
from headrace.server.data_plane.coalescing import Coalescer
from headrace.server.data_plane.message_cache import MessageCaches
from headrace.server.data_plane.publish_batching import Incoming, Publishes
from headrace.server.data_plane.receive_request import Gone, Share
from headrace.server.data_plane.receiving import Receivers
from headrace.server.data_plane.registry import KnownConsumer, KnownStream, Registry
from headrace.server.data_plane.settle_batching import Settles

logger = logging.getLogger("headrace")

MOST_RECEIVED = 1000
"""Largest number of messages that one request may receive."""

LONGEST_WAIT = 3600.0
"""Longest time in seconds that one request may wait."""

MOST_PUBLISHED = 10_000
"""Largest number of messages that one request may publish."""

IDLE = 60.0
"""Seconds after which the state of an unused consumer is removed from memory."""


class Counts(msgspec.Struct):
    """Numbers of messages since the start, by what happened to them."""

    published: int = 0
    received: int = 0
    acked: int = 0
    nacked: int = 0
    stale: int = 0
    given_back: int = 0


class Engine:
    """Publishes, leases and settles for the API, beside an app's consumers. See
    `headrace.app.attached`.

    Args:
        app: the app with the database. The engine works while the app runs.

    Attributes:
        counts: numbers of messages by what happened to them.
        requests: returns the number of answered requests as `requests` and that of running requests
            as `in_flight`, where they are counted.
    """

    def __init__(self, app: App, clock: Callable[[], float] = time.monotonic) -> None:
        self.app = app
        self.counts = Counts()
        self.requests: Callable[[], dict[str, int]] = dict
        self._clock = clock
        self._registry = Registry(lambda: app.database, clock)
        self._memories = [self._registry.forget]
        self._ack_ids: AckIds | None = None
        self._history: UUID | None = None  # of the last lease call
        self._group: anyio.abc.TaskGroup | None = None
        self._shared: Shared | None = None
        self._draining = anyio.Event()
        self._hushed = False
        self._deaf = True
        self._publishes: dict[str, Publishes] = {}
        self._receivers: dict[int, Receivers] = {}
        self._settles: dict[int, Settles] = {}
        self._leasing, self._settling = Coalescer(), Coalescer()
        self._caches = MessageCaches()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- names

    async def stream(self, ref: str) -> KnownStream:
        """Return a stream by its id or name. Raises `UnknownStream`."""
        return await self._registry.stream(ref)

    async def consumer(self, stream: str, ref: str) -> KnownConsumer:
        """Return a consumer by its id or name, of a stream given by its id or name. Raises
        `UnknownStream`, `UnknownConsumer`."""
        return await self._registry.consumer(stream, ref)

    def known(self, stream: str, ref: str) -> KnownConsumer | None:
        """Like `consumer`, from the cache only."""
        return self._registry.known(stream, ref)

    async def consumer_anywhere(self, ref: str) -> KnownConsumer:
        """Return a consumer by its id, by a name that is unique among all streams, or as
        `stream:name`.

        Raises `UnknownConsumer`, or a `Problem` if several streams have a consumer of this name.
        """
        return await self._registry.consumer_anywhere(ref)

    def forget(self) -> None:
        """Clear all caches after something was created, changed or deleted."""
        for forget in self._memories:
            forget()

    def remember(self, forget: Callable[[], None]) -> None:
        """Register a function that clears another cache. `forget` calls it."""
        self._memories.append(forget)

    # --- messages

    async def publish(self, stream: KnownStream, messages: Incoming) -> int:
        """Publish messages, all or none. Returns after the commit.

        Returns:
            The number of published messages. It excludes messages with a known message id. For a
            request that was published alone, it also excludes those that `dedupe` found unchanged.

        Raises:
            UnknownStream, InvalidInput, StreamFull, StoreUnavailable.
        """
        if not 1 <= len(messages) <= MOST_PUBLISHED:
            raise InvalidInput(f"{len(messages)} messages can't be published at once: send 1 to {MOST_PUBLISHED:,}.")
        shared = self._up()
        publishes = self._publishes.get(stream.name)
        if publishes is None:
            publishes = self._publishes[stream.name] = Publishes(shared.database, stream.name, self._start)
        try:
            count = await publishes.publish(messages)
        except UnknownStream:
            self._publishes.pop(stream.name, None)
            self.forget()
            raise
        self.counts.published += count
        shared.publisher.committed(stream.name, max(filter(None, messages.deliver_at), default=None))
        return count

    async def receive(
        self, consumer: KnownConsumer, batch_size: int = 1, wait_for: float = 0.0, gone: Gone | None = None
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
        if not 1 <= batch_size <= MOST_RECEIVED:
            raise InvalidInput(f"batch_size={batch_size} must be from 1 to {MOST_RECEIVED:,}.")
        if not 0 <= wait_for <= LONGEST_WAIT:
            raise InvalidInput(f"wait_for must be from 0 to {LONGEST_WAIT:,.0f} seconds, and not {wait_for:g}.")
        self._up()
        receivers = self._receivers.get(consumer.number)
        if receivers is None or consumer.version > receivers.consumer.version:
            receivers = await self._receivers_of(consumer)
        try:
            share = await receivers.receive(batch_size, wait_for, gone)
        except UnknownConsumer:
            self._forget_consumer(consumer)
            raise
        self.counts.received += len(share.seqs)
        return share

    async def give_back(self, consumer: KnownConsumer, share: Share) -> None:
        """Release the messages of a client that disconnected before its answer. The attempt is not counted."""
        self.counts.received -= len(share.seqs)
        await (await self._receivers_of(consumer)).give_back(share)

    async def settle(
        self, consumer: KnownConsumer, ack_ids: Sequence[str], failure: Failure | None = None, *, strict: bool = False
    ) -> list[str]:
        """Ack messages, or nack them with a failure. Returns after the commit.

        Args:
            strict: whether to check the lease of every message. See `Settles.settle`.

        Returns:
            The ids that changed nothing, because their leases were lost.

        Raises:
            InvalidAckId: an ack id is invalid. Nothing is settled.
            UnknownConsumer, StoreUnavailable.
        """
        ours, stale = await self._opened(consumer, ack_ids)
        distinct = len(ours) + len(stale)
        if ours:
            settles = self._settles.get(consumer.number)
            if settles is None:
                settles = self._settles[consumer.number] = Settles(
                    self._up().database, consumer.number, self._start, self._settling
                )
            lost = await settles.settle(list(ours.values()), failure, strict=strict)
            if lost:
                stale += [
                    text for text, one in ours.items() if (one.lease, one.seq) in lost or (one.lease, None) in lost
                ]
            receivers = self._receivers.get(consumer.number)
            if receivers is not None:
                receivers.wake()  # keys have become free, and there is capacity
        done = distinct - len(stale)
        if failure is None:
            self.counts.acked += done
        else:
            self.counts.nacked += done
        self.counts.stale += len(stale)
        return stale

    async def extend(self, consumer: KnownConsumer, ack_ids: Sequence[str]) -> list[str]:
        """Extend leases by another `ack_wait` from now. A lease covers all messages of one answer.

        Returns:
            The ids of lost leases. Raises as `settle` does.
        """
        ours, stale = await self._opened(consumer, ack_ids)
        if ours:
            leases = list({one.lease for one in ours.values()})
            alive = set(await store.extend_leases(self._up().database, consumer.number, leases))
            stale += [text for text, one in ours.items() if one.lease not in alive]
        return stale

    async def _opened(self, consumer: KnownConsumer, ack_ids: Sequence[str]) -> tuple[dict[str, AckId], list[str]]:
        """Decode distinct ack ids. Returns those of this consumer, and those of others, such as
        a deleted consumer of the same name."""
        opener = self._ack_ids or await self.sealing()
        texts = list(dict.fromkeys(ack_ids))
        ours = dict(zip(texts, opener.open_all(texts), strict=True))
        stale = [text for text, one in ours.items() if one.consumer != consumer.number]
        for text in stale:
            del ours[text]
        return ours, stale

    async def sealing(self) -> AckIds:
        """Return the object that makes and reads ack ids."""
        if self._ack_ids is None:
            self._ack_ids = AckIds(await store.secret(self._up().database, "ack_ids"))
        return self._ack_ids

    async def _sealing_in(self, history: UUID | None) -> AckIds:
        """Like `sealing`, for a given history of the database. Ids, tokens and the key that were
        read in another history may have changed."""
        if history != self._history:
            self._history = history
            self._ack_ids = None
            self.forget()
        return await self.sealing()

    async def _receivers_of(self, consumer: KnownConsumer) -> Receivers:
        receivers = self._receivers.get(consumer.number)
        if receivers is None:
            sealing, shared = await self.sealing(), self._up()
            receivers = self._receivers.get(consumer.number)
            if receivers is None:
                receivers = Receivers(
                    shared.database,
                    consumer,
                    sealing,
                    self._start,
                    self._gave_back,
                    self._leasing,
                    self._caches,
                    shared.idle,
                    self._sealing_in,
                    self._clock,
                )
                receivers.deaf = self._deaf
                if self._hushed:
                    receivers.drain()
                self._receivers[consumer.number] = receivers
        elif consumer.version > receivers.consumer.version:
            receivers.renew(consumer)
        return receivers

    def _gave_back(self, count: int) -> None:
        self.counts.given_back += count

    def _forget_consumer(self, consumer: KnownConsumer) -> None:
        self._receivers.pop(consumer.number, None)
        self._settles.pop(consumer.number, None)
        self.forget()

    def statistics(self) -> dict[str, Any]:
        """Return the counts since the start and the number of requests that wait for messages."""
        waiting = sum(one.waiting for one in self._receivers.values())
        return {**msgspec.structs.asdict(self.counts), "waiting": waiting}

    def tells(self) -> dict[str, Any]:
        """Return the server's part of the app's statistics: messages and requests."""
        return {"server": {**self.statistics(), **self.requests()}}

    # --- as attached to the app

    async def run(self, shared: Shared) -> None:
        """Serve until `drain`, and until the tasks that were started have ended."""
        self._hushed = False
        self._shared = shared
        self._ack_ids = None  # the database may not be the same as last time
        self.forget()
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                group.start_soon(self._tidy)
                await self._draining.wait()
                while self._tasks:
                    await asyncio.wait(self._tasks)
                group.cancel_scope.cancel()
        finally:
            self._draining = anyio.Event()  # reset here, since `drain` may be called before `run` begins
            self._group = self._shared = None
            self._publishes.clear()
            self._receivers.clear()
            self._settles.clear()
            self._caches = MessageCaches()
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(
                    0
                )  # lets every task begin, since one cancelled before that would leave its requests unanswered
            for task in self._tasks:
                task.cancel()

    def hush(self) -> None:
        """Answer all requests that wait for messages, and let no others wait. Everything else goes on."""
        self._hushed = True
        for receivers in self._receivers.values():
            receivers.drain()

    def drain(self) -> None:
        self.hush()
        self._draining.set()

    def hurry(self) -> None:
        if self._group is not None:
            self._group.cancel_scope.cancel()

    def notified(self, stream_id: int) -> None:
        for receivers in self._receivers.values():
            if receivers.consumer.stream.number == stream_id:
                receivers.wake()

    def published(self, stream: str) -> None:
        for receivers in self._receivers.values():
            if receivers.consumer.stream.name == stream:
                receivers.wake()

    def hear(self, *, deaf: bool) -> None:
        self._deaf = deaf
        if deaf:  # history may be rewound, which the next lease call detects
            self._caches.clear()
        for receivers in self._receivers.values():
            receivers.deaf = deaf
            receivers.wake()

    def _up(self) -> Shared:
        if self._shared is None:
            raise StoreUnavailable("The server is not running: it starts, or stops. Try again.")
        return self._shared

    def _start(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Start a task that outlives the request that needed it. A task group would cost too much at this rate."""
        if self._group is None:
            raise StoreUnavailable("The server is not running: it starts, or stops. Try again.")
        task = asyncio.ensure_future(self._finish(function, *args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        try:
            await function(*args)
        except HeadraceError as error:
            logger.warning("the server could not finish something: %s", error)
        except Exception:
            logger.exception("the server could not finish something, of what nobody expected")

    async def _tidy(self) -> None:
        """Remove the state of consumers that are no longer used."""
        while True:
            await anyio.sleep(IDLE)
            before = self._clock() - IDLE
            idle = [number for number, one in self._receivers.items() if one.used_at < before and not one.waiting]
            for number in idle:
                del self._receivers[number]
                self._settles.pop(number, None)
