"""seek: move a consumer to another place in its stream."""

from __future__ import annotations

from datetime import datetime

from headrace.store.database.pool import Executor


async def seek(executor: Executor, consumer: int, position: int | None) -> int:
    """Move the consumer so that its next message is the first one above `position`: 0 is the start, None the end.

    Leases end, and acks for them have no effect. Parked, blocked and replayed messages are forgotten. Dead
    letters stay. With None, messages of a transaction that has not committed yet are still delivered.

    Returns:
        The position. Raises `UnknownConsumer`.
    """
    found: int = await executor.fetchval("select headrace_internal.seek($1, $2)", consumer, position)
    return found


async def seek_to(
    executor: Executor,
    consumer: int,
    *,
    seq: int | None = None,
    time: datetime | None = None,
    now: datetime | None = None,
) -> int:
    """Move the consumer so that its next message is the first one at or above `seq`, or published at or after `time`.

    Otherwise as `seek`. If nothing was published at or after `time`, it moves to the end.

    Returns:
        The position.

    Raises:
        UnknownConsumer.
        InvalidInput: the seq is above the last one that was ever drawn, or the time is in the future.
    """
    found: int = await executor.fetchval(
        "select headrace_internal.seek_to($1, $2, $3, coalesce($4, clock_timestamp()))", consumer, seq, time, now
    )
    return found
