"""Timeouts: stops handlers that take too long."""

from __future__ import annotations

from typing import Any

import anyio

from headrace.flow.in_flight import InFlightTracker
from headrace.model.clock import Clock
from headrace.model.log import Log
from headrace.runtime.execution.actors import Actors
from headrace.runtime.settling.keeper import LeaseEvent

log = Log("headrace")


class Timeouts:
    """Watches the handlers of one consumer.

    Args:
        name: the consumer's name.
        timeout: seconds that a handler may take.
    """

    def __init__(
        self, name: str, timeout: float, actors: Actors, in_flight: InFlightTracker[Any], clock: Clock
    ) -> None:
        self._name = name
        self._timeout = timeout
        self._actors = actors
        self._clock = clock
        self._leased = LeaseEvent(in_flight)

    async def run(self) -> None:
        """Stop overdue handlers until cancelled."""
        while True:
            await self._leased.wait()
            await anyio.sleep(min(max(self._timeout / 20, 0.01), 0.5))
            self.stop_overdue()

    def stop_overdue(self) -> None:
        """Stop the handlers that have exceeded the timeout by now."""
        for _ in self._actors.overdue(self._clock()):
            log.warning("handler timed out", consumer=self._name, timeout=self._timeout)
