"""A simulated consumer: actors on a downstream service, arrivals by the second, and a governor. The
simulation is deterministic."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import msgspec

from headrace.flow.governor import INTERVAL, Governor, Sample

Latency = Callable[[int, float], float]
"""The seconds that a call takes, by the number of calls in flight when it starts, itself included,
and by the time."""


def waits(latency: float) -> Latency:
    """A handler that waits for an external service without limits."""
    return lambda in_flight, at: latency


def computes(seconds: float, cores: int = 1) -> Latency:
    """A handler that needs CPU. More calls at the same time than cores only take longer."""
    return lambda in_flight, at: seconds * max(1.0, in_flight / cores)


def chokes(latency: float, comfortable: int) -> Latency:
    """A handler on a service that handles a limited number of calls well. More calls slow it down
    more than proportionally."""
    return lambda in_flight, at: latency * max(1.0, in_flight / comfortable) ** 2


class Tick(msgspec.Struct):
    """The state of the simulation between two samples."""

    at: float
    actors: int
    in_flight: int
    finished: int


class Consumer:
    """Actors that a governor scales.

    Args:
        latency: The duration of a call.
        arrivals: Messages per second, by the time. None for a backlog that never ends.
        keys: The maximum number of lanes.
        jitter: The share by which calls differ, and by which the whole machine is slower for a while.
    """

    def __init__(
        self, governor: Governor, latency: Latency, *, arrivals: Callable[[float], float] | None = None,
        keys: int = 1000, jitter: float = 0.0, seed: int = 0,
    ) -> None:  # fmt: skip
        self.governor = governor
        self.ticks: list[Tick] = []
        self._latency = latency
        self._arrivals = arrivals
        self._keys = keys
        self._jitter = jitter
        self._dice = random.Random(seed)
        self._slower = 1.0
        self._calls: list[float] = []  # when each call ends
        self._now = 0.0
        self._queue = 0.0
        self._finished = 0
        self._starved = 0

    def run(self, seconds: float, *, memory: float | None = None, most: int | None = None) -> list[Tick]:
        """Run for this many seconds. Returns the ticks of that time."""
        first = len(self.ticks)
        for tick in range(round(seconds / INTERVAL)):
            if tick % 3 == 0:
                self._slower = 1 + self._dice.random() ** 3 * self._jitter * 2
            self._advance(self._now + INTERVAL)
            waiting = 10_000 if self._arrivals is None else int(self._queue)
            ready = max(0, min(waiting, self._keys - len(self._calls)))
            self.ticks.append(Tick(self._now, self.governor.decision.actors, len(self._calls), self._finished))
            self.governor.decide(
                self._now, Sample(self._finished, len(self._calls), ready, waiting, self._starved, memory), most=most
            )
            self._finished = self._starved = 0
        return self.ticks[first:]

    def _advance(self, until: float) -> None:
        step = INTERVAL / 20  # messages arrive in steps of this length
        while self._now < until - 1e-9:
            end = self._now + step
            if self._arrivals is not None:
                self._queue += self._arrivals(self._now) * step
            self._begin()
            while self._calls and self._calls[0] <= end:
                self._now = heapq.heappop(self._calls)
                self._finished += 1
                self._begin()
            self._now = end

    def _begin(self) -> None:
        while len(self._calls) < min(self.governor.decision.actors, self._keys):
            if self._arrivals is not None:
                if self._queue < 1:
                    self._starved += 1
                    return
                self._queue -= 1
            took = self._latency(len(self._calls) + 1, self._now) * self._slower
            heapq.heappush(self._calls, self._now + took * (1 + self._jitter * self._dice.uniform(-1, 1)))


def rate(ticks: list[Tick]) -> float:
    """Messages per second."""
    return sum(tick.finished for tick in ticks) / (len(ticks) * INTERVAL)


def fixed(actors: int, latency: Latency, seconds: float = 5.0, **how: float) -> float:
    """Messages per second with a constant number of actors."""
    consumer = Consumer(Governor(actors, actors), latency, jitter=how.get("jitter", 0.0))
    consumer.run(1.0)
    return rate(consumer.run(seconds))
