"""The subscriptions of idle consumers, which have nothing to lease, to the notifications of publishers.

One statement subscribes many of them, and they share the polls that replace lost notifications.
"""

from __future__ import annotations

import math
import time

import anyio

from headrace import store
from headrace.model.clock import Clock
from headrace.model.errors import UnknownConsumer
from headrace.runtime.leasing.timings import LEASE_TIMINGS, LeaseTimings
from headrace.store.database.retry import DatabaseRetry

RENEWALS = 200
"""Target number of subscriptions renewed per second. It determines the growth of the term of a subscription."""

POLLS = 20
"""Polls per second of all idle consumers together. The more idle consumers there are, the less often
each one polls. The leader's janitor checks for missed notifications in between."""


class CallLimit:
    """Limits how many calls run at the same time. A call that need not wait costs next to nothing."""

    def __init__(self, calls: int) -> None:
        self._free = anyio.Semaphore(calls, fast_acquire=True)

    async def __aenter__(self) -> None:
        try:
            self._free.acquire_nowait()
        except anyio.WouldBlock:
            await self._free.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._free.release()


class Subscriptions:
    """The subscriptions of one process.

    Args:
        database: an open database.
        connections: how many lease calls may run at the same time. Further calls wait without a
            timeout, because ten thousand consumers that start together are no outage.
        clock: monotonic time in seconds.
        timings: the terms of subscriptions, and the poll interval.

    Attributes:
        lease_calls: the limit of lease calls, to hold during each.
    """

    def __init__(
        self,
        database: store.Database,
        connections: int,
        clock: Clock = time.monotonic,
        timings: LeaseTimings = LEASE_TIMINGS,
    ) -> None:
        self.lease_calls = CallLimit(connections)
        self._database = database
        self._clock = clock
        self._timings = timings
        self._idle: dict[int, int] = {}  # how many fetchers and receivers of each consumer are idle
        self._until: dict[int, float] = {}  # when each subscription ends
        self._joining: set[int] = set()  # consumers that the next statement subscribes
        self._statement = anyio.Lock()

    def subscription(self, consumer: int) -> Subscription:
        """The subscription of a consumer, for one fetcher or receiver."""
        return Subscription(self, consumer)

    @property
    def longest_poll(self) -> float:
        """The longest poll interval in seconds."""
        return max(self._timings.polls.longest, len(self._idle) / POLLS)

    def reset(self) -> None:
        """Forget all subscriptions, so that they are made again. The database loses them when it
        crashes or fails over."""
        self._until.clear()

    async def run(self, database_retry: DatabaseRetry) -> None:
        """Renew subscriptions until cancelled. Raises `StoreUnavailable`."""
        while True:
            await anyio.sleep(self._timings.shortest_term / 2)
            await self.renew()
            database_retry.cleared()

    async def renew(self) -> None:
        """Renew the subscriptions of idle consumers that end soon. Raises `StoreUnavailable`."""
        now = self._clock()
        self._until = {
            consumer: until for consumer, until in self._until.items() if until > now or consumer in self._idle
        }
        soon = now + self._timings.shortest_term
        ending = {consumer for consumer in self._idle if self._until.get(consumer, math.inf) <= soon}
        if ending:
            await self._subscribe(ending)

    def is_subscribed(self, consumer: int) -> bool:
        """Whether publishers will notify this consumer for some more seconds."""
        return self._clock() < self._until.get(consumer, -math.inf) - self._timings.shortest_term / 4

    async def subscribe(self, consumer: int) -> None:
        """Subscribe a consumer. All consumers that wait for the running statement are subscribed
        together by the next one.

        Raises `StoreUnavailable`.
        """
        self._joining.add(consumer)
        async with self._statement:
            if consumer in self._joining:
                joining, self._joining = self._joining, set()
                await self._subscribe(joining)

    async def _subscribe(self, consumers: set[int]) -> None:
        term = max(self._timings.shortest_term, min(len(self._idle) / RENEWALS, self._timings.longest_term))
        until = self._clock() + term
        for left in range(len(consumers), -1, -1):
            try:
                await store.wait(self._database, sorted(consumers), term)
                break
            except UnknownConsumer:
                # One of them was deleted during the statement, which omits it from now on. Its own lease call raises the
                # error, which the others must not get. That happens at most once for each of them.
                if not left:
                    raise
        self._until.update(dict.fromkeys(consumers, until))

    def enter(self, consumer: int) -> None:
        """Count one more idle fetcher or receiver of this consumer."""
        self._idle[consumer] = self._idle.get(consumer, 0) + 1

    def leave(self, consumer: int) -> None:
        """Count one less idle fetcher or receiver of this consumer."""
        self._idle[consumer] -= 1
        if not self._idle[consumer]:
            del self._idle[consumer]


class Subscription:
    """The subscription of one fetcher or receiver. It is renewed while that is idle.

    It is idle from before it subscribes until it leases something. That includes the lease call
    that must follow the subscription. If subscriptions were renewed only after that call, those of thousands that
    start together would end before their turn to call, and all would start again.
    """

    def __init__(self, subscriptions: Subscriptions, consumer: int) -> None:
        self._subscriptions = subscriptions
        self._consumer = consumer
        self._idle = False

    @property
    def subscribed(self) -> bool:
        """Whether publishers will notify it for some more seconds."""
        return self._subscriptions.is_subscribed(self._consumer)

    @property
    def longest_poll(self) -> float:
        """The longest poll interval in seconds."""
        return self._subscriptions.longest_poll

    async def subscribe(self) -> None:
        """Ask publishers to notify it. A lease call must follow, to find messages that were committed
        before.

        Raises `StoreUnavailable`.
        """
        self.enter()
        await self._subscriptions.subscribe(self._consumer)

    def enter(self) -> None:
        """Become idle. From now on an existing subscription is renewed."""
        if not self._idle:
            self._idle = True
            self._subscriptions.enter(self._consumer)

    def leave(self) -> None:
        """Become busy, or end."""
        if self._idle:
            self._idle = False
            self._subscriptions.leave(self._consumer)
