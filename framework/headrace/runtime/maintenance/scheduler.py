"""Publishes scheduled messages when they are due."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from headrace import store
from headrace.runtime.maintenance.watermark import Watermark

CALLS = 20
"""Maximum number of calls for one stream in a row. Each publishes up to a thousand messages."""


class Scheduler:
    """Publishes scheduled messages. Remembers the time from which the schedule has to be read."""

    def __init__(self, database: store.Database) -> None:
        self._database = database
        self._watermark = Watermark(database, "headrace_internal.scheduled")
        self._floor: datetime | None = None
        self._unfinished: set[int] = set()  # streams that can't take their due messages

    def forget(self) -> None:
        """Read the schedule from the beginning, because another process may have done the work since."""
        self._floor = None

    async def deliver(
        self, now: datetime | None = None, published: Callable[[str], None] | None = None
    ) -> tuple[int, float | None]:
        """Publish the scheduled messages that are due.

        Args:
            now: the time, for tests.
            published: called with the name of each stream to which something was published.

        Returns:
            How many, and the seconds until there is more to do. The seconds are None if nothing is scheduled.

        Raises:
            StoreUnavailable: the database can't be reached.
        """
        total, soonest = 0, None
        if not await self._watermark.advance():
            self._floor = None
        visible, floor = self._watermark.at, self._floor if now is None else None
        unfinished = set()
        for stream, name, due_in in await store.next_scheduled(self._database, floor, self._unfinished, now=now):
            moved = 0
            for _ in range(CALLS):
                if due_in is None or due_in > 0:
                    break
                count, due_in = await store.publish_scheduled(
                    self._database, stream, None if stream in self._unfinished else floor, now=now
                )
                moved += count
                if not count and due_in is not None:  # the stream is full, or another process is publishing them
                    unfinished.add(stream)
            else:
                unfinished.add(stream)
            if moved and published is not None:
                published(name)
            total += moved
            soonest = due_in if soonest is None else soonest if due_in is None else min(soonest, due_in)
        if now is None:
            self._floor, self._unfinished = visible, unfinished
        return total, soonest
