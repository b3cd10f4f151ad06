"""Many messages at a time: what an actor does with lanes when its handler takes batches, or a key's run."""

from __future__ import annotations

from headrace.flow.lanes import Lane, Lanes
from headrace.model.handling import Handling
from headrace.runtime.bench import Bench
from headrace.runtime.desk import Desk
from headrace.runtime.handler import Decode
from headrace.runtime.message import Message
from headrace.runtime.suspects import Suspects
from headrace.runtime.verdicts import Verdicts
from headrace.runtime.wiring import Call, Clock


class Batches:
    """Gathers batches from lanes, and runs them."""

    def __init__(
        self, decode: Decode, call: Call, handling: Handling,
        lanes: Lanes[Message], desk: Desk, verdicts: Verdicts, suspects: Suspects, clock: Clock,
    ) -> None:  # fmt: skip
        self.unit = handling.unit

    async def run(self, lane: Lane[Message], bench: Bench) -> bool:
        """Fill a batch, beginning with this lane, and run it. Returns True."""
        raise NotImplementedError
