"""operate: pause and resume, see what is blocked, delete."""

from __future__ import annotations

from datetime import datetime

from headrace.model.records import BlockedKey
from headrace.store.database import Executor


async def pause(executor: Executor, consumer: int, until: datetime | None = None) -> None:
    """Lease nothing until then, None for until `resume`; what is in flight goes on. Raises `UnknownConsumer`."""
    await executor.fetchval("select headrace.pause($1, $2)", consumer, until)


async def resume(executor: Executor, consumer: int) -> None:
    """Lease again, whatever `pause` said; its workers are woken. Raises `UnknownConsumer`."""
    await executor.fetchval("select headrace.resume($1)", consumer)


async def blocked_keys(executor: Executor, consumer: int, *, limit: int = 100) -> list[BlockedKey]:
    """The keys that a dead letter blocks, in the order of its seq, at most `limit`."""
    rows = await executor.fetch("select * from headrace.blocked_keys($1, $2)", consumer, limit)
    return [BlockedKey(**row) for row in rows]


async def delete_consumer(
    executor: Executor, consumer: int, *, force: bool = False, now: datetime | None = None
) -> None:
    """Delete a consumer with all that belongs to it: its place, its dead letters.

    Args:
        force: also when workers are at it. What they settle then is lost.

    Raises:
        InUse: workers are at it, or wait for its next message; or somebody has kept a lock for 5 seconds.
        UnknownConsumer.
    """
    await executor.fetchval(
        "select headrace.delete_consumer($1, $2, coalesce($3, clock_timestamp()))", consumer, force, now
    )


async def delete_stream(executor: Executor, stream: str, *, force: bool = False, now: datetime | None = None) -> None:
    """Delete a stream with its messages, its consumers and its sources.

    Args:
        force: also when workers are at one of its consumers, or a source delivers to it.

    Raises:
        InUse: they are, or one does; or somebody, a publisher perhaps, has kept a lock for 5 seconds.
        UnknownStream.
    """
    await executor.fetchval(
        "select headrace.delete_stream($1, $2, coalesce($3, clock_timestamp()))", stream, force, now
    )
