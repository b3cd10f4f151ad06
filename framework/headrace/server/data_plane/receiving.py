"""Receiving. One lease call at a time serves all requests that wait for messages of a consumer.

The messages of a call are divided into shares, one per request, in order of arrival. While there
are no messages, all requests wait together for a publisher's notification, with polling as a
fallback. A thousand waiting requests cost as much as one.

Each share has a lease row of its own, with an owner of its own, although one lease for the whole call would be written
faster. The contract of a request needs it: `extend` and expiry concern the messages of one client, also if another
client of the same call has died, and any server process can settle an ack id. Nor would one lease cost less in all. An
ack of a whole share deletes its row. An ack of a part of a larger lease rewrites the rest of it. On one machine, with 140
messages for 14 requests, leasing in shares took 0.2 ms more than leasing at once, and each ack of a part took 0.5 ms
more. The database decides which keys are free, since a message may be acked through any process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

import msgspec

from headrace import store
from headrace.model.ack_ids import AckIds
from headrace.model.errors import HeadraceError, StoreUnavailable, UnknownConsumer
from headrace.model.outcomes import Settlement
from headrace.model.records import Batch
from headrace.runtime.leasing.lease_calls import LeaseCalls
from headrace.runtime.leasing.subscriptions import Subscriptions
from headrace.server.data_plane.coalescing import Coalescer, fail
from headrace.server.data_plane.gathering import Gathering
from headrace.server.data_plane.message_cache import MessageCache, MessageCaches, complete
from headrace.server.data_plane.receive_request import NOTHING, Gone, Receiver, Share
from headrace.server.data_plane.receiver_watch import ReceiverWatch
from headrace.server.data_plane.registry import CachedConsumer
from headrace.server.data_plane.shares import add_released, places, share_of
from headrace.server.errors import TooManyWaiting, unavailable
from headrace.store.messages.lease import MAX_LOOK

MOST = 1000
"""Largest number of messages in one lease call."""

PATIENCE = 1.0
"""Seconds that a request without a wait may take, while there are more messages to look through."""


NOBODY = UUID(int=0)
"""The owner in lease calls with shares. The process itself holds no leases."""


class ReceiverParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a process that its receivers share.

    Attributes:
        database: an open database.
        start: starts a task that lives as long as the engine.
        given_back: called with the number of messages that were released because their clients
            disconnected.
        coalescer: coalesces the lease calls of this process.
        caches: the cache of messages that other consumers may read, too.
        subscriptions: the subscriptions of this process.
        sealing: called with the database's history of a batch. It drops what was cached from
            another history, and returns what makes the ack ids.
        clock: monotonic time in seconds.
    """

    database: store.Database
    start: Callable[..., None]
    given_back: Callable[[int], None]
    coalescer: Coalescer
    caches: MessageCaches
    subscriptions: Subscriptions
    sealing: Callable[[UUID | None], Awaitable[AckIds]]
    clock: Callable[[], float] = time.monotonic


