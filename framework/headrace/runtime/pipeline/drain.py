"""The drain of a consumer, in the order of the pipeline: lease nothing more, give back what never
started, let handlers finish, and settle."""

from __future__ import annotations

import logging

import anyio

from headrace.flow.in_flight import InFlightTracker
from headrace.flow.lanes import Lanes
from headrace.runtime.execution.actors import Actors
from headrace.runtime.messages.message import Message
from headrace.runtime.pipeline.acknowledger import Acknowledger
from headrace.runtime.pipeline.fetcher import Fetcher
from headrace.runtime.pipeline.settler import Settler

logger = logging.getLogger("headrace")

LAST_SETTLE = 3.0
"""Time limit in seconds for settling after the handlers are done or stopped."""

SETTLED_A_SECOND = 5_000
"""Messages per second by which that limit is longer. Unsettled messages of large batches would
otherwise count as crashed."""


class Drain:
    """A drain of one consumer. Handlers may take any time, until `limit` or `hurry` ends that."""

    def __init__(self, name: str, timeout: float) -> None:
        self._name = name
        self._patience = anyio.CancelScope()
        self._timeout = timeout
        self._hurried = False

    def limit(self) -> None:
        """Give handlers `timeout` seconds from now on."""
        self._patience.deadline = anyio.current_time() + self._timeout

    def hurry(self) -> None:
        """Stop the handlers that still run, now."""
        self._hurried = True
        self._patience.cancel()

    async def run(
        self, fetcher: Fetcher, fetched: anyio.Event, lanes: Lanes[Message], acknowledger: Acknowledger,
        actors: Actors, acted: anyio.Event, settler: Settler, in_flight: InFlightTracker[Message],
    ) -> None:  # fmt: skip
        """Drain. `fetched` and `acted` are set when the fetcher and the actors have ended."""
        fetcher.stop()
        with self._patience:
            acknowledger.release(lanes.clear())
            await fetched.wait()
            acknowledger.release(lanes.clear())
            actors.finish()
            await acted.wait()
        if not acted.is_set():
            acknowledger.release(lanes.clear())
            logger.warning(
                "%s: %d handlers were stopped %s; their messages are given back",
                self._name,
                actors.busy,
                "at once" if self._hurried else f"after shutdown_timeout={self._timeout:g}s",
            )
            actors.cancel()
            with anyio.move_on_after(LAST_SETTLE):
                await acted.wait()
                await fetched.wait()  # a lease call in progress may still bring messages, which must be given back
            acknowledger.release(lanes.clear())
        with anyio.move_on_after(LAST_SETTLE + in_flight.held / SETTLED_A_SECOND):
            await settler.flush()
        if in_flight.held:
            logger.warning(
                "%s: %d messages could not be settled; they come again after their lease", self._name, in_flight.held
            )
