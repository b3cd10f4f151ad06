"""Publishers beside a worker: at a fixed rate, or as fast as the worker follows. They use the App, as users do."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

import anyio

from benchmarks import payloads
from benchmarks.crew import Crew
from benchmarks.payloads import SMALL_NOTE, Keys, Order
from benchmarks.timing import milliseconds
from headrace import App

POOL = 500


async def at_pace(rate: float, seconds: float, act: Callable[[], Coroutine[Any, Any, None]]) -> dict[str, float]:
    """Call `act` at a fixed rate per second, whether or not the previous calls have ended.

    Returns:
        How late the calls began, against the schedule.
    """
    ticks, interval = int(rate * seconds), 1e9 / rate
    late = []
    async with anyio.create_task_group() as group:
        start = time.monotonic_ns()
        for tick in range(ticks):
            due = start + int(tick * interval)
            if (ahead := due - time.monotonic_ns()) > 0:
                await anyio.sleep(ahead / 1e9)
            late.append(max(0, time.monotonic_ns() - due))
            group.start_soon(act)
        # The phase lasts exactly the given time, including the last interval.
        await anyio.sleep(max(0.0, (start + ticks * interval - time.monotonic_ns()) / 1e9))
    return milliseconds(late)


class Publisher:
    """Publishes messages numbered from 0. `published` counts them, including those in progress."""

    def __init__(self, app: App, stream: str, keys: Keys, note: int = SMALL_NOTE) -> None:
        self.published = 0
        self._app = app
        self._stream = stream
        self._keys = keys
        self._names = [f"orders.eu.{place}" for place in range(keys.count)]
        # Made beforehand, numbered and stamped when used. On a small machine the harness must not
        # take the system's cores.
        self._orders = [payloads.order(number, note) for number in range(POOL)]

    async def at_pace(self, rate: float, seconds: float, batch: int) -> dict[str, float]:
        """Publish `batch` messages at each tick, whether or not the previous ones have been committed.

        Returns:
            How late the calls were, against the schedule.
        """
        return await at_pace(rate / batch, seconds, lambda: self._publish(batch))

    async def ahead_of(self, crew: Crew, batch: int, lead: int, seconds: float) -> None:
        """Publish as fast as possible for a time, but never more than `lead` messages ahead of the worker."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await crew.begun_at_least(self.published - lead)
            await self._publish(batch)

    async def per_batch(self, crew: Crew, batch: int, lead: int, count: int) -> None:
        """Publish up to `count` messages, at most `lead` ahead of the worker. Several calls may run at the same
        time."""
        while self.published < count:
            await crew.begun_at_least(self.published - lead)
            if size := min(batch, count - self.published):
                await self._publish(size)

    async def _publish(self, size: int) -> None:
        # The app encodes before it first waits, so the orders are free again when another call
        # takes them.
        messages = self._stamped(size)
        if size == 1:
            key, order = messages[0]
            await self._app.publish(self._stream, key, order)
        else:
            await self._app.publish_many(self._stream, messages)

    def _stamped(self, size: int) -> list[tuple[str, Order]]:
        names, place, first = self._names, self._keys.place, self.published
        self.published += size
        messages = []
        now = time.monotonic_ns()
        for number in range(first, first + size):
            order = self._orders[number % POOL]
            order.number, order.at = number, now
            messages.append((names[place(number)], order))
        return messages