class Receivers:
    """The requests of this process that receive messages of one consumer.

    Args:
        parts: what it shares with the receivers of other consumers.
        consumer: the consumer.
        ack_ids: makes the ack ids.

    Attributes:
        calls: the lease calls, and the waits between them.
    """

    def __init__(self, parts: ReceiverParts, consumer: CachedConsumer, ack_ids: AckIds) -> None:
        self._database = parts.database
        self.consumer = consumer
        self._ack_ids = ack_ids
        self._start = parts.start
        self._given_back = parts.given_back
        self._turns = parts.coalescer.turns()
        self._caches = parts.caches
        self._subscription = parts.subscriptions.subscription(consumer.number)
        self._clock = clock = parts.clock
        self.calls = LeaseCalls(parts.database, consumer.number, self._subscription, clock=clock)
        self._sealing = parts.sealing
        self._history: UUID | None = None  # in which the number is known to be this consumer's
        self._cache = self._cache_of(consumer)
        self._queue: list[Receiver] = []
        self._waits = 0
        self._at_work = False
        self._draining = False
        self._gathering = Gathering(clock)
        self._watch = ReceiverWatch(lambda: self._queue, self._expire, clock)
        self.used_at = clock()

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return self._waits

    @property
    def unused(self) -> bool:
        """Whether no request waits, and no lease call runs."""
        return not self._waits and not self._at_work

    @property
    def cache(self) -> MessageCache:
        """The cache of the messages that it reads."""
        return self._cache

    def wake(self) -> None:
        """Look for messages again, since some may have been published or become free."""
        self.calls.wake()

    def drain(self) -> None:
        """Answer all waiting requests, and let no others wait."""
        self._draining = True
        for receiver in list(self._queue):
            self._expire(receiver)
        self.calls.hurry()

    async def receive(self, want: int, wait: float, gone: Gone | None = None) -> Share:
        """Lease up to `want` messages. Wait up to `wait` seconds for the first of them. A cancelled
        call changes nothing.

        Raises:
            ClientGone: `gone` has returned. Nothing has changed.
            TooManyWaiting: the consumer's max_waiting is reached.
            UnknownConsumer, StoreUnavailable, FilterTooSlow.
        """
        receiver = self.begin(want, wait, gone)
        try:
            return await receiver.answer
        except asyncio.CancelledError:
            self._take_back(receiver.answer)
            raise
        finally:
            self.end(receiver)

    def begin(self, want: int, wait: float, gone: Gone | None = None) -> Receiver:
        """Begin what `receive` does. Its `answer` is a future with the share. Call `end` when that is done.

        Raises:
            TooManyWaiting: the consumer's max_waiting is reached.
            StoreUnavailable: the server is stopping.
        """
        self.used_at = now = self._clock()
        if self._waits >= self.consumer.spec.max_waiting:
            raise TooManyWaiting(self.consumer.name, self.consumer.spec.max_waiting)
        wait = 0.0 if self._draining else wait
        receiver = Receiver(want, now, now + wait, gone)
        if not self._at_work:
            self._start(self._serve)
            self._at_work = True
        elif wait <= 0:
            self.calls.hurry()  # it must be answered immediately, even if there can't be anything
        elif self.calls.polling or not self._subscription.subscribed:
            self.calls.wake()  # else the waiting requests have looked, and will be notified
        self._queue.append(receiver)
        self._gathering.joined(self._queue)
        self._waits += receiver.waits
        self._watch.begin(receiver, wait)
        return receiver

    def end(self, receiver: Receiver) -> None:
        """End a request that was begun, whatever became of it."""
        self._waits -= receiver.waits
        receiver.end()
        if not receiver.called:
            self._leave(receiver)

    def _take_back(self, answer: asyncio.Future[Share]) -> None:
        """Release a share that was assigned just as its request was cancelled."""
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            with suppress(StoreUnavailable):  # the server stops, and the messages are delivered again after their lease
                self._start(self.give_back, answer.result())

    def _expire(self, receiver: Receiver) -> None:
        """End a request's wait. If it is part of a running lease call, that answers it."""
        if not receiver.called and not receiver.answer.done():
            self._leave(receiver)
            receiver.answer.set_result(NOTHING)

    def _leave(self, receiver: Receiver) -> None:
        if receiver in self._queue:
            self._queue.remove(receiver)

    async def _serve(self) -> None:
        """Serve until no requests are left."""
        rested = 0.0  # seconds
        try:
            while self._queue:
                try:
                    if rested <= self._gathering.limit:  # after a longer rest, messages wait for nothing else
                        await self._gathering.gather(self._queue)
                    rested = 0.0
                    batch = await self._call()
                    if batch is not None and not batch.more and self._queue:
                        rested = await self._rest(batch)
                except Exception as error:  # raised in the requests, while others are still served
                    self._fail(error)
        finally:
            self._at_work = False
            self.calls.leave()
            self._fail(unavailable("The server is stopping. Try again."))  # those left after a cancellation

    async def _rest(self, batch: Batch) -> float:
        """Wait until another call may find something. Returns the seconds that it took."""
        began = self._clock()
        await self.calls.rest(batch, self.consumer.spec)
        return self._clock() - began

    async def _call(self) -> Batch | None:
        """Make one lease call for the first requests in the queue. Those that end while a consumer with a condition
        waits for its place are not in it. None if all of them have ended."""
        # Calls with a condition are few, and some are slow. The others don't wait for them.
        spec = self.consumer.spec
        async with self._turns.turn() if spec.where is None else self.calls.condition_slot(spec):
            called = self._first()
            if not called:
                return None
            try:
                with self._gathering.call(called):
                    batch = await self._lease([one.want for one in called])
            finally:
                for receiver in called:
                    receiver.called = False
        if batch.version != self.consumer.version:
            await self._renew()
        if batch.lease_ids is not None:
            await self._deal(called, batch, batch.lease_ids)
        self._answer_the_impatient(called, batch)
        # Also remove requests of disconnected clients. Otherwise `rest` would wait for them.
        self._queue = [one for one in self._queue if not one.answer.done()]
        return batch

    def _first(self) -> list[Receiver]:
        """Return the requests that the next call includes."""
        self.calls.begin()
        called: list[Receiver] = []
        room = MOST
        for receiver in self._queue:
            if called and receiver.want > room:
                break
            receiver.called = True
            called.append(receiver)
            room -= receiver.want
        return called

    async def _lease(self, shares: list[int]) -> Batch:
        spec, total = self.consumer.spec, sum(shares)
        # Without filters, most messages looked at are delivered. The others have busy keys.
        look = max(2 * total, 100) if spec.filters == (">",) else MAX_LOOK
        return await self.calls.lease(
            NOBODY, total, spec, look=look, shares=shares, known=self._cache.ranges, history=self._caches.history
        )

    async def _deal(self, called: list[Receiver], batch: Batch, leases: list[int]) -> None:
        """Give each request its share. Shares of clients that have disconnected are released."""
        stream = self.consumer.stream
        try:
            if batch.history != self._history:
                await self._identify(batch.history)
            messages = await complete(self._database, stream.number, stream.id, batch, self._caches, self._cache)
        except HeadraceError:
            await self._give_all_back(called, batch, leases)
            raise
        back = Settlement()
        for receiver, lease, place in places(called, batch, leases):
            if receiver.answer.done():
                add_released(back, lease, batch.seqs[place])
            else:
                receiver.answer.set_result(share_of(batch, messages, lease, place, self._ack_ids, self.consumer.number))
        if back.seqs:
            await self._settle_back(back)

    async def _identify(self, history: UUID | None) -> None:
        """Check that the number still is this consumer's. A failover may have lost the consumer and
        given its number to another one.

        Raises:
            UnknownConsumer: the number is another consumer's.
        """
        self._ack_ids = await self._sealing(history)
        found = await store.find_consumers(self._database, self.consumer.id)
        if [one.number for one in found] != [self.consumer.number]:
            raise UnknownConsumer(
                f"The consumer {self.consumer.name!r} no longer exists, since the database was restored or failed over:"
                " create it again."
            )
        self._history = history

    async def _give_all_back(self, called: list[Receiver], batch: Batch, leases: list[int]) -> None:
        """Release a batch that can't be delivered. If the database is unavailable, its messages
        are delivered again after the lease."""
        back = Settlement()
        for _, lease, place in places(called, batch, leases):
            add_released(back, lease, batch.seqs[place])
        with suppress(StoreUnavailable):
            await self._settle_back(back)

    async def give_back(self, share: Share) -> None:
        """Release a share because the client disconnected before the answer."""
        if share.lease is not None:
            back = Settlement()
            add_released(back, share.lease, share.seqs)
            await self._settle_back(back)

    async def _settle_back(self, back: Settlement) -> None:
        await store.settle(self._database, self.consumer.number, back)
        self._given_back(len(back.seqs))
        self.calls.wake()

    def _answer_the_impatient(self, called: list[Receiver], batch: Batch) -> None:
        """Answer the requests that have waited long enough, once all messages have been looked
        through or `PATIENCE` is over."""
        now = self._clock()
        for receiver in called:
            if receiver.answer.done() or (receiver.until > now and not self._draining):
                continue
            if not (batch.more or batch.busy) or batch.seqs or now >= receiver.since + PATIENCE:
                receiver.answer.set_result(NOTHING)

    def _fail(self, error: Exception) -> None:
        """Fail all requests in the queue. They may try again."""
        queue, self._queue = self._queue, []
        fail([one.answer for one in queue], error)

    async def _renew(self) -> None:
        spec, version = await store.consumer_spec(self._database, self.consumer.number)
        self.renew(msgspec.structs.replace(self.consumer, spec=spec, version=version))

    def renew(self, consumer: CachedConsumer) -> None:
        """Apply changed settings."""
        self.consumer = consumer
        self._cache = self._cache_of(consumer)

    def _cache_of(self, consumer: CachedConsumer) -> MessageCache:
        return self._caches.of((consumer.stream.number, consumer.spec.filters, repr(consumer.spec.where)))
