"""Work that an app and a store must continue while connections die in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from headrace import App, store
from tests.runtime.running import Seen
from tests.support.silence import Proxy

SOON = 20.0
"""Seconds within which everything must continue. It takes two to four. The deadlines of statements would take 70."""


async def publish(database: store.Database, numbers: Iterable[int]) -> None:
    """Publish on a connection that the workers do not use. The key is the last digit."""
    each = list(numbers)
    await store.publish_many(
        database, "orders", [f"k{number % 10}" for number in each], [str(number) for number in each]
    )


def in_order(numbers: list[int]) -> bool:
    """Return whether each key's messages came in order. A message may come twice."""
    keys = [[number for number in numbers if number % 10 == key] for key in range(10)]
    return all(sorted(key) == key for key in keys)


def note_orders(app: App) -> Seen:
    """Add a handler to the app that records the messages published here."""
    seen = Seen()

    @app.consumer("orders")
    async def ship(order: int) -> None:
        seen.note(order)

    return seen


async def go_on_over_deaths(app: App, seen: Seen, database: store.Database, proxy: Proxy) -> None:
    """Three times, all connections of the app die while it is idle, and then it gets messages. They
    must be handled soon and in order.
    """
    for first in (0, 100, 200):
        await publish(database, range(first, first + 100))
        async with asyncio.timeout(SOON):
            while set(seen.notes) != set(range(first + 100)):
                await seen.until(len(seen.notes) + 1)
            await app.idle()
        proxy.forget()
    assert in_order(seen.notes)


async def wait_for_a_lock(database: store.Database, holder: Any) -> None:
    """A call that makes the server wait as long as `holder` holds the lock, until the database was
    asked about the call three times.
    """
    await holder.execute("select pg_advisory_lock(7)")
    waiting = asyncio.create_task(database.fetchval("select 1 from pg_advisory_xact_lock(7)"))
    async with asyncio.timeout(SOON):
        while database._connector.detector.lookups < 3:
            await holder.execute("select pg_sleep(0.05)")
        await holder.execute("select pg_advisory_unlock(7)")
        assert await waiting == 1
