"""Retention calls, each for one stream and bounded in its work. See `sql/functions/maintenance/retention.sql`.

Any process may make them at any time. If several processes reach a stream at the same time, one does the
work. `headrace.runtime.maintenance.sweeper` calls them for all streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from headrace.store.database.database import Database, Executor
from headrace.store.database.time_limit import within

LONGEST_CALL = 30.0
"""The timeout in seconds of a call that evaluates consumers' conditions on messages."""


class StreamToSweep(msgspec.Struct, frozen=True, kw_only=True):
    """A stream and what its retention needs.

    Attributes:
        id: its id.
        name: its name.
        limited: whether retention may remove messages.
        aged: whether messages are removed by age.
        sized: whether it has a `max_storage`.
        compacted: whether it holds only the latest message of each key.
        tombstones: whether a null payload deletes its key.
        full: whether it refuses publishing for now.
        altered: whether someone has changed its sequence.
        has_old_ids: whether it has message ids past its `dedupe_window`.
        drawn: the last sequence number that was drawn.
        updated_at: when its settings were last changed.
    """

    id: int
    name: str
    limited: bool
    aged: bool
    sized: bool
    compacted: bool
    tombstones: bool
    full: bool
    altered: bool
    has_old_ids: bool
    drawn: int
    updated_at: datetime


class Planned(NamedTuple):
    """The result of `plan_segments`.

    Attributes:
        made: the number of segments created.
        busy: whether a lock prevented it.
        again_in: seconds until the stream may have grown by a sixteenth of its `max_storage`. None without one.
    """

    made: int
    busy: bool
    again_in: float | None


class Dropped(NamedTuple):
    """The result of `drop_segments`.

    Attributes:
        segments: the number of segments dropped.
        missed: messages in them that consumers had not got, in all consumers together.
        more: whether there is more to drop.
        busy: whether a lock prevented it.
    """

    segments: int
    missed: int
    more: bool
    busy: bool


class Trimmed(NamedTuple):
    """The result of `trim_stream`: as for `Dropped`, with the number of messages removed."""

    messages: int
    missed: int
    more: bool


class IdsDeleted(NamedTuple):
    """The result of `delete_old_message_ids`: how many, and the time up to which no old id is left. None if none was found."""

    ids: int
    reached: datetime | None


class UniqueKeysDeleted(NamedTuple):
    """The result of `delete_done_unique_keys`: how many, and the last unique key that was looked at. None at the end."""

    keys: int
    reached: str | None


class TombstonesRemoved(NamedTuple):
    """The result of `remove_tombstones`: how many, and the seq up to which the stream was searched."""

    keys: int
    reached: int


async def streams_to_sweep(
    executor: Executor, id_floors: Mapping[int, datetime], *, now: datetime | None = None
) -> list[StreamToSweep]:
    """Return all streams, with what their retention needs.

    Args:
        id_floors: by stream id, the time from which message ids have to be read.
        now: the time, for tests.
    """
    arguments = (now, list(id_floors), list(id_floors.values()))
    rows = await executor.fetch(
        "select * from headrace_internal.streams_to_sweep(coalesce($1, clock_timestamp()), $2::int[], $3::timestamptz[])",
        *arguments,
    )
    return [StreamToSweep(**row) for row in rows]


async def plan_segments(executor: Executor, stream: int, lock_timeout: int, *, now: datetime | None = None) -> Planned:
    """Create the stream's next segments ahead. It waits up to `lock_timeout` milliseconds for the table's lock."""
    row = await executor.fetchrow(
        "select * from headrace_internal.plan_segments($1, $2, coalesce($3, clock_timestamp()))",
        stream,
        lock_timeout,
        now,
    )
    return Planned(*row)


async def drop_segments(database: Database, stream: int, lock_timeout: int, *, now: datetime | None = None) -> Dropped:
    """Drop segments that retention no longer keeps. It waits up to `lock_timeout` milliseconds for the table's lock.

    Raises `FilterTooSlow` if the messages that a consumer misses can't be counted in time.
    """
    async with within(database, LONGEST_CALL) as connection:
        row = await connection.fetchrow(
            "select * from headrace_internal.drop_segments($1, $2, coalesce($3, clock_timestamp()))",
            stream,
            lock_timeout,
            now,
        )
    return Dropped(*row)


