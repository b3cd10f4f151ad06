"""Publish scheduled messages when they are due. See `sql/functions/schedule.sql`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from headrace.store.database.pool import Database
from headrace.store.maintenance.watermark import Watermark

CALLS = 20
"""The most calls for one stream in a row. Each publishes up to a thousand messages."""


class Schedule:
    """Publishes scheduled messages. Remembers the time from which the schedule has to be read."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watermark = Watermark(database, "headrace.scheduled")
        self._floor: datetime | None = None
        self._held_up: set[int] = set()  # streams that can't take their due messages

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
        rows = await self._database.fetch(
            "select * from headrace.next_scheduled(coalesce($1, clock_timestamp()), coalesce($2::timestamptz, '-infinity'), $3::int[])",
            now, floor, list(self._held_up),
        )  # fmt: skip
        held_up = set()
        for stream, name, due_in in rows:
            moved = 0
            for _ in range(CALLS):
                if due_in is None or due_in > 0:
                    break
                count, due_in = await self._database.fetchrow(
                    "select * from headrace.publish_scheduled($1, coalesce($2, clock_timestamp()), coalesce($3::timestamptz, '-infinity'))",
                    stream, now, None if stream in self._held_up else floor,
                )  # fmt: skip
                moved += count
                if not count and due_in is not None:  # the stream is full, or another process is publishing them
                    held_up.add(stream)
            else:
                held_up.add(stream)
            if moved and published is not None:
                published(name)
            total += moved
            soonest = due_in if soonest is None else soonest if due_in is None else min(soonest, due_in)
        if now is None:
            self._floor, self._held_up = visible, held_up
        return total, soonest
