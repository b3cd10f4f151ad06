"""The keeper: extends leases every half of `ack_wait`, and stops handlers that exceed their timeout."""

from __future__ import annotations

import logging

import anyio

from headrace import store
from headrace.flow.in_flight import InFlightTracker
from headrace.runtime.execution.actors import Actors
from headrace.runtime.messages.message import Message
from headrace.runtime.pipeline.settings import Settings
from headrace.runtime.pipeline.wiring import Time
from headrace.store.database.retry import DatabaseRetry

logger = logging.getLogger("headrace")


class Keeper:
    """Extends the leases of one consumer."""

    def __init__(
        self, database: store.Database, consumer: int, settings: Settings,
        in_flight: InFlightTracker[Message], actors: Actors, time: Time,
    ) -> None:  # fmt: skip
        self._database = database
        self._consumer = consumer
        self._settings = settings
        self._in_flight = in_flight
        self._actors = actors
        self._clock = time.clock
        self._now = time.now
        self._taken = anyio.Event()

    def taken(self) -> None:
        """Wake up, because there is a lease to extend."""
        self._taken.set()

    async def _until_taken(self) -> None:
        """Wait until there is a lease. An idle consumer needs no timer, and a process may have
        thousands of them."""
        if not self._in_flight.leases:
            if self._taken.is_set():
                self._taken = anyio.Event()
            await self._taken.wait()

    async def run(self, database_retry: DatabaseRetry) -> None:
        """Extend until cancelled. Raises `StoreUnavailable`."""
        while True:
            await self._until_taken()
            await self._settings.rest()
            if self._in_flight.leases:
                await self.extend()
            database_retry.cleared()

    async def extend(self) -> None:
        """Extend all leases once. Raises `StoreUnavailable`."""
        asked, began, ack_wait = list(self._in_flight.leases.values()), self._clock(), self._settings.spec.ack_wait
        # Extend by the ids that are tracked. A lease that this process doesn't track must expire,
        # and not live as long as the process.
        alive = await store.extend_leases(
            self._database, self._consumer, [lease.id for lease in asked], now=self._now()
        )
        lost = self._in_flight.extended(asked, alive, began + ack_wait)
        if lost and await self._settings.look_for(self._database, self._consumer):
            logger.warning(
                "%s: %d leases were lost (a pause longer than ack_wait=%gs, or a seek); their messages come again",
                self._settings.spec.name,
                len(lost),
                ack_wait,
            )

    async def watch(self, timeout: float) -> None:
        """Stop handlers that exceed `timeout` seconds, until cancelled."""
        while True:
            await self._until_taken()
            await anyio.sleep(min(max(timeout / 20, 0.01), 0.5))
            self.stop_overdue(timeout)

    def stop_overdue(self, timeout: float) -> None:
        """Stop the handlers that have exceeded their timeout of this many seconds by now."""
        for _ in self._actors.overdue(self._clock()):
            logger.warning("%s: a handler took longer than its timeout of %gs", self._settings.spec.name, timeout)
