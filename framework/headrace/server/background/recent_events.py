"""Gathers what webhooks and push consumers do, and writes it to the database at most once a second.

The newest events of each second are written. So a flood costs one write a second, and some kilobytes of memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import anyio

from headrace import store
from headrace.model.errors import StoreUnavailable
from headrace.model.log import Log
from headrace.runtime.pipeline.shared import Shared
from headrace.server.background.tasks import BackgroundPart
from headrace.store import AnswerToRecord, DeliveryToRecord

log = Log("headrace")

T = TypeVar("T")

INTERVAL = 1.0
"""Seconds between two writes."""

PER_OWNER = 20
"""The most events of one webhook or push consumer in a write."""

OWNERS = 500
"""The most webhooks or push consumers of a write. Events of others are left out."""


class Gathered(Generic[T]):
    """The newest events of each owner."""

    def __init__(self) -> None:
        self._events: dict[Hashable, deque[T]] = {}

    def add(self, owner: Hashable, event: T) -> None:
        """Add an event. It takes the place of the oldest one of its owner if there are too many."""
        events = self._events.get(owner)
        if events is None:
            if len(self._events) >= OWNERS:
                return
            events = self._events[owner] = deque(maxlen=PER_OWNER)
        events.append(event)

    def take(self) -> list[T]:
        """Return all events, and forget them."""
        taken, self._events = self._events, {}
        return [event for events in taken.values() for event in events]


class RecentEvents(BackgroundPart):
    """Records deliveries to webhooks and answers of endpoints. See `headrace.app.attached`.

    Nothing is recorded while the database is unavailable, or if its role may not.
    """

    def __init__(self) -> None:
        self._deliveries: Gathered[DeliveryToRecord] = Gathered()
        self._answers: Gathered[AnswerToRecord] = Gathered()
        self._news, self._stopped = anyio.Event(), anyio.Event()

    def delivered(self, delivery: DeliveryToRecord) -> None:
        """Record a delivery to a webhook."""
        self._deliveries.add(delivery.source, delivery)
        self._news.set()

    def answered(self, answer: AnswerToRecord) -> None:
        """Record an answer of the endpoint of a push consumer."""
        self._answers.add(answer.consumer, answer)
        self._news.set()

    async def run(self, shared: Shared) -> None:
        """Write until `drain`, and then what is left, unless that takes long."""
        try:
            with anyio.CancelScope() as self.scope:
                while not self._stopped.is_set():
                    await self._news.wait()
                    self._news = anyio.Event()
                    await self._write(shared.database)
                    with anyio.move_on_after(INTERVAL):
                        await self._stopped.wait()
                with anyio.move_on_after(INTERVAL):
                    await self._write(shared.database)
        finally:
            self.scope = None
            self._stopped = anyio.Event()  # the app may run again

    async def _write(self, database: store.Database) -> None:
        await _record(store.record_deliveries, database, self._deliveries.take())
        await _record(store.record_push_answers, database, self._answers.take())

    # --- events from the app

    def drain(self) -> None:
        """Write what is left, and end."""
        self._stopped.set()
        self._news.set()


async def _record(
    write: Callable[[store.Database, list[T]], Awaitable[None]], database: store.Database, events: list[T]
) -> None:
    """Write events, or drop them after any failure: they serve only those who look now, and a server serves without them."""
    if not events or not database.maintains:
        return
    try:
        await write(database, events)
    except StoreUnavailable as error:
        log.debug("recent events not recorded", events=len(events), error=error)
    except Exception as error:
        log.warning("recent events not recorded", events=len(events), error=error)
