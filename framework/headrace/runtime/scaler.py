"""The scaler: samples the actors, asks the governor, and has as many as it says."""

from __future__ import annotations

import logging

import anyio

from headrace.flow.custody import Custody
from headrace.flow.governor import INTERVAL, Governor, Sample
from headrace.flow.lanes import Lanes
from headrace.runtime.actors import Actors
from headrace.runtime.message import Message
from headrace.runtime.wiring import Clock

logger = logging.getLogger("headrace")


async def scale(
    name: str, governor: Governor, actors: Actors, lanes: Lanes[Message], custody: Custody[Message], clock: Clock
) -> None:
    """Scale until cancelled."""
    then, finished = clock(), custody.acked + custody.failed
    while True:
        await anyio.sleep(INTERVAL)
        now, total = clock(), custody.acked + custody.failed
        decision = governor.decide(Sample(now - then, total - finished, actors.busy, lanes.ready))
        then, finished = now, total
        if decision.actors != actors.target:
            logger.debug("%s: from %d to %d actors: %s", name, actors.target, decision.actors, decision.reason)
            actors.resize(decision.actors)
            actors.wake()
