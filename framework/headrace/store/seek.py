"""seek: move a consumer to another place in its stream."""

from __future__ import annotations

from headrace.store.database import Executor


async def seek(executor: Executor, consumer: int, position: int | None) -> int:
    """Move the consumer so that the next message is the first one above `position`: 0 is the start, None the end.

    What was in flight is ended: acks for it change nothing. Messages that had been parked or blocked are forgotten; dead
    letters stay. At the end, a transaction that has published but not committed yet counts as what comes after.

    Returns:
        The position. Raises `UnknownConsumer`.
    """
    found: int = await executor.fetchval("select headrace.seek($1, $2)", consumer, position)
    return found
