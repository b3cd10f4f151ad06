"""Database retry: waits and tries again while the database can't be reached.

Connections drop, servers restart, and poolers move. None of this stops a loop.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from time import monotonic

import anyio

from headrace.model.errors import StoreError, StoreUnavailable

logger = logging.getLogger("headrace")

SHORTEST, LONGEST = 0.05, 2.0
"""Bounds of the delay between tries in seconds."""

REPEAT = 60.0
"""Interval in seconds between log records of an error that Headrace doesn't know, while it lasts."""


class DatabaseRetry:
    """The retry state of one loop: the delay, and whether the outage was logged. An outage is logged
    once, not at every try."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._delay = SHORTEST
        self._logged_at = float("-inf")  # when an error that Headrace doesn't know was last logged

    async def wait_after(self, error: StoreUnavailable) -> None:
        """Sleep before the next try, longer at each failure in a row."""
        if isinstance(error, StoreError):
            self._report(error)
        elif self._delay == SHORTEST:
            logger.warning("%s waits: %s", self._what, error)
        await anyio.sleep(self._delay * random.uniform(0.5, 1.0))
        self._delay = min(self._delay * 2, LONGEST)

    def _report(self, error: StoreError) -> None:
        """Log an error that Headrace doesn't know.

        An outage ends without help, so one record is enough. An unknown error may need an operator,
        so it is logged repeatedly.
        """
        if (now := monotonic()) >= self._logged_at + REPEAT:
            self._logged_at = now
            logger.error("%s failed, and is tried again: %s", self._what, error, exc_info=error)

    def cleared(self) -> None:
        """Reset the delay after a success."""
        if self._delay > SHORTEST:
            logger.info("%s goes on", self._what)
            self._delay = SHORTEST


async def run_with_retry(what: str, loop: Callable[[DatabaseRetry], Awaitable[None]]) -> None:
    """Run `loop` until it returns, and start it again whenever the store was unavailable.

    The loop calls `cleared` after each success.
    """
    database_retry = DatabaseRetry(what)
    while True:
        try:
            return await loop(database_retry)
        except StoreUnavailable as error:
            await database_retry.wait_after(error)
