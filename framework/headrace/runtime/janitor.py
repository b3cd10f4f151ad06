"""The janitor: keeps the streams as their policies say, and publishes what was scheduled when it is due.

Every process has one; they take turns, stream by stream. Four loops, since none may wait for another: sweeping, delivering, vacuuming, and
forgetting the processes that are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio

from headrace import store
from headrace.model.errors import HeadraceError, StoreError, StoreUnavailable
from headrace.runtime.weather import Weather, keep_going

logger = logging.getLogger("headrace")

AT_ONCE, SOONEST, BUSY, USUAL, IDLE = 0.02, 0.1, 0.25, 1.0, 4.0
"""Seconds between sweeps: when more is to be done, at least, after something was done, after nothing was, and at most."""

SCHEDULE = 1.0
"""Seconds after which the schedule is looked at again, for what other processes have put there."""

ROLL_CALL = 15.0
"""Seconds between looks for processes that are gone."""

SOON = 0.001
"""The shortest wait for what is due, in seconds."""

REPAIR = 60.0
"""Seconds that a chore rests after it failed for a reason that won't pass by itself, such as a missing privilege."""


class Janitor:
    """Looks after all streams of a database.

    Args:
        database: an open database.
        published: called with a stream's name when scheduled messages were published to it.
    """

    def __init__(self, database: store.Database, published: Callable[[str], None]) -> None:
        self._database = database
        self._sweeper = store.Sweeper(database)
        self._published = published
        self._schedule = anyio.Event()

    def hurry(self) -> None:
        """This process has scheduled something: look when it is due."""
        self._schedule.set()

    async def run(self) -> None:
        """Work until cancelled. The failure of a database is weather, and any other one is no reason to stop the app."""
        async with anyio.create_task_group() as group:
            for what, chore in (
                ("retention", self.sweep),
                ("schedule", self.deliver),
                ("vacuum", self.vacuum),
                ("the roster", self.forget),
            ):
                group.start_soon(keep_going, what, _again_and_again(what, chore))

    async def sweep(self, weather: Weather) -> None:
        """Sweep until cancelled. Raises `StoreUnavailable`."""
        rest = USUAL / 2
        while True:
            try:
                swept = await self._sweeper.sweep()
            except Exception as failure:  # of one stream; the others have had their turn
                if _passes(failure):
                    raise
                _tell("retention", failure)
                swept = store.Swept()
            weather.cleared()
            rest = BUSY if swept.something else min(max(2 * rest, USUAL), IDLE)
            await anyio.sleep(_until(swept, rest))

    async def deliver(self, weather: Weather) -> None:
        """Publish what is due until cancelled. Raises `StoreUnavailable`."""
        while True:
            self._schedule = anyio.Event()
            _, due_in = await self._sweeper.deliver(published=self._published)
            weather.cleared()
            with anyio.move_on_after(SCHEDULE if due_in is None else min(max(due_in, SOON), SCHEDULE)):
                await self._schedule.wait()

    async def vacuum(self, weather: Weather) -> None:
        """Vacuum what needs it until cancelled. Raises `StoreUnavailable`."""
        while True:
            await self._sweeper.vacuum()
            weather.cleared()
            await anyio.sleep(USUAL)

    async def forget(self, weather: Weather) -> None:
        """Forget processes that are gone, and old witnesses of commits, until cancelled. Raises `StoreUnavailable`."""
        forgotten = store.Forgotten()
        while True:
            await anyio.sleep(ROLL_CALL)
            await store.forget_workers(self._database)
            while (forgotten := await store.forget_commits(self._database, forgotten)).more:
                pass
            weather.cleared()


def _until(swept: store.Swept, rest: float) -> float:
    """Seconds to rest: less while there is more to do, or while a stream fills quickly."""
    if swept.more:
        return AT_ONCE
    return rest if swept.again_in is None else min(max(swept.again_in, SOONEST), rest)


def _again_and_again(what: str, chore: Callable[[Weather], Awaitable[None]]) -> Callable[[Weather], Awaitable[None]]:
    async def loop(weather: Weather) -> None:
        while True:
            try:
                await chore(weather)
            except Exception as failure:
                if _passes(failure):
                    raise
                _tell(what, failure)
                await anyio.sleep(REPAIR)

    return loop


def _passes(failure: Exception) -> bool:
    """Whether it is an outage, which is waited out. An error of the server that Headrace doesn't know needs somebody's attention."""
    return isinstance(failure, StoreUnavailable) and not isinstance(failure, StoreError)


def _tell(what: str, failure: Exception) -> None:
    """What we raise on purpose says itself what would be right; of anything else the traceback is needed."""
    known = isinstance(failure, HeadraceError)
    logger.error(
        "%s failed, and is tried again later: %s",
        what,
        " ".join([str(failure), *getattr(failure, "__notes__", ())]),
        exc_info=None if known else failure,
    )
