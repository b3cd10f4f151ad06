"""seek: move a consumer to another place in its stream."""

from __future__ import annotations

from datetime import datetime

from headrace.model.watching.operations import SeekPreview
from headrace.store.database.database import Executor


async def seek(executor: Executor, consumer: int, position: int | None) -> int:
    """Move the consumer so that its next message is the first one above `position`: 0 is the start, None the end.

    A move back loses nothing: up to `position`, messages that are parked, blocked, to be replayed or in holes are kept, and
    leases that hold nothing above it. A move forward passes over all of these. Acks of leases that end have no effect. Dead
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

    Otherwise as `seek`. If nothing was published at or after `time`, it moves to the end, or stays where it is if it has
    read all there is.

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


PREVIEWED = 50_000
"""The most messages that a preview examines in each direction. The rest is estimated."""


async def seek_preview(
    executor: Executor,
    consumer: int,
    *,
    seq: int | None = None,
    time: datetime | None = None,
    examine: int = PREVIEWED,
    now: datetime | None = None,
) -> SeekPreview:
    """The effects of moving the consumer. Nothing changes.

    Args:
        seq, time: as for `seek_to`. The seq 0 is the start. Without both, the end.
        examine: the most messages to examine below the position, and as many above it.

    Raises:
        UnknownConsumer, InvalidInput.
    """
    arguments = (consumer, seq, time, examine, now)
    row = await executor.fetchrow(
        "select * from headrace_internal.seek_preview($1, $2, $3, $4, coalesce($5, clock_timestamp()))", *arguments
    )
    return SeekPreview(
        before=row["from"], after=row["to"], **{name: row[name] for name in SeekPreview.__struct_fields__[2:]}
    )
