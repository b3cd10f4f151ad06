"""The scaler: samples the actors, passes the samples to the governor, and sets the number of actors
that it decides."""

from __future__ import annotations

import anyio

from headrace.flow.governor import Governor, Sample
from headrace.model.log import Log
from headrace.runtime.execution.actors import Actors
from headrace.runtime.pipeline.memory import share_in_use
from headrace.runtime.pipeline.shared import Shared
from headrace.runtime.settling.keeper import LeaseEvent
from headrace.runtime.stored_consumer import LeasedMessages

log = Log("headrace")

LOOK = 10
"""Number of samples between measurements of the memory."""


class Scaler:
    """Scales the actors of one consumer.

    Args:
        most: another upper bound on the actors besides the governor's own limits, or None.
    """

    def __init__(
        self, shared: Shared, name: str, governor: Governor, actors: Actors, leased: LeasedMessages, most: int | None
    ) -> None:
        self._name = name
        self._governor = governor
        self._actors = actors
        self._lanes = leased.lanes
        self._in_flight = leased.in_flight
        self._clock = shared.time.clock
        self._interval = shared.timings.sampling
        self._most = most
        self._finished = self._calls = self._starved = self._samples = 0
        self._memory: float | None = None
        self._leased = LeaseEvent(leased.in_flight)

    async def run(self) -> None:
        """Scale until cancelled."""
        while True:
            if not self._in_flight.held and self._actors.wanted == self._governor.low:
                await self._leased.next()
                self._governor.resume()
            await anyio.sleep(self._interval)
            self.step()

    def step(self) -> None:
        """Take a sample, and apply the governor's decision."""
        sample, actors = self._sample(), self._actors
        if actors.held:
            self._governor.pause()
            return
        decision = self._governor.decide(self._clock(), sample, most=self._most)
        if decision.actors != actors.wanted:
            log.debug(
                "actors scaled",
                consumer=self._name,
                before=actors.wanted,
                actors=decision.actors,
                reason=decision.reason.text,
            )
            actors.resize(decision.actors)
            actors.wake()

    def _sample(self) -> Sample:
        if self._samples % LOOK == 0:
            self._memory = share_in_use()
        self._samples += 1
        finished, starved = self._in_flight.acked + self._in_flight.failed, self._actors.starved
        calls = self._actors.batches
        called = None if calls is None else calls - self._calls
        done, missed = finished - self._finished, starved - self._starved
        self._finished, self._calls, self._starved = finished, calls or 0, starved
        return Sample(done, self._actors.busy, self._lanes.ready, self._lanes.waiting, missed, self._memory, called)
