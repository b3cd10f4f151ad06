"""seek: move a consumer to another place in its stream."""

from __future__ import annotations

from datetime import datetime

from headrace.store.database import Executor


async def seek(executor: Executor, consumer: int, position: int | None) -> int:
    """Move the consumer so that the next message is the first one above `position`: 0 is the start, None the end.

    What was in flight is ended: acks for it change nothing. Messages that had been parked, blocked or were to be replayed are
    forgotten; dead letters stay. At the end, a transaction that has published but not committed yet counts as what comes after.

    Returns:
        The position. Raises `UnknownConsumer`.
    """
    found: int = await executor.fetchval("select headrace.seek($1, $2)", consumer, position)
    return found


async def seek_to(
    executor: Executor,
    consumer: int,
    *,
    seq: int | None = None,
    time: datetime | None = None,
    now: datetime | None = None,
) -> int:
    """Move the consumer so that the next message is the first one at or above `seq`, or published at or after `time`.

    Otherwise as `seek`. After a time at which nothing was published any more comes the end.

    Returns:
        The position.

    Raises:
        UnknownConsumer.
        InvalidInput: the seq is past the last one that was ever drawn, or the time is yet to come.
    """
    found: int = await executor.fetchval(
        "select headrace.seek_to($1, $2, $3, coalesce($4, clock_timestamp()))", consumer, seq, time, now
    )
    return found
