"""Receiving: the requests that wait for messages of one consumer, served together by one lease call at a time.

A call deals its messages out in shares, one for each request, in the order of their coming. While there is nothing, all of them wait
together for a publisher's notification, and a poll stands behind it: a thousand that wait cost as much as one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from itertools import compress
from uuid import UUID

import anyio
import msgspec

from headrace import store
from headrace.flow.demand import Look, Poll
from headrace.model.ack_ids import AckIds
from headrace.model.errors import FilterTooSlow, StoreUnavailable
from headrace.model.outcomes import RELEASE, Settlement
from headrace.model.records import Batch
from headrace.server.directory import KnownConsumer
from headrace.server.errors import TooManyWaiting
from headrace.server.failing import fail
from headrace.server.shelf import Kept, Shelf, Shelves, complete
from headrace.server.turns import Turns
from headrace.store.lease import MAX_LOOK

MOST = 1000
"""Messages in one lease call."""

ANNOUNCE = 10.0
"""Seconds for which publishers are asked to notify. Asked again after half of it."""

JUDGING = 5.0
"""Seconds that judging messages by a condition may take in one lease call."""

WATCH = 0.05
"""Seconds that a request has waited when somebody begins to watch whether its client is still there."""

PATIENCE = 1.0
"""Seconds to look on for a request that doesn't wait, while there is more to look through."""


class Share(msgspec.Struct, frozen=True, gc=False):
    """What a request received, under a lease of its own. The lists run in parallel."""

    lease: int | None
    ack_ids: Sequence[str] = ()
    seqs: Sequence[int] = ()
    attempts: Sequence[int] = ()
    messages: Sequence[Kept] = ()

    @property
    def keys(self) -> list[str]:
        return [one.key for one in self.messages]

    @property
    def data(self) -> list[str]:
        """JSON text each."""
        return [one.data for one in self.messages]

    @property
    def headers(self) -> list[str | None]:
        """JSON text each, or None."""
        return [one.headers for one in self.messages]

    @property
    def created_at(self) -> list[datetime]:
        return [one.created_at for one in self.messages]


NOTHING = Share(None)

NOBODY = UUID(int=0)
"""Who asks for shares has no leases himself."""


class ClientGone(Exception):
    """The client that waited has gone away."""


Gone = Callable[[], Awaitable[None]]
"""Waits until the client has gone away."""


class _Receiver:
    """A request that wants messages. `until`: when it has waited long enough; `called`: it is part of a lease call under way."""

    __slots__ = ("answer", "called", "gone", "since", "timer", "until", "want", "watching")

    def __init__(self, want: int, since: float, until: float, gone: Gone | None) -> None:
        self.want = want
        self.since = since
        self.until = until
        self.gone = gone
        self.called = False
        self.answer: asyncio.Future[Share] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.watching: asyncio.Task[None] | None = None

    async def watch(self, gone: Gone) -> None:
        """Wait for the client to go away, and then for nothing else any more."""
        await gone()
        if not self.answer.done():
            self.answer.set_exception(ClientGone())

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.watching is not None:
            self.watching.cancel()


