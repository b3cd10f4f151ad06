"""The keeper: extends leases every half of `ack_wait`.

It extends them by their ids, not by their owner. A lease that this process has forgotten by mistake must expire.
Otherwise its messages would not be redelivered for as long as the process lives.
"""

from __future__ import annotations

from typing import Any

import anyio

from headrace import store
from headrace.flow.in_flight import InFlightTracker
from headrace.flow.lease import Lease
from headrace.runtime.messages.message import Message
from headrace.runtime.settling.verifier import Verifier
from headrace.runtime.stored_consumer import StoredConsumer
from headrace.store.database.retry import DatabaseRetry


class LeaseEvent:
    """Waits until there is a lease. An idle consumer needs no timer, and a process may have thousands
    of them."""

    def __init__(self, in_flight: InFlightTracker[Any]) -> None:
        self._in_flight = in_flight
        self._taken = anyio.Event()
        in_flight.on_take.connect(self._wake)

    def _wake(self) -> None:
        self._taken.set()

    async def wait(self) -> None:
        """Wait until there is a lease."""
        if not self._in_flight.leases:
            await self.next()

    async def next(self) -> None:
        """Wait for the next lease."""
        if self._taken.is_set():
            self._taken = anyio.Event()
        await self._taken.wait()


class Keeper:
    """Extends the leases of one consumer."""

    def __init__(self, consumer: StoredConsumer, in_flight: InFlightTracker[Message], verifier: Verifier) -> None:
        self._consumer = consumer
        self._settings = consumer.settings
        self._in_flight = in_flight
        self._verifier = verifier
        self._clock = consumer.time.clock
        self._now = consumer.time.now
        self._leased = LeaseEvent(in_flight)

    @property
    def ack_wait(self) -> float:
        """The present `ack_wait`, in seconds."""
        return self._settings.spec.ack_wait

    async def extend_over(self, database: store.Database) -> None:
        """Extend all leases once, in another thread than that of the consumer, whose event loop is blocked. Leases that
        turn out to be lost are left to the next `extend`."""
        if self._in_flight.leases:
            await self._extended(database)

    async def run(self, database_retry: DatabaseRetry) -> None:
        """Extend until cancelled. Raises `StoreUnavailable`."""
        while True:
            await self._leased.wait()
            await self._settings.rest()
            if self._in_flight.leases:
                await self.extend()
            database_retry.cleared()

    async def extend(self) -> None:
        """Extend all leases once. Raises `StoreUnavailable`."""
        missing = await self._extended(self._consumer.database)
        if missing and await self._consumer.still_exists():
            await self._verifier.verify()
        elif missing:
            for lease in missing:
                self._in_flight.lose(lease)

    async def _extended(self, database: store.Database) -> list[Lease]:
        """Extend all leases once. Returns those that seem to be lost."""
        asked, began, ack_wait = list(self._in_flight.leases.values()), self._clock(), self.ack_wait
        # Extend by the ids that are tracked. A lease that this process doesn't track must expire,
        # and not live as long as the process.
        ids = [lease.id for lease in asked]
        alive = await store.extend_leases(database, self._consumer.id, ids, now=self._now())
        return self._in_flight.extended(asked, set(alive), began + ack_wait)
