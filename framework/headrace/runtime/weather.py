"""The failure of a database is weather: connections drop, servers restart, poolers move. Wait a little and go on."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable

import anyio

from headrace.model.errors import StoreUnavailable

logger = logging.getLogger("headrace")

SHORTEST, LONGEST = 0.05, 2.0
"""Bounds of the wait between tries, in seconds."""


class Weather:
    """How long to wait after a failure, and saying so once and not at every try."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._delay = SHORTEST

    async def wait_out(self, error: StoreUnavailable) -> None:
        """Sleep, longer at each failure in a row."""
        if self._delay == SHORTEST:
            logger.warning("%s waits: %s", self._what, error)
        await anyio.sleep(self._delay * random.uniform(0.5, 1.0))
        self._delay = min(self._delay * 2, LONGEST)

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