class Receivers:
    """The requests of this process that want messages of one consumer.

    Args:
        database: an open database.
        consumer: the consumer.
        ack_ids: makes the ids.
        start: starts a task that lives as long as the engine does.
        given_back: told how many messages were given back for clients that went away.
        turns: of the lease calls of this process.
        shelves: where messages are kept that others may want, too.
        clock: seconds, monotonic.
    """

    def __init__(
        self, database: store.Database, consumer: KnownConsumer, ack_ids: AckIds, start: Callable[..., None],
        given_back: Callable[[int], None], turns: Turns, shelves: Shelves, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._database = database
        self.consumer = consumer
        self._ack_ids = ack_ids
        self._start = start
        self._given_back = given_back
        self._turns = turns
        self._shelves = shelves
        self._clock = clock
        self._shelf = self._shelf_of(consumer)
        self._queue: list[_Receiver] = []
        self._poll = Poll()
        self._look = Look()
        self._news = anyio.Event()
        self._announced = float("-inf")
        self._waits = 0
        self._at_work = False
        self._draining = False
        self.deaf = True
        self.used_at = clock()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self._waits

    def wake(self) -> None:
        """Something may have been published, or come free."""
        self._news.set()

    def drain(self) -> None:
        """Let nobody wait any more."""
        self._draining = True
        for receiver in list(self._queue):
            self._expire(receiver)
        self._news.set()

    async def receive(self, want: int, wait: float, gone: Gone | None = None) -> Share:
        """Lease up to `want` messages; wait up to `wait` seconds for the first of them. Cancelled, it has changed nothing.

        Raises:
            ClientGone: `gone` has said so meanwhile, and nothing has changed.
            TooManyWaiting: the consumer's max_waiting is reached.
            UnknownConsumer, StoreUnavailable, FilterTooSlow.
        """
        self.used_at = now = self._clock()
        if self._waits >= self.consumer.spec.max_waiting:
            raise TooManyWaiting(self.consumer.name, self.consumer.spec.max_waiting)
        wait = 0.0 if self._draining else wait
        receiver = _Receiver(want, now, now + wait, gone)
        self._queue.append(receiver)
        self._waits += wait > 0
        if not self._at_work:
            self._at_work = True
            self._start(self._serve)
        elif wait <= 0 or self.deaf or now >= self._announced + ANNOUNCE:
            self._news.set()  # else the others who wait have looked, and will hear
        if wait > 0:
            receiver.timer = asyncio.get_running_loop().call_later(min(wait, WATCH), self._look_after, receiver)
        try:
            return await receiver.answer
        except asyncio.CancelledError:
            self._take_back(receiver.answer)
            raise
        finally:
            self._waits -= wait > 0
            receiver.end()
            if not receiver.called:
                self._leave(receiver)

    def _look_after(self, receiver: _Receiver) -> None:
        """It has waited a little: from now on somebody watches whether its client is still there. Or it has waited long enough."""
        left = receiver.until - self._clock()
        if left <= 0:
            self._expire(receiver)
            return
        receiver.timer = asyncio.get_running_loop().call_later(left, self._expire, receiver)
        if receiver.gone is not None:
            receiver.watching = asyncio.ensure_future(receiver.watch(receiver.gone))

    def _take_back(self, answer: asyncio.Future[Share]) -> None:
        """Who waited for this has gone; it may have been dealt just then."""
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            self._start(self.give_back, answer.result())

    def _expire(self, receiver: _Receiver) -> None:
        """It has waited long enough. While a lease call asks for it, that answers it."""
        if not receiver.called and not receiver.answer.done():
            self._leave(receiver)
            receiver.answer.set_result(NOTHING)

    def _leave(self, receiver: _Receiver) -> None:
        if receiver in self._queue:
            self._queue.remove(receiver)

    async def _serve(self) -> None:
        """Serve until nobody is left."""
        try:
            while self._queue:
                try:
                    batch = await self._call()
                    if not batch.more and self._queue:
                        await self._rest(batch)
                except Exception as error:  # theirs to hear of; others go on being served
                    self._fail(error)
        finally:
            self._at_work = False
            self._fail(StoreUnavailable("The server stops. Try again."))  # those who are left, when it was cancelled

    async def _call(self) -> Batch:
        """One lease call for those that are first in the queue."""
        async with self._turns.one():
            called = self._first()
            try:
                batch = await self._lease([one.want for one in called])
            finally:
                for receiver in called:
                    receiver.called = False
        if batch.version != self.consumer.version:
            await self._renew()
        if batch.lease_ids is not None:
            self._poll.found()
            await self._deal(called, batch, batch.lease_ids)
        self._answer_the_impatient(called, batch)
        # Also those whose clients went away meanwhile: nobody may rest, and be waited for, on their behalf.
        self._queue = [one for one in self._queue if not one.answer.done()]
        return batch

    def _first(self) -> list[_Receiver]:
        """Those that the next call is for."""
        self._news = anyio.Event()
        called: list[_Receiver] = []
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
        if spec.where is None:
            # Without filters what is looked at is mostly what is found; the rest are messages of keys that are busy.
            look = max(2 * total, 100) if spec.filters == (">",) else MAX_LOOK
            return await store.lease(self._database, self.consumer.number, NOBODY, total, look=look, shares=shares,
                known=self._shelf.ranges,
            )  # fmt: skip
        began = self._clock()
        try:
            batch = await store.lease(
                self._database, self.consumer.number, NOBODY, total,
                look=self._look.limit, judging=JUDGING, shares=shares, known=self._shelf.ranges,
            )  # fmt: skip
        except FilterTooSlow:
            self._look.too_slow()
            raise
        self._look.took(self._clock() - began, batch.looked_at)
        return batch

    async def _deal(self, called: list[_Receiver], batch: Batch, leases: list[int]) -> None:
        """Give each its share. What is for clients that have gone away goes back untouched."""
        stream = self.consumer.stream
        messages = await complete(self._database, stream.number, stream.id, batch, self._shelf)
        back = Settlement()
        first = 0
        for receiver, lease in zip(called, leases, strict=False):
            last = min(first + receiver.want, len(batch.seqs))
            if receiver.answer.done():
                back.leases += [lease] * (last - first)
                back.seqs += batch.seqs[first:last]
            else:
                receiver.answer.set_result(self._share(batch, messages, lease, slice(first, last)))
            first = last
        if back.seqs:
            await self._settle_back(back)

    def _share(self, batch: Batch, messages: Sequence[Kept | None], lease: int, place: slice) -> Share:
        seqs, found = batch.seqs[place], messages[place]
        attempts = [1] * len(seqs) if batch.attempts is None else batch.attempts[place]
        if None in found:  # retention was quicker: nobody can be told of these any more
            there = [one is not None for one in found]
            seqs, found, attempts = (list(compress(values, there)) for values in (seqs, found, attempts))  # type: ignore[assignment]
        ids = self._ack_ids.seal_all(self.consumer.number, lease, seqs, attempts)
        return Share(lease, ids, seqs, attempts, found)  # type: ignore[arg-type]

    async def give_back(self, share: Share) -> None:
        """Its client has gone away before it could be told: nobody has seen these messages."""
        if share.lease is not None:
            await self._settle_back(Settlement(leases=[share.lease] * len(share.seqs), seqs=list(share.seqs)))

    async def _settle_back(self, back: Settlement) -> None:
        back.failures = [RELEASE] * len(back.seqs)
        await store.settle(self._database, self.consumer.number, back)
        self._given_back(len(back.seqs))
        self._news.set()

    def _answer_the_impatient(self, called: list[_Receiver], batch: Batch) -> None:
        """Those that don't wait any longer, once all has been looked through that there is, or for long enough."""
        now = self._clock()
        for receiver in called:
            if receiver.answer.done() or (receiver.until > now and not self._draining):
                continue
            if not batch.more or batch.seqs or now >= receiver.since + PATIENCE:
                receiver.answer.set_result(NOTHING)

    def _fail(self, error: Exception) -> None:
        """Nobody is served now; they may ask again."""
        queue, self._queue = self._queue, []
        fail([one.answer for one in queue], error)

    async def _renew(self) -> None:
        spec, version = await store.consumer_spec(self._database, self.consumer.number)
        self.renew(msgspec.structs.replace(self.consumer, spec=spec, version=version))

    def renew(self, consumer: KnownConsumer) -> None:
        """Its settings have changed."""
        self.consumer = consumer
        self._shelf = self._shelf_of(consumer)

    def _shelf_of(self, consumer: KnownConsumer) -> Shelf:
        return self._shelves.of((consumer.stream.number, consumer.spec.filters, repr(consumer.spec.where)))

    async def _rest(self, batch: Batch) -> None:
        """There is nothing just now: wait for news, for what falls due, or for the poll."""
        now = self._clock()
        if not self.deaf and now >= self._announced + ANNOUNCE / 2:
            await store.wait(self._database, self.consumer.number, ANNOUNCE)
            self._announced = now
            return  # and look once more, for what was committed before that and so not notified
        with anyio.move_on_after(self._poll.rest(batch.due_in, deaf=self.deaf)):
            await self._news.wait()
