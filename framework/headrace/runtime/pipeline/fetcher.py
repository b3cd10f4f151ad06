"""The fetcher: leases as many messages as the actors can use, puts them into lanes, and rests if there
are none."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio

from headrace import store
from headrace.flow.demand import BATCH, Demand, SlowKeys
from headrace.model.errors import FilterTooSlow, StoreUnavailable, UnknownConsumer
from headrace.model.log import Log
from headrace.model.records import Batch
from headrace.runtime.leasing.empty_calls import EmptyCalls
from headrace.runtime.leasing.lease_calls import LeaseCalls
from headrace.runtime.pipeline.handover import HandoverPace
from headrace.runtime.pipeline.intake import Intake
from headrace.runtime.pipeline.shared import Shared
from headrace.runtime.settling.breaker import PipelineBreaker
from headrace.runtime.settling.settler import Settler
from headrace.runtime.settling.verifier import Verifier
from headrace.runtime.stored_consumer import LeasedMessages, StoredConsumer
from headrace.runtime.wake_up import WakeUp
from headrace.store.database.retry import DatabaseRetry

log = Log("headrace")

ASK = 1.0
"""Interval in seconds for reading the settings while there is no room to lease more. Otherwise a lease
call reports changes."""

SCARCE = 4
"""From this part of `max_ack_pending` on, outcomes are settled at once, because they make room for this process or
others."""


class Fetcher:
    """Leases messages, with one lease call at a time.

    Args:
        intake: takes the leased messages. Its capacity determines how many to lease.
        settler: reports settled messages.
        verifier: compares the leases with the store, before the first lease call and in each doubt.
        breaker: the consumer's circuit breaker, if it has one.

    Attributes:
        calls: the lease calls, and the rests between them.
        leased: messages leased so far.
        leased_at: when messages were last leased, on the pipeline's clock. None before the first
            lease.
        unanswered_since: start of the current call to the store, or of the first of the failed
            ones. None while no answer is outstanding.
    """

    def __init__(
        self,
        shared: Shared,
        consumer: StoredConsumer,
        leased: LeasedMessages,
        intake: Intake,
        settler: Settler,
        verifier: Verifier,
        breaker: PipelineBreaker | None = None,
    ) -> None:
        self._consumer = consumer
        self._settings = consumer.settings
        self._lanes = leased.lanes
        self._in_flight = leased.in_flight
        self._intake = intake
        self._verifier = verifier
        self._clock = shared.time.clock
        self._now = shared.time.now
        self._limit = shared.subscriptions.lease_calls
        self._instruments = shared.instruments
        self._breaker = breaker
        self._handover = intake.handover
        subscription, timings = shared.subscriptions.subscription(consumer.id), shared.timings.leasing
        self.calls = LeaseCalls(shared.database, consumer.id, subscription, clock=self._clock, timings=timings)
        self._reader = shared.reads.reader(self.calls)
        self._empty_calls = EmptyCalls(leased.in_flight)
        self._demand = Demand(self._settings.spec.max_ack_pending)
        self._slow_keys = SlowKeys()
        self._free_keys = False  # whether the next lease call is for free keys
        self._unordered: set[int] = set()  # the leases that were taken before the consumer became ordered
        self._alarm: asyncio.TimerHandle | None = None  # wakes for a key that may be free
        self._room = WakeUp()
        self._called_at = 0.0
        self._under_way = False  # whether a lease call is under way
        self._call_ended: anyio.Event | None = None  # set when it has ended, if a caller waits for that
        self._in_doubt = True  # the store may have other leases of this process than those that are tracked here
        self._stopping = False
        self.leased = 0
        self.leased_at: float | None = None
        self.unanswered_since: float | None = None
        self._lanes.on_low.connect(self.room)
        settler.on_settled.connect(self.room)
        settler.on_returned.connect(self.wake)  # a returned message may be due before the next poll

    def wake(self) -> None:
        """Look for messages, because some may have been published."""
        self.calls.wake()

    def hurry(self) -> None:
        """Look again now, even if nothing can be due yet, because the clock was moved or a caller
        wants to be sure."""
        self._room.set()
        self.calls.hurry()

    def room(self) -> None:
        """Look for room, because fewer messages wait or are unsettled."""
        self._room.set()
        if self._empty_calls.watched and not self._in_flight.held:
            self.wake()  # callers of `until_finished` needn't wait for the poll
        elif self._slow_keys.found:
            self._wake_for_room()

    def _wake_for_room(self) -> None:
        """End the rest after a call for free keys: now if messages of any key may be leased, or soon, since a key may
        be free."""
        if self._lanes.waiting <= self._lanes.low_water:
            self.wake()
        elif self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(self._slow_keys.delay, self._end_alarm)

    def _end_alarm(self) -> None:
        self._alarm = None
        self.wake()

    def stop(self) -> None:
        """Stop leasing. A call in progress ends first, because the messages that it leases would
        otherwise wait for their lease to expire."""
        self._stopping = True
        self.hurry()
        self._empty_calls.stop()

    async def run(self, database_retry: DatabaseRetry) -> None:
        """Fetch until stopped. Raises `StoreUnavailable`."""
        self._reader.join(self._settings.spec.stream)
        try:
            await self._run(database_retry)
        finally:
            self.calls.leave()
            self._reader.leave()
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None

    async def _run(self, database_retry: DatabaseRetry) -> None:
        while not self._stopping:
            if self._in_doubt:
                await self._reconcile()
            if self._breaker is not None and not self._breaker.closed:
                batch = await self._probe(self._breaker, database_retry)
            elif (want := self._want()) > 0:
                batch = await self._fetch(want, database_retry)
            else:
                await self._wait_for_room()
                continue
            if batch is not None and not self._in_doubt:
                await self._rest(batch)
        if self._in_doubt:
            with suppress(StoreUnavailable):  # if this fails, the leases expire
                await self._reconcile()

    async def _rest(self, batch: Batch) -> None:
        """Wait until the next call may find something, and enough of it to be worth a call."""
        if not batch.more:
            await self.calls.rest(batch, self._settings.spec)
        if not batch.more or self._reader.follows:
            await self.calls.keep_pace()

    def _want(self) -> int:
        self._room.clear()
        self._demand.observe(self._clock(), self._in_flight.acked, self._intake.capacity)
        self._lanes.low_water = self._demand.target // 2
        most, held = self._settings.spec.max_ack_pending, self._in_flight.held
        if held >= most // SCARCE:
            self._in_flight.hurry()
        waiting, room = self._lanes.waiting, most - held
        want = self._demand.want(waiting)
        self._free_keys = self._has_unordered()
        if not waiting:
            self._slow_keys.end()
        elif want <= 0 and self._settings.spec.ordered and not self._lanes.ready:
            want = self._want_of_free_keys(room)
        return min(want, room)

    def _want_of_free_keys(self, room: int) -> int:
        """Return how many messages of free keys to lease, because no message in the buffer can start.

        Then slow keys keep the buffer's size at most, or three quarters of it where `max_ack_pending` has no room for
        others. More than half is left, so that these are not leased again at once.
        """
        spare, target = self._intake.spare, self._demand.target
        self._slow_keys.observe(self._clock(), self.leased)
        if not spare or not self._slow_keys.found:
            return 0
        self._intake.trim(target if room >= spare else max(target * 3 // 4, target // 2 + 1))
        self._free_keys = True
        return min(2 * spare, target, BATCH)

    def _has_unordered(self) -> bool:
        """Whether messages are at work that are in no lane of their key, since the consumer was not ordered. Their keys
        are not free until these leases have ended."""
        self._unordered &= self._in_flight.leases.keys()
        return bool(self._unordered)

    async def _wait_for_room(self) -> None:
        if self._handover is not None and await self._handover.offer():
            await self.calls.pause(HandoverPace.PAUSE)
            return
        pause = self._slow_keys.pause(self._clock())
        if await self._room.wait(pause or ASK):
            return
        if pause:
            self._slow_keys.end_pause()
        else:
            await self._read_settings()  # a changed setting may make room

    async def _probe(self, breaker: PipelineBreaker, database_retry: DatabaseRetry) -> Batch | None:
        """Wait out the pause of the open circuit breaker, lease one message as the probe, and wait for
        its outcome."""
        while (left := breaker.left) > 0 and not self._stopping and not self._in_doubt:
            self.calls.begin()
            self._empty_calls.begin()
            self._empty_calls.end(empty=True, finished=False)
            await self.calls.until_woken(left)
        if self._stopping or self._in_doubt:
            return None
        breaker.begin_probe()
        self._free_keys = self._has_unordered()
        batch = await self._fetch(1, database_retry)
        while breaker.probe is not None and breaker.probe.lease.left and not self._stopping:
            self._room.clear()
            await self._room.wait()
        breaker.end_probe()
        return batch if batch is not None and batch.lease_id is None else None

    async def _fetch(self, want: int, database_retry: DatabaseRetry) -> Batch | None:
        """Make one lease call and put its messages into the lanes. Returns None if the condition took
        too long."""
        began = self._clock()
        try:
            batch = await self._lease(want)
        except FilterTooSlow as error:
            name, hint = self._settings.spec.name, "it is tried again with fewer messages"
            log.error("condition too slow", consumer=name, error=error, hint=hint)
            await anyio.sleep(self.calls.judging / 5)
            return None
        database_retry.cleared()
        self._demand.observe_call(self._clock() - began)
        if self._free_keys:
            self._slow_keys.called(len(batch.seqs))
        if self._in_doubt:
            return None
        if batch.lease_id is not None:
            await self._take(batch, batch.lease_id)
        empty = batch.lease_id is None and not batch.more and not batch.busy and not self._free_keys
        self._empty_calls.end(empty=empty, finished=empty and batch.due_in is None)
        return batch

    async def _lease(self, want: int) -> Batch:
        self.calls.begin()
        self._in_doubt = True
        self._empty_calls.begin()
        self._lanes.begin_call()
        verified = self._verifier.count
        try:
            async with self.calls.condition_slot(self._settings.spec), self._limit:
                self._called_at = self._asking()
                if self._instruments is None:
                    batch = await self._call(want)
                else:
                    with self._instruments.leasing(self._settings.spec) as brought:
                        batch = await self._call(want)
                        brought(batch)
            self.unanswered_since = None
            if batch.version != self._settings.version:
                await self._learn_settings()
        except BaseException:
            self._lanes.add(())
            raise
        # In another history, this batch may contain messages that follow some that have to be delivered again. If the
        # leases were verified meanwhile, the store may have released this one.
        is_rewound = batch.history not in (None, self._in_flight.history)
        is_released = self._verifier.may_have_released(verified)
        is_late = self._in_flight.is_late(self._clock())  # the store may expire this one together with the others
        self._in_doubt = is_rewound or is_released or is_late or (self._has_unordered() and not self._free_keys)
        if batch.lease_id is None or self._in_doubt:
            self._lanes.add(())
        return batch

    async def _call(self, want: int) -> Batch:
        self._under_way = True
        try:
            owner, spec = self._consumer.owner, self._settings.spec
            return await self._reader.lease(owner, want, spec, now=self._now(), free_keys=self._free_keys)
        finally:
            self._under_way = False
            if self._call_ended is not None:
                self._call_ended.set()
                self._call_ended = None

    async def _take(self, batch: Batch, lease_id: int) -> None:
        """Track the lease, and give its messages to the actors."""
        lanes = self._lanes.names(batch.keys, batch.seqs, self._settings.spec.ordered)
        # The deadline counts from before the call, so that it is never later than the deadline in
        # the store.
        deadline = self._called_at + self._settings.spec.ack_wait
        lease = self._in_flight.take(lease_id, batch.seqs, lanes, deadline)
        self.leased += len(batch.seqs)
        self.leased_at = self._called_at
        self._demand.observe_sizes(batch.data)
        if self._handover is not None:
            self._handover.pace.leased(self.leased_at, batch.seqs)
        await self._intake.dispatch(batch, lease, lanes, self._called_at)

    # --- doubt: leases that this process doesn't track

    async def _reconcile(self) -> None:
        """Verify the leases. Those that this process doesn't track are released: of a call with a lost answer, or from
        before a rewind, or while the others were late.

        This happens also while there is no room for more. The keeper doesn't extend a lease that is not tracked, and an
        owner with one expired lease loses all of them.

        Raises:
            UnknownConsumer: the consumer was deleted. Leases of another consumer that now has its
                id are released.
        """
        self._asking()
        try:
            async with self._limit:
                await self._verifier.verify()
        except UnknownConsumer:
            await self._reclaim()
            raise
        self.unanswered_since = None
        self._in_doubt = False

    async def _reclaim(self) -> None:
        """Release the leases of another consumer that now has this one's id."""
        with suppress(UnknownConsumer):
            await store.reclaim(self._consumer.database, self._consumer.id, self._consumer.owner, [])

    def _asking(self) -> float:
        """Return the time, and note that the store is being asked."""
        now = self._clock()
        if self.unanswered_since is None:
            self.unanswered_since = now
        return now

    # --- settings

    async def _learn_settings(self) -> None:
        """Read the settings after a lease call. If that fails, its batch is released."""
        try:
            await self._read_settings()
        except UnknownConsumer:
            await self._reclaim()
            raise

    async def _read_settings(self) -> None:
        self._asking()
        spec, version = await store.consumer_spec(self._consumer.database, self._consumer.id)
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
            log.info("settings changed", consumer=spec.name)
        self._demand.limit = spec.max_ack_pending
        if spec.ordered and not ours.ordered:
            self._unordered = set(self._in_flight.leases)
        self._settings.change(spec, version)

    # --- for callers that wait until nothing is left

    async def until_finished(self) -> None:
        """Wait until nothing is left to lease, to handle, to settle or to retry, or until it is stopped."""
        self.wake()
        await self._empty_calls.until_finished()

    async def until_idle(self) -> None:
        """Like `until_finished`, but without waiting for what falls due later or for the pause of a circuit breaker."""
        self.hurry()
        await self._empty_calls.until_idle(lambda: self._paused)

    async def answered(self) -> bool:
        """Wait until the lease call that is under way has ended. Returns whether there was one."""
        if not self._under_way:
            return False
        if self._call_ended is None:
            self._call_ended = anyio.Event()
        await self._call_ended.wait()
        return True

    @property
    def _paused(self) -> bool:
        return self._breaker is not None and not self._breaker.closed and self._breaker.left > 0