async def trim_stream(database: Database, stream: int, *, now: datetime | None = None) -> Trimmed:
    """Remove messages row by row, where a whole segment can't be dropped. Raises `FilterTooSlow`."""
    async with within(database, LONGEST_CALL) as connection:
        row = await connection.fetchrow(
            "select * from headrace_internal.trim_stream($1, coalesce($2, clock_timestamp()))", stream, now
        )
    return Trimmed(*row)


async def close_segment_early(executor: Executor, stream: int) -> int:
    """Close the current segment early, so that it can be dropped. Returns the sequence numbers drawn for that."""
    return await executor.fetchval("select headrace_internal.close_segment_early($1)", stream) or 0


async def check_full(executor: Executor, stream: int, *, now: datetime | None = None) -> bool:
    """Decide whether the stream refuses publishing for now. Returns the decision."""
    return bool(
        await executor.fetchval("select headrace_internal.check_full($1, coalesce($2, clock_timestamp()))", stream, now)
    )


async def delete_old_message_ids(
    executor: Executor, stream: int, floor: datetime | None, *, now: datetime | None = None
) -> IdsDeleted:
    """Delete message ids past the stream's `dedupe_window`, reading from the time `floor`."""
    arguments = (stream, floor, now)
    row = await executor.fetchrow(
        "select * from headrace_internal.delete_old_message_ids($1, coalesce($2::timestamptz, '-infinity'), coalesce($3, clock_timestamp()))",
        *arguments,
    )
    return IdsDeleted(*row)


async def streams_with_unique_keys(executor: Executor) -> list[int]:
    """Return the ids of the streams that have unique keys."""
    rows = await executor.fetch("select id from headrace_internal.streams_with_unique_keys() as id")
    return [row["id"] for row in rows]


async def delete_done_unique_keys(database: Database, stream: int, after: str, limit: int = 1000) -> UniqueKeysDeleted:
    """Look at `limit` unique keys after the unique key `after`, and delete those whose last message is not pending.

    Raises `FilterTooSlow` if a consumer's condition can't be evaluated in time.
    """
    async with within(database, LONGEST_CALL) as connection:
        row = await connection.fetchrow(
            "select * from headrace_internal.delete_done_unique_keys($1, $2, $3)", stream, after, limit
        )
    return UniqueKeysDeleted(*row)


async def remove_tombstones(executor: Executor, stream: int, after: int) -> TombstonesRemoved:
    """Remove keys that a null payload has deleted, searching from the seq `after`."""
    return TombstonesRemoved(
        *await executor.fetchrow("select * from headrace_internal.remove_tombstones($1, $2)", stream, after)
    )


async def try_mend_sequence(executor: Executor, stream: str, lock_timeout: int) -> bool:
    """Reset a stream's altered sequence. Returns whether the lock was obtained within `lock_timeout` milliseconds."""
    return bool(await executor.fetchval("select headrace_internal.try_mend_sequence($1, $2)", stream, lock_timeout))


async def note_drawn(executor: Executor, stream: int) -> int:
    """Note a seq that was drawn in the stream's row, so that copies of the row show where the sequence must be.
    Returns what the row has.
    """
    return await executor.fetchval("select headrace_internal.note_drawn($1)", stream) or 0


async def set_hint_bits(executor: Executor, stream: int, after: int) -> int:
    """Read new messages above the seq `after` that no consumer has read, so that less WAL is written when one does. Returns
    the seq up to which nothing is left to read now.
    """
    return await executor.fetchval("select headrace_internal.set_hint_bits($1, $2)", stream, after) or 0


async def clean_up_writes(executor: Executor, *, now: datetime | None = None) -> int:
    """Delete the records of writes that were abandoned or finished long ago. Returns how many."""
    return (
        await executor.fetchval("select headrace_internal.clean_up_writes(coalesce($1, clock_timestamp()))", now) or 0
    )
