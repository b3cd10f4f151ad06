"""Publishing, receiving and settling of one database's messages, for the requests of this process.

    publish ── PublishBatcher (of a stream) ── store.publish_many
    receive ── Receivers (of a consumer) ── store.lease, divided into shares
    settle ─── SettleBatcher (of a consumer) ─── store.settle

Concurrent requests share database calls. A request is begun by a function that returns a future, and ended by another one
once that is done. So it needs no task of its own. The coroutines do both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from uuid import UUID

import msgspec

from headrace import store
from headrace.model.ack_ids import AckId, AckIds, InvalidAckId
from headrace.model.durations import MAX_WAIT
from headrace.model.errors import InvalidInput, StoreUnavailable, UnknownConsumer, UnknownStream
from headrace.model.messages.publish_options import PLAIN
from headrace.model.outcomes import Failure
from headrace.runtime.pipeline.shared import Shared
from headrace.server.data_plane.background_tasks import BackgroundTasks
from headrace.server.data_plane.bounds import MAX_RECEIVED
from headrace.server.data_plane.coalescing import Coalescer
from headrace.server.data_plane.given_leases import GivenLeases
from headrace.server.data_plane.message_cache import MessageCaches
from headrace.server.data_plane.publish_batching import Incoming, PublishBatcher
from headrace.server.data_plane.receive_request import Gone, Receiver, Share
from headrace.server.data_plane.receiving import ReceiverParts, Receivers
from headrace.server.data_plane.registry import CachedConsumer, CachedStream
from headrace.server.data_plane.settle_batching import Lost, SettleBatcher
from headrace.server.errors import not_running


class Counts(msgspec.Struct):
    """Numbers of messages since the start, by what happened to them."""

    published: int = 0
    received: int = 0
    acked: int = 0
    nacked: int = 0
    stale: int = 0
    given_back: int = 0


class MessageEngine:
    """Publishes, leases and settles. It keeps no state that another server would need.

    Args:
        max_cached: the largest size of the messages in memory, in bytes.
        clock: monotonic time in seconds.

    Attributes:
        counts: numbers of messages by what happened to them.
    """

    def __init__(self, max_cached: int, clock: Callable[[], float]) -> None:
        self.counts = Counts()
        self._clock = clock
        self._clear_functions: list[Callable[[], None]] = []
        self._ack_ids: AckIds | None = None
        self._history: UUID | None = None  # of the last lease call
        self._tasks = BackgroundTasks()
        self._shared: Shared | None = None
        self._waits_ended = False
        self._polling = True
        self._publishes: dict[str, PublishBatcher] = {}
        self._receivers: dict[int, Receivers] = {}
        self._settles: dict[int, SettleBatcher] = {}
        self._leasing, self._settling = Coalescer(), Coalescer()
        self._caches = MessageCaches(max_cached)
        self._given = GivenLeases()

    def clear_caches(self) -> None:
        """Clear all caches after something was created, changed or deleted."""
        for clear in self._clear_functions:
            clear()

    def on_clear_caches(self, clear: Callable[[], None]) -> None:
        """Register a function for `clear_caches` to call."""
        self._clear_functions.append(clear)

    @property
    def database(self) -> store.Database:
        """The database, while the server runs. Raises `StoreUnavailable`."""
        return self._running().database

    def _running(self) -> Shared:
        if self._shared is None:
            raise not_running()
        return self._shared

    # --- publish

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
        publishes = self._publishes.get(stream.name)
        if publishes is None:
            publishes = self._publishes[stream.name] = PublishBatcher(
                self.database, stream.name, self._tasks.start, self._clock
            )
        return publishes.publish(messages)

    def end_publish(self, stream: CachedStream, messages: Incoming, answer: asyncio.Future[int]) -> int:
        """Return the result of a publish that is done, as `publish` does."""
        try:
            count = answer.result()
        except UnknownStream:
            self.forget_stream(stream)
            raise
        self.published_to(stream, count, messages.due)
        return count

    async def publish_to_streams(self, messages: Sequence[tuple[CachedStream, Incoming]]) -> int:
        """Publish messages to several streams in one transaction, all or none. Returns as `publish`, and raises as it does."""
        messages = sorted(messages, key=lambda one: one[0].number)
        try:
            counts = await store.publish_to_streams(
                self.database,
                [
                    store.StreamMessages(
                        stream.name, one.keys, one.data, one.headers, PLAIN if one.plain else one.options
                    )
                    for stream, one in messages
                ],
            )
        except UnknownStream:
            for stream, _ in messages:
                self.forget_stream(stream)
            raise
        for (stream, one), count in zip(messages, counts, strict=True):
            self.published_to(stream, count, one.due)
        return sum(counts)

    def forget_stream(self, stream: CachedStream) -> None:
        """Forget a stream that was deleted."""
        self._publishes.pop(stream.name, None)
        self.clear_caches()

    def published_to(self, stream: CachedStream, count: int, due: datetime | None) -> None:
        """Count messages after their commit, and wake the consumers of this process. `due` is when they are to be
        delivered, if they are scheduled."""
        self.counts.published += count
        if self._shared is not None:
            self._shared.publisher.committed(stream.name, due)

    # --- receive

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

    async def _receivers_of(self, consumer: CachedConsumer) -> Receivers:
        receivers = self._receivers.get(consumer.number)
        if receivers is None:
            ack_ids, shared = await self.ack_ids(), self._running()
            receivers = self._receivers.get(consumer.number)
            if receivers is None:
                parts = ReceiverParts(
                    database=shared.database,
                    start=self._tasks.start,
                    given_back=self._count_released,
                    coalescer=self._leasing,
                    caches=self._caches,
                    subscriptions=shared.subscriptions,
                    sealing=self._ack_ids_in,
                    clock=self._clock,
                )
                receivers = Receivers(parts, consumer, ack_ids)
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

    # --- settle

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

    # --- ack ids

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
