"""The fetcher: leases as many messages as the actors can use, puts them into lanes, and waits if there
are none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from itertools import repeat
from uuid import UUID

import anyio

from headrace import store
from headrace.flow.demand import JUDGING, Demand, ListenPolicy, Look, NotificationBackoff, Poll, until_token
from headrace.flow.in_flight import InFlightTracker
from headrace.flow.lanes import Lanes
from headrace.model.errors import FilterTooSlow, StoreUnavailable, UnknownConsumer
from headrace.model.records import Batch
from headrace.runtime.instruments import Instruments
from headrace.runtime.messages.message import Message
from headrace.runtime.pipeline.acknowledger import Acknowledger
from headrace.runtime.pipeline.breaker import PipelineBreaker
from headrace.runtime.pipeline.idle import IdleConsumers
from headrace.runtime.pipeline.settings import Settings
from headrace.runtime.pipeline.wiring import Acting, Settling, Time
from headrace.store.database.retry import DatabaseRetry

logger = logging.getLogger("headrace")

ASK = 1.0
"""Interval in seconds for reading the settings while there is no room to lease more. Otherwise a lease
call reports changes."""


class Fetcher:
    """Leases messages, with one lease call at a time.

    Attributes:
        deaf: whether the process receives no notifications, so that it must poll more often.
        policy: decides whether to listen for notifications.
        leased: messages leased so far.
        leased_at: when messages were last leased, on the pipeline's clock. None before the first
            lease.
        unanswered_since: start of the current call to the store, or of the first of the failed
            ones. None while no answer is outstanding.
    """

    def __init__(
        self, database: store.Database, consumer: int, settings: Settings, owner: UUID,
        lanes: Lanes[Message], in_flight: InFlightTracker[Message], acknowledger: Acknowledger, actors: Acting, settler: Settling, time: Time, idle: IdleConsumers,
        instruments: Instruments | None = None, breaker: PipelineBreaker | None = None,
    ) -> None:  # fmt: skip
        self._database = database
        self._consumer = consumer
        self._settings = settings
        self._owner = owner
        self._lanes = lanes
        self._in_flight = in_flight
        self._acknowledger = acknowledger
        self._actors = actors
        self._settler = settler
        self._clock = time.clock
        self._now = time.now
        self._lease_calls = idle.lease_calls
        self._idle = idle.consumer(consumer)
        self._instruments = instruments
        self._breaker = breaker
        self._demand = Demand(settings.spec.max_ack_pending)
        self._poll = Poll()
        self._backoff = NotificationBackoff()
        self.policy = ListenPolicy()
        self._notified = False  # whether a notification has arrived since the last lease call began
        self._look = Look()
        self._room = anyio.Event()
        self._news = anyio.Event()
        self._called_at = 0.0
        self._in_doubt = False  # the store may have leases of this process that are not tracked here
        self._timeline: UUID | None = None  # the timeline of the database, see `Batch.timeline`
        self._rewinds = 0  # how often the timeline has changed
        self._stopping = False
        self._hurried = anyio.Event()
        self._begun = 0
        self._ended = anyio.Event()  # set by the next lease call that ends
        self._quiet_since = 0  # the number of the last call if it found nothing, otherwise 0
        self._dry_since = 0  # the number of the last call if it found nothing and nothing will fall due, otherwise 0
        self._watched = 0  # number of callers that wait in `dry` or `quiet`
        self.deaf = True
        self.leased = 0
        self.leased_at: float | None = None
        self.unanswered_since: float | None = None

    def wake(self) -> None:
        """Look for messages, because some may have been published."""
        self._news.set()

    def notified(self) -> None:
        """Handle a notification, which a publisher sends to all idle consumers of the stream."""
        self.policy.notified()
        if self.policy.listen:
            self._notified = True
            self._news.set()

    def listen_again(self) -> None:
        """Listen again, because no other process is subscribed for the consumer."""
        self.policy.resume()
        self._news.set()

    def hurry(self) -> None:
        """Look again now, even if nothing can be due yet, because the clock was moved or a caller
        wants to be sure."""
        self._news.set()
        self._room.set()
        self._hurried.set()

    def room(self) -> None:
        """Look for room, because fewer messages wait or are unsettled."""
        self._room.set()
        if self._watched and not self._in_flight.held:
            self.wake()  # callers of `dry` needn't wait for the poll

    def stop(self) -> None:
        """Stop leasing. A call in progress ends first, because the messages that it leases would
        otherwise wait for their lease to expire."""
        self._stopping = True
        self._hurried.set()
        self._room.set()
        self._news.set()
        self._ended.set()

    async def run(self, database_retry: DatabaseRetry) -> None:
        """Fetch until stopped. Raises `StoreUnavailable`."""
        try:
            await self._run(database_retry)
        finally:
            self._idle.leave()

    async def _run(self, database_retry: DatabaseRetry) -> None:
        while not self._stopping:
            if self._in_doubt:
                await self._reconcile()
            if self._breaker is not None and not self._breaker.closed:
                batch = await self._probe(self._breaker, database_retry)
            elif (want := self._want()) > 0:
                batch = await self._fetch(want, database_retry)
            else:
                batch = None
                with anyio.move_on_after(ASK):
                    await self._room.wait()
                    continue
                await self._read_settings()  # a changed setting may make room
            if batch is not None and not batch.more and not self._in_doubt:
                await self._rest(batch)
        if self._in_doubt:
            with suppress(StoreUnavailable):  # if this fails, the leases expire
                await self._reconcile()

    async def _fetch(self, want: int, database_retry: DatabaseRetry) -> Batch | None:
        """Make one lease call and put its messages into the lanes. Returns None if the condition took
        too long."""
        notified, self._notified = self._notified, False
        try:
            batch = await self._lease(want)
        except FilterTooSlow as error:
            logger.error("%s: %s It is tried again with fewer messages.", self._settings.spec.name, error)
            self._look.too_slow()
            await anyio.sleep(JUDGING / 5)
            return None
        database_retry.cleared()
        if self._in_doubt:
            return None
        if batch.version != self._settings.version:
            await self._learn_settings()
        if not batch.busy:
            self.policy.fetched(len(batch.seqs), more=batch.more)
        if batch.lease_id is not None:
            if self.policy.listen:
                self._poll.found()  # otherwise the processes that listen lease the next messages
            self._backoff.found()
            self._idle.leave()
            await self._dispatch(batch, batch.lease_id)
        elif notified or batch.busy:
            self._backoff.missed()
        quiet = batch.lease_id is None and not batch.more and not batch.busy
        self._note_end(quiet=quiet, dry=quiet and batch.due_in is None)
        return batch

    async def _probe(self, breaker: PipelineBreaker, database_retry: DatabaseRetry) -> Batch | None:
        """Wait out the pause of the open circuit breaker, lease one message as the probe, and wait for
        its outcome."""
        while (left := breaker.left) > 0 and not self._stopping and not self._in_doubt:
            self._news = anyio.Event()
            self._tell_watchers()
            self._begun += 1
            self._note_end(quiet=True, dry=False)
            with anyio.move_on_after(left):
                await self._news.wait()
        if self._stopping or self._in_doubt:
            return None
        breaker.begin_probe()
        batch = await self._fetch(1, database_retry)
        while breaker.probe is not None and breaker.probe.lease.left and not self._stopping:
            self._room = anyio.Event()
            await self._room.wait()
        breaker.end_probe()
        return batch if batch is not None and batch.lease_id is None else None

    def _want(self) -> int:
        self._room = anyio.Event()
        self._demand.observe(self._clock(), self._in_flight.acked, self._actors.appetite)
        self._lanes.low_water = self._demand.target // 2
        return min(self._demand.want(self._lanes.waiting), self._settings.spec.max_ack_pending - self._in_flight.held)

    async def _lease(self, want: int) -> Batch:
        self._news = anyio.Event()
        self._hurried = anyio.Event()
        self._in_doubt = True
        self._begun += 1
        self._lanes.begin_call()
        rewinds = self._rewinds
        try:
            async with self._lease_calls:
                self._called_at = self._asking()
                if self._instruments is None:
                    batch = await self._call(want)
                else:
                    with self._instruments.leasing(self._settings.spec) as brought:
                        batch = await self._call(want)
                        brought(batch)
        except BaseException:
            self._lanes.add(())
            raise
        # If a settle call has noticed a rewind meanwhile, there are leases that this process
        # doesn't track, and this batch may contain messages that follow theirs.
        self._in_doubt = self._rewinds > rewinds
        self.unanswered_since = None
        if batch.timeline not in (None, self._timeline):
            self._begin_timeline(batch.timeline)
        if batch.lease_id is None or self._in_doubt:
            self._lanes.add(())
        return batch

    def _begin_timeline(self, timeline: UUID | None) -> None:
        """Note the timeline of a lease call. If it has changed, the database was rewound.

        Then even this batch may come after messages with acks that were undone, so it is given back
        with the rest.
        """
        before, self._timeline = self._timeline, timeline
        if before is not None:
            self.rewound()

    def rewound(self) -> None:
        """Void all leases, because the database crashed, failed over or was restored.

        The outcomes that were settled last may be undone. So a lease may again hold messages that
        this process has forgotten, and outcomes of later messages of their keys must not count. All
        leases are given back without counting the attempts, and the messages are delivered again in
        order.
        """
        self._rewinds += 1
        leases = self._in_flight.void()
        if leases:
            logger.warning(
                "%s: the database crashed, failed over or was restored: %d leases from before are void, their messages come again",
                self._settings.spec.name,
                len(leases),
            )
        self._settings.version = None  # versions and ids of consumers may have been assigned again, too
        self._in_doubt = True
        self.hurry()

    async def _reconcile(self) -> None:
        """Give back leases that this process doesn't track: of a call with a lost answer, or from
        before a rewind.

        This happens at once, also while there is no room for more. The keeper doesn't extend a
        lease that is not tracked, and an owner with one expired lease loses all of them.

        Raises:
            UnknownConsumer: the consumer was deleted. Leases of another consumer that now has its
                id are given back.
        """
        if self._settings.version is None:
            await self._learn_settings()
        rewinds = self._rewinds
        await store.reclaim(self._database, self._consumer, self._owner, list(self._in_flight.leases))
        self._in_doubt = self._rewinds > rewinds  # then some leases that were tracked no longer are

    def _asking(self) -> float:
        """Return the time, and note that the store is being asked."""
        now = self._clock()
        if self.unanswered_since is None:
            self.unanswered_since = now
        return now

    async def _call(self, want: int) -> Batch:
        where = self._settings.spec.where
        if where is None:
            return await store.lease(self._database, self._consumer, self._owner, want, now=self._now(), patient=False)
        batch = await store.lease(
            self._database, self._consumer, self._owner, want,
            look=self._look.limit, judging=JUDGING, now=self._now(), patient=False,
        )  # fmt: skip
        self._look.took(self._clock() - self._called_at, batch.looked_at)
        return batch

    async def _learn_settings(self) -> None:
        """Read the settings after a lease call. If that fails, its batch is given back."""
        try:
            await self._read_settings()
        except BaseException as error:
            self._in_doubt = True
            self._lanes.add(())
            if isinstance(error, UnknownConsumer):
                with suppress(UnknownConsumer):
                    await store.reclaim(self._database, self._consumer, self._owner, list(self._in_flight.leases))
            raise

    async def _read_settings(self) -> None:
        self._asking()
        spec, version = await store.consumer_spec(self._database, self._consumer)
        self.unanswered_since = None
        ours = self._settings.spec
        if (spec.stream, spec.name) != (ours.stream, ours.name):
            raise UnknownConsumer(
                f"The consumer {ours.name!r} of the stream {ours.stream!r} no longer exists, and {spec.name!r} of {spec.stream!r}"
                " has its id: the database failed over or was restored. Declare it again."
            )
        if version == self._settings.version:
            return
        if self._settings.version is not None:
            logger.info("%s: the settings were changed; they count from now on", spec.name)
        self._demand.limit = spec.max_ack_pending
        self._settings.change(spec, version)

    async def _dispatch(self, batch: Batch, lease_id: int) -> None:
        lanes = batch.keys if self._settings.spec.ordered or self._lanes.by_key else batch.seqs
        # The deadline counts from before the call, so that it is never later than the deadline in
        # the store.
        lease = self._in_flight.take(
            lease_id, batch.seqs, lanes, self._called_at + self._settings.spec.ack_wait, batch.timeline
        )
        self.leased += len(batch.seqs)
        self.leased_at = self._called_at
        self._demand.weigh(batch.data)
        stream, consumer, acknowledger = self._settings.spec.stream, self._settings.spec.name, self._acknowledger
        messages = [
            Message(stream, consumer, key, seq, attempt, created_at, data, headers, lease, lane, acknowledger)
            for key, seq, attempt, created_at, data, headers, lane in zip(
                batch.keys, batch.seqs, batch.attempts or repeat(1), batch.created_at, batch.data, batch.headers, lanes,
                strict=False,
            )
        ]  # fmt: skip
        if batch.crashes is not None:
            for message, crashes in zip(messages, batch.crashes, strict=True):
                message.crashes = crashes
        if self._breaker is None or self._breaker.admits(messages):
            refused = self._lanes.add(messages)
            self._actors.wake()
        else:
            refused = messages
            self._lanes.add(())
        if refused:
            # Another lease call before the store has these back could bring later messages of their
            # keys.
            self._acknowledger.release(refused)
            await self._settler.flush()

    async def _rest(self, batch: Batch) -> None:
        """Wait for a notification, for what falls due, or for the poll, because there are no more
        messages now."""
        spec = self._settings.spec
        if batch.busy and batch.due_in is not None and self.policy.listen:
            with anyio.move_on_after(batch.due_in):
                await self._hurried.wait()
            return
        if spec.rate_limit is not None and batch.due_in is not None and batch.due_in <= 1 / spec.rate_limit:
            # The rate limit allows no message before then, so notifications are ignored.
            with anyio.move_on_after(until_token(batch.due_in, spec.rate_limit, spec.rate_burst)):
                await self._hurried.wait()
            return
        if self.policy.listen:
            if not self.deaf and not self._idle.subscribed:
                await self._idle.subscribe()
                return  # look again for messages that were committed before the subscription
            self._idle.enter()
            rest = self._poll.rest(batch.due_in, deaf=self.deaf, longest=self._idle.longest_poll)
        else:
            self._idle.leave()
            rest = self._poll.rest(None if batch.busy else batch.due_in, deaf=False, longest=self.policy.POLL)
        with anyio.move_on_after(rest):
            await self._news.wait()
        if self._notified and (delay := self._backoff.delay):
            with anyio.move_on_after(delay):
                await self._hurried.wait()

    def _note_end(self, *, quiet: bool, dry: bool) -> None:
        """Note that a lease call has ended, or was skipped because the circuit breaker is open."""
        self._quiet_since = self._begun if quiet else 0
        self._dry_since = self._begun if dry else 0
        self._tell_watchers()

    def _tell_watchers(self) -> None:
        self._ended.set()
        self._ended = anyio.Event()

    async def dry(self) -> None:
        """Wait until nothing is left to lease, to handle, to settle or to retry, or until it is stopped."""
        self.wake()
        await self._until(lambda asked: self._dry_since > asked)

    async def quiet(self) -> None:
        """Like `dry`, but without waiting for what falls due later or for the pause of a circuit breaker."""
        self.hurry()
        await self._until(lambda asked: self._quiet_since > asked or self._paused)

    @property
    def _paused(self) -> bool:
        return self._breaker is not None and not self._breaker.closed and self._breaker.left > 0

    async def _until(self, nothing: Callable[[int], bool]) -> None:
        """Wait until a lease call that started after this method returns nothing and nothing is in
        flight.

        Args:
            nothing: whether a lease call after the one with this number found nothing.
        """
        asked = self._begun
        self._watched += 1
        try:
            while not (nothing(asked) and not self._in_flight.held) and not self._stopping:
                await self._ended.wait()
        finally:
            self._watched -= 1
