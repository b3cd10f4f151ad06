"""The scaler: samples the actors, passes the samples to the governor, and sets the number of actors
that it decides."""

from __future__ import annotations

import anyio

from headrace.flow.governor import Governor, Sample
from headrace.flow.in_flight import InFlightTracker
from headrace.flow.lanes import Lanes
from headrace.model.clock import Clock
from headrace.model.log import Log
from headrace.runtime.execution.actors import Actors
from headrace.runtime.messages.message import Message
from headrace.runtime.pipeline.memory import share_in_use
from headrace.runtime.settling.keeper import LeaseEvent

log = Log("headrace")

LOOK = 10
"""Number of samples between measurements of the memory."""


class Scaler:
    """Scales the actors of one consumer.

    Args:
        interval: seconds between samples.
        most: another upper bound on the actors besides the governor's own limits, or None.
    """

    def __init__(
        self, name: str, governor: Governor, actors: Actors, lanes: Lanes[Message], in_flight: InFlightTracker[Message],
        clock: Clock, interval: float, most: int | None,
    ) -> None:  # fmt: skip
        self._name = name
        self._governor = governor
        self._actors = actors
        self._lanes = lanes
        self._in_flight = in_flight
        self._clock = clock
        self._interval = interval
        self._most = most
        self._finished = self._calls = self._starved = self._samples = 0
        self._memory: float | None = None
        self._leased = LeaseEvent(in_flight)

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
                reason=decision.reason,
            )
            actors.resize(decision.actors)
            actors.wake()

    def _sample(self) -> Sample:
        if self._samples % LOOK == 0:
            self._memory = share_in_use()
        self._samples += 1
        finished, starved = self._in_flight.acked + self._in_flight.failed, self._actors.starved
        calls = self._actors.batches
        sample = Sample(
            finished - self._finished, self._actors.busy, self._lanes.ready, self._lanes.waiting,
            starved - self._starved, self._memory, None if calls is None else calls - self._calls,
        )  # fmt: skip
        self._finished, self._calls, self._starved = finished, calls or 0, starved
        return sample
