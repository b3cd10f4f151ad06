"""Draining, in the order of travel: lease nothing more, give back what never started, let handlers finish, settle."""

from __future__ import annotations

import logging

import anyio

from headrace.flow.custody import Custody
from headrace.flow.lanes import Lanes
from headrace.runtime.actors import Actors
from headrace.runtime.desk import Desk
from headrace.runtime.fetcher import Fetcher
from headrace.runtime.message import Message
from headrace.runtime.settler import Settler

logger = logging.getLogger("headrace")

LAST_SETTLE = 3.0
"""Seconds for settling once the handlers are done or stopped."""

SETTLED_A_SECOND = 5_000
"""So many messages more may take a second more: what large batches had in their hands would otherwise count as a crash."""


class Drain:
    """One drain of one consumer. Handlers have all the time that they need, until `limit` or `hurry` cuts it short."""

    def __init__(self, name: str, timeout: float) -> None:
        self._name = name
        self._patience = anyio.CancelScope()
        self._timeout = timeout
        self._hurried = False

    def limit(self) -> None:
        """From now on handlers have the timeout's seconds."""
        self._patience.deadline = anyio.current_time() + self._timeout

    def hurry(self) -> None:
        """Stop the handlers that still run, now."""
        self._hurried = True
        self._patience.cancel()

    async def run(
        self, fetcher: Fetcher, fetched: anyio.Event, lanes: Lanes[Message], desk: Desk,
        actors: Actors, acted: anyio.Event, settler: Settler, custody: Custody[Message],
    ) -> None:  # fmt: skip
        """Drain. `fetched` and `acted` tell when the fetcher and the actors have ended."""
        fetcher.stop()
        with self._patience:
            desk.release(lanes.clear())
            await fetched.wait()
            desk.release(lanes.clear())
            actors.finish()
            await acted.wait()
        if not acted.is_set():
            desk.release(lanes.clear())
            logger.warning(
                "%s: %d handlers were stopped %s; their messages are given back",
                self._name,
                actors.busy,
                "at once" if self._hurried else f"after shutdown_timeout={self._timeout:g}s",
            )
            actors.cancel()
            with anyio.move_on_after(LAST_SETTLE):
                await acted.wait()
                await fetched.wait()  # a lease call may have been under way, and brings what nobody works on any more
            desk.release(lanes.clear())
        with anyio.move_on_after(LAST_SETTLE + custody.held / SETTLED_A_SECOND):
            await settler.flush()
        if custody.held:
            logger.warning(
                "%s: %d messages could not be settled; they come again after their lease", self._name, custody.held
            )
