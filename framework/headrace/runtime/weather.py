"""The failure of a database is weather: connections drop, servers restart, poolers move. Wait a little and go on."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from time import monotonic

import anyio

from headrace.model.errors import StoreError, StoreUnavailable

logger = logging.getLogger("headrace")

SHORTEST, LONGEST = 0.05, 2.0
"""Bounds of the wait between tries, in seconds."""

REPEAT = 60.0
"""Seconds between log records of an error that Headrace doesn't know, while it lasts."""


class Weather:
    """How long to wait after a failure, and saying so once and not at every try."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._delay = SHORTEST
        self._logged_at = float("-inf")  # the last error that Headrace doesn't know

    async def wait_out(self, error: StoreUnavailable) -> None:
        """Sleep, longer at each failure in a row."""
        if isinstance(error, StoreError):
            self._report(error)
        elif self._delay == SHORTEST:
            logger.warning("%s waits: %s", self._what, error)
        await anyio.sleep(self._delay * random.uniform(0.5, 1.0))
        self._delay = min(self._delay * 2, LONGEST)

    def _report(self, error: StoreError) -> None:
        """An outage ends by itself, and one line tells of it. This may need somebody's help, so it is logged again and again."""
        if (now := monotonic()) >= self._logged_at + REPEAT:
            self._logged_at = now
            logger.error("%s failed, and is tried again: %s", self._what, error, exc_info=error)

    def cleared(self) -> None:
        """A try went well."""
        if self._delay > SHORTEST:
            logger.info("%s goes on", self._what)
            self._delay = SHORTEST


async def keep_going(what: str, loop: Callable[[Weather], Awaitable[None]]) -> None:
    """Run `loop` until it returns, and again whenever the store was unavailable. It calls `cleared` when things go well."""
    weather = Weather(what)
    while True:
        try:
            return await loop(weather)
        except StoreUnavailable as error:
            await weather.wait_out(error)
