"""Stores the heavy messages of an attacker straight into Postgres: `python -m benchmarks.tenant_storer DSN PER_SECOND`.

It prints a line when it has begun, and continues until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from itertools import cycle

from benchmarks.processes import stand_back
from benchmarks.tenant_attacker import heavy_values
from headrace import store


async def store_values(dsn: str, per_second: float) -> None:
    """Store values one after the other, at this rate, or as fast as they can be stored."""
    database = store.Database(dsn, max_connections=1)
    await database.open()
    print("storing", flush=True)
    due = time.monotonic()
    for value in cycle([one.decode() for one in heavy_values()]):
        await store.publish(database, "heavy", "k", value)
        due = max(due + 1 / per_second, time.monotonic() - 1)
        await asyncio.sleep(due - time.monotonic())


if __name__ == "__main__":
    stand_back()
    asyncio.run(store_values(sys.argv[1], float(sys.argv[2])))
