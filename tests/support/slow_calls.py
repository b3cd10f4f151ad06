"""Random delays before and after each call of the database, to find tests that depend on how fast one is:

    make test ARGS="-p tests.support.slow_calls tests/runtime"

A test that fails with it and passes without waits for the wrong event, or measures time. `SLOW_CALLS_SEED`, which the
run prints, repeats its delays as far as the order of the calls is the same.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Coroutine
from typing import Any

from headrace.store.connections.connection import Connection

SEED = "SLOW_CALLS_SEED"
SHARE = 0.2
"""The share of calls that are delayed, on each of their two sides."""
LONGEST = 0.15
"""The longest of most delays in seconds."""
STALLS = 0.01
"""The share of calls that are delayed by up to `LONGEST_STALL` seconds, as on a machine that is overloaded."""
LONGEST_STALL = 2.0


def pytest_configure() -> None:
    """Replace the method that every call of a pool goes through."""
    # The processes of pytest-xdist inherit it.
    delays = random.Random(os.environ.setdefault(SEED, str(random.randrange(10**6))))
    watched = Connection._watched

    async def slow(self: Connection, statement: str, answer: Coroutine[Any, Any, Any]) -> Any:
        try:
            await _pause(delays)
        except asyncio.CancelledError:
            answer.close()
            raise
        answered = await watched(self, statement, answer)
        await _pause(delays)
        return answered

    Connection._watched = slow  # type: ignore[assignment,method-assign]


def pytest_report_header() -> str:
    """Print the seed."""
    return f"{SEED}={os.environ[SEED]}"


async def _pause(delays: random.Random) -> None:
    if delays.random() < STALLS:
        await asyncio.sleep(delays.uniform(0, LONGEST_STALL))
    elif delays.random() < SHARE:
        await asyncio.sleep(delays.uniform(0, LONGEST))
