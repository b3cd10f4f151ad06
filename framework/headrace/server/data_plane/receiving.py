"""Receiving. One lease call at a time serves all requests that wait for messages of a consumer.

The messages of a call are divided into shares, one per request, in order of arrival. While there
are no messages, all requests wait together for a publisher's notification, with polling as a
fallback. A thousand waiting requests cost as much as one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import compress
from uuid import UUID

import msgspec

from headrace import store
from headrace.model.ack_ids import AckIds
from headrace.model.errors import HeadraceError, StoreUnavailable, UnknownConsumer
from headrace.model.outcomes import RELEASE, Settlement
from headrace.model.records import Batch
from headrace.runtime.leasing.idle import IdleConsumers
from headrace.runtime.leasing.lease_calls import LeaseCalls
from headrace.server.data_plane.coalescing import Coalescer, fail
from headrace.server.data_plane.gathering import Gathering
from headrace.server.data_plane.message_cache import CachedMessage, MessageCache, MessageCaches, complete
from headrace.server.data_plane.receive_request import NOTHING, Gone, Receiver, Share
from headrace.server.data_plane.registry import CachedConsumer
from headrace.server.errors import TooManyWaiting, unavailable
from headrace.server.http import WATCH
from headrace.store.messages.lease import MAX_LOOK

MOST = 1000
"""Largest number of messages in one lease call."""

PATIENCE = 1.0
"""Seconds that a request without a wait may take, while there are more messages to look through."""


NOBODY = UUID(int=0)
"""The owner in lease calls with shares. The process itself holds no leases."""


def _places(called: Sequence[Receiver], batch: Batch, leases: Sequence[int]) -> Iterator[tuple[Receiver, int, slice]]:
    """Divide a batch. Yields each request with its lease and the slice of its messages."""
    first = 0
    for receiver, lease in zip(called, leases, strict=False):
        last = min(first + receiver.want, len(batch.seqs))
        yield receiver, lease, slice(first, last)
        first = last


def _add(back: Settlement, lease: int, seqs: Sequence[int]) -> None:
    back.leases += [lease] * len(seqs)
    back.seqs += seqs


class Receivers:
    """The requests of this process that receive messages of one consumer.

    Args:
        database: an open database.
        consumer: the consumer.
        ack_ids: makes the ack ids.
        start: starts a task that lives as long as the engine.
        given_back: called with the number of messages that were released because their clients
            disconnected.
        coalescer: coalesces the lease calls of this process.
        caches: the cache of messages that other consumers may read, too.
        idle: the idle consumers of this process.
        sealing: called with the database's history of a batch. It drops what was cached from
            another history, and returns what makes the ack ids.
        clock: monotonic time in seconds.

    Attributes:
        calls: the lease calls, and the waits between them.
    """

    def __init__(
        self, database: store.Database, consumer: CachedConsumer, ack_ids: AckIds, start: Callable[..., None],
        given_back: Callable[[int], None], coalescer: Coalescer, caches: MessageCaches, idle: IdleConsumers,
        sealing: Callable[[UUID | None], Awaitable[AckIds]], clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._database = database
        self.consumer = consumer
        self._ack_ids = ack_ids
        self._start = start
        self._given_back = given_back
        self._turns = coalescer.turns()
        self._caches = caches
        self._idle = idle.consumer(consumer.number)
        self.calls = LeaseCalls(database, consumer.number, self._idle, clock=clock)
        self._sealing = sealing
        self._history: UUID | None = None  # in which the number is known to be this consumer's
        self._clock = clock
        self._cache = self._cache_of(consumer)
        self._queue: list[Receiver] = []
        self._waits = 0
        self._at_work = False
        self._looking: asyncio.TimerHandle | None = None
        self._draining = False
        self._gathering = Gathering(clock)
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
            self.calls.hurry()  # it must be answered at once, even if there can't be anything
        elif self.calls.polling or not self._idle.subscribed:
            self.calls.wake()  # else the waiting requests have looked, and will be notified
        self._queue.append(receiver)
        self._gathering.joined(self._queue)
        self._waits += receiver.waits
        if 0 < wait < WATCH:
            receiver.watched = True
            receiver.timer = asyncio.get_running_loop().call_later(wait, self._look_after, receiver)
        elif self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(WATCH, self._look_after_all, now)
        return receiver

    def end(self, receiver: Receiver) -> None:
        """End a request that was begun, whatever became of it."""
        self._waits -= receiver.waits
        receiver.end()
        if not receiver.called:
            self._leave(receiver)

    def _look_after_all(self, since: float) -> None:
        """Begin to look after the requests that wait since before a time. Most are answered before that, so they need
        no timers of their own."""
        self._looking = None
        new = False
        for receiver in list(self._queue):
            if not receiver.watched and receiver.since <= since:
                receiver.watched = True
                self._look_after(receiver)
            new = new or not receiver.watched
        if new:
            self._looking = asyncio.get_running_loop().call_later(WATCH, self._look_after_all, self._clock())

    def _look_after(self, receiver: Receiver) -> None:
        """End a request's wait if it is over. Otherwise begin to watch whether its client is connected.

        A request without a wait is watched, too: it may be in line for a place to examine messages.
        """
        if receiver.waits:
            left = receiver.until - self._clock()
            if left <= 0:
                self._expire(receiver)
                return
            receiver.timer = asyncio.get_running_loop().call_later(left, self._expire, receiver)
        if receiver.gone is not None:
            receiver.watching = asyncio.ensure_future(receiver.watch(receiver.gone))

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
        try:
            while self._queue:
                try:
                    await self._gathering.gather(self._queue)
                    batch = await self._call()
                    if batch is not None and not batch.more and self._queue:
                        await self.calls.rest(batch, self.consumer.spec)
                except Exception as error:  # raised in the requests, while others are still served
                    self._fail(error)
        finally:
            self._at_work = False
            self.calls.leave()
            self._fail(unavailable("The server stops. Try again."))  # those left after a cancellation

    async def _call(self) -> Batch | None:
        """Make one lease call for the first requests in the queue. Those that end while a consumer with a condition
        waits for its place are not in it. None if all of them have ended."""
        # Calls with a condition are few, and some are slow. The others don't wait for them.
        spec = self.consumer.spec
        async with self._turns.turn() if spec.where is None else self.calls.place(spec):
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
        for receiver, lease, place in _places(called, batch, leases):
            if receiver.answer.done():
                _add(back, lease, batch.seqs[place])
            else:
                receiver.answer.set_result(self._share(batch, messages, lease, place))
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
        for _, lease, place in _places(called, batch, leases):
            _add(back, lease, batch.seqs[place])
        with suppress(StoreUnavailable):
            await self._settle_back(back)

    def _share(self, batch: Batch, messages: Sequence[CachedMessage | None], lease: int, place: slice) -> Share:
        seqs, found = batch.seqs[place], messages[place]
        attempts = [1] * len(seqs) if batch.attempts is None else batch.attempts[place]
        if None in found:  # retention has deleted them since, so they can't be delivered
            there = [one is not None for one in found]
            seqs, found, attempts = (list(compress(values, there)) for values in (seqs, found, attempts))  # type: ignore[assignment]
        ids = self._ack_ids.seal_all(self.consumer.number, lease, seqs, attempts)
        return Share(lease, ids, seqs, attempts, found)  # type: ignore[arg-type]

    async def give_back(self, share: Share) -> None:
        """Release a share because the client disconnected before the answer."""
        if share.lease is not None:
            await self._settle_back(Settlement(leases=[share.lease] * len(share.seqs), seqs=list(share.seqs)))

    async def _settle_back(self, back: Settlement) -> None:
        back.failures = [RELEASE] * len(back.seqs)
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
