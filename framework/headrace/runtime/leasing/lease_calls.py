"""Lease calls of one consumer: how much each may look at, and how long to wait between them.

    lease ──▶ messages: lease again
          └─▶ none: subscribe, and lease once more ──▶ none: rest until a notification, a due time or the poll

The fetcher of a worker, the receivers of a server and manual acknowledgement all lease in this way.
"""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any
from uuid import UUID

from headrace import store
from headrace.flow.demand import CallPace, ListenPolicy, NotificationBackoff, Poll, ScanLimit, until_token
from headrace.model.clock import Clock
from headrace.model.errors import FilterTooSlow
from headrace.model.records import Batch
from headrace.model.specs import ConsumerSpec
from headrace.model.watching import history_log
from headrace.runtime.leasing.subscriptions import Subscription
from headrace.runtime.leasing.timings import LEASE_TIMINGS, LeaseTimings
from headrace.runtime.wake_up import WakeUp


class LeaseCalls:
    """Makes the lease calls of one consumer, one at a time, and waits between them.

    Args:
        database: an open database.
        consumer: the consumer's id.
        subscription: subscribes to notifications while there is nothing to lease. None to poll only.
        clock: monotonic time in seconds.
        timings: how long a call may take, and how long to wait between calls.

    Attributes:
        polling: whether the process receives no notifications, so that it must poll more often.
        policy: decides whether to listen for notifications.
    """

    def __init__(
        self,
        database: store.Database,
        consumer: int,
        subscription: Subscription | None = None,
        clock: Clock = time.monotonic,
        timings: LeaseTimings = LEASE_TIMINGS,
    ) -> None:
        self._database = database
        self._consumer = consumer
        self._subscription = subscription
        self._clock = clock
        self.judging = timings.judging
        self.polling = True
        self.limited_at = float("-inf")  # when a call last found no token of the rate limit
        self._missed = 0  # how many calls in a row have found none, although they waited for one
        self.policy = ListenPolicy(least_share=timings.least_share, leaving=timings.leaving)
        self._look = ScanLimit()
        self._poll = Poll(timings.polls)
        self._pace = CallPace()
        self._next_at = float("-inf")  # when the next call may begin, for `keep_pace`
        self._backoff = NotificationBackoff()
        self._news = WakeUp()  # set when a call may find something
        self._hurried = WakeUp()  # set when a call must be made, whatever it will find
        self._notified = False  # whether a notification has arrived since the last call began
        self._called_for_notification = False  # whether one had arrived before it

    def wake(self) -> None:
        """End a rest, because some messages may have been published or become free."""
        self._news.set()

    def hurry(self) -> None:
        """End a rest, even if no call can find anything yet."""
        self._news.set()
        self._hurried.set()

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

    def begin(self) -> None:
        """Begin a lease call. Wake-ups from now on end the next rest. The call finds the messages of earlier ones."""
        self._news.clear()
        self._hurried.clear()
        self._called_for_notification, self._notified = self._notified, False

    def leave(self) -> None:
        """End the subscription's renewal, because there are no more calls for now."""
        if self._subscription is not None:
            self._subscription.leave()

    def condition_slot(self, spec: ConsumerSpec) -> AbstractAsyncContextManager[None]:
        """Return the slot to hold around a call of a consumer with a condition. See `Database.judging`.

        The wait for it has no timeout, because a consumer makes one call at a time, and the slots go round.
        Consumers without a condition need no slot.
        """
        if spec.where is None:
            return nullcontext()
        return self._database.judging(spec.stream, None, bounded=False)

    async def lease(self, owner: UUID, want: int, spec: ConsumerSpec, **options: Any) -> Batch:
        """Make a lease call. Call `begin` before, and hold a `condition_slot`.

        Args:
            owner: the owner of the lease.
            want: the largest number of messages.
            spec: the consumer's settings.
            options: as in `headrace.store.lease`. By default the call is not patient.

        Raises:
            FilterTooSlow: the condition took too long. The next call looks at fewer messages.
            StoreUnavailable, UnknownConsumer.
        """
        if history_log.LOG is not None:
            history_log.LOG.consumer(self._consumer, spec)
        options.setdefault("patient", False)
        if spec.where is not None:
            options |= {"look": self._look.limit, "judging": self.judging}
        began = self._clock()
        try:
            batch = await store.lease(self._database, self._consumer, owner, want, **options)
        except FilterTooSlow:
            self._look.too_slow()
            raise
        ended = self._clock()
        if spec.where is not None:
            self._look.took(ended - began, batch.looked_at)
        characters = sum(map(len, filter(None, batch.data)))  # None for those that the caller has cached
        self._next_at = ended + self._pace.rest(len(batch.seqs), characters, ended - began)
        self._adapt(batch)
        if options.get("free_keys") and batch.lease_id is None:
            self._poll.slow_down()
        return batch

    async def history_and_stream(self) -> tuple[UUID | None, int | None]:
        """See `headrace.store.history_and_stream`."""
        return await store.history_and_stream(self._database, self._consumer)

    def _adapt(self, batch: Batch) -> None:
        """Adapt the poll and the reaction to notifications to what a call has returned."""
        if not batch.busy:
            self.policy.fetched(len(batch.seqs), more=batch.more)
        if batch.lease_id is not None:
            self._missed = 0
            if self.policy.listen:
                self._poll.found()  # otherwise the processes that listen lease the next messages
            self._backoff.found()
            self.leave()
        elif self._called_for_notification or batch.busy:
            self._backoff.missed()

    async def rest(self, batch: Batch, spec: ConsumerSpec) -> None:
        """Wait until another call may find something, after one that found nothing more.

        Args:
            batch: the batch that the call returned.
            spec: the consumer's settings.

        Raises:
            StoreUnavailable: the subscription failed.
        """
        if batch.busy and batch.due_in is not None and self.policy.listen:
            await self.pause(batch.due_in)
        elif spec.rate_limit is not None and batch.due_in is not None and batch.due_in <= 1 / spec.rate_limit:
            # The rate limit allows no message before then, so notifications are ignored.
            self.limited_at = self._clock()
            wait = until_token(batch.due_in, spec.rate_limit, spec.rate_burst, self._missed)
            if batch.lease_id is None:
                self._missed += 1
            await self.pause(wait)
        elif self._must_subscribe:
            assert self._subscription is not None
            await self._subscription.subscribe()  # and look again for messages that were committed before
        else:
            await self.until_woken(self._interval(batch))
            if self._notified and (delay := self._backoff.delay):
                await self.pause(delay)

    async def keep_pace(self) -> None:
        """Leave some more messages to the next call, if the last one brought many. See `CallPace`.

        For callers whose actors have enough to do, and not for calls that a request waits for.
        """
        left = self._next_at - self._clock()
        if left > 0:
            await self.pause(left)

    async def until_woken(self, seconds: float) -> None:
        """Wait for a wake-up, at most for some seconds."""
        await self._news.wait(seconds)

    async def pause(self, seconds: float) -> None:
        """Make no call for some seconds, whatever wakes it, unless it is hurried."""
        await self._hurried.wait(seconds)

    @property
    def _must_subscribe(self) -> bool:
        return (
            self.policy.listen
            and not self.polling
            and self._subscription is not None
            and not self._subscription.subscribed
        )

    def _interval(self, batch: Batch) -> float:
        """Seconds until the next poll, or until something falls due."""
        if self._subscription is None:
            return self._poll.rest(batch.due_in, polling=True)
        if self.policy.listen:
            self._subscription.enter()
            return self._poll.rest(batch.due_in, polling=self.polling, longest=self._subscription.longest_poll)
        self._subscription.leave()
        return self._poll.rest(None if batch.busy else batch.due_in, polling=False, longest=self.policy.POLL)
