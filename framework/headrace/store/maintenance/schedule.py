"""Calls for scheduled messages. See `sql/functions/maintenance/schedule.sql`."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from headrace.store.database.database import Executor


class NextScheduled(NamedTuple):
    """A stream with scheduled messages.

    Attributes:
        stream: its id.
        name: its name.
        due_in: seconds until the first of them is due. None if there is none any more.
    """

    stream: int
    name: str
    due_in: float | None


class Published(NamedTuple):
    """The result of `publish_scheduled`: how many were published, and in how many seconds the next one is due."""

    messages: int
    due_in: float | None


async def next_scheduled(
    executor: Executor, floor: datetime | None, unfinished: Collection[int], *, now: datetime | None = None
) -> list[NextScheduled]:
    """Return the streams with scheduled messages.

    Args:
        floor: the time from which the schedule is read. None for its beginning.
        unfinished: streams that are read from the beginning.
        now: the time, for tests.
    """
    arguments = (now, floor, list(unfinished))
    rows = await executor.fetch(
        "select * from headrace_internal.next_scheduled(coalesce($1, clock_timestamp()), coalesce($2::timestamptz, '-infinity'), $3::int[])",
        *arguments,
    )
    return [NextScheduled(*row) for row in rows]


async def publish_scheduled(
    executor: Executor, stream: int, floor: datetime | None, *, now: datetime | None = None
) -> Published:
    """Publish up to a thousand of a stream's due messages, reading the schedule from the time `floor`."""
    arguments = (stream, now, floor)
    row = await executor.fetchrow(
        "select * from headrace_internal.publish_scheduled($1, coalesce($2, clock_timestamp()), coalesce($3::timestamptz, '-infinity'))",
        *arguments,
    )
    return Published(*row)
