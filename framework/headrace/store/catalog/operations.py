"""operate: pause and resume consumers, list blocked keys, delete consumers and streams."""

from __future__ import annotations

from datetime import datetime

from headrace.model.pages import Page
from headrace.model.records import BlockedKey
from headrace.store.database.database import Executor
from headrace.store.database.pages import page_of


async def pause(executor: Executor, consumer: int, until: datetime | None = None) -> None:
    """Stop leasing until a time, or until `resume` if it is None. Messages in flight are not affected. Raises
    `UnknownConsumer`.
    """
    await executor.fetchval("select headrace_internal.pause($1, $2)", consumer, until)


async def resume(executor: Executor, consumer: int) -> None:
    """Continue leasing after `pause`. Notifies the consumer's workers. Raises `UnknownConsumer`."""
    await executor.fetchval("select headrace_internal.resume($1)", consumer)


async def blocked_keys(
    executor: Executor,
    consumer: int,
    *,
    limit: int = 100,
    above: int = 0,
    below: int | None = None,
    max_bytes: int | None = None,
) -> Page[BlockedKey]:
    """The keys that dead letters block, in the order of the dead letters' seq, at most `limit`.

    Args:
        above: only those whose dead letter has a larger seq.
        below: only those whose dead letter has a smaller seq, and the last `limit` of them instead of the first.
        max_bytes: return no more keys once those found and their errors have this size.
    """
    newest = below is not None
    arguments = (consumer, limit, above, below, newest, max_bytes)
    rows = await executor.fetch("select * from headrace_internal.blocked_key_page($1, $2, $3, $4, $5, $6)", *arguments)
    return await page_of(
        rows, lambda row: BlockedKey(**row), limit=limit, max_bytes=max_bytes, sized=("key", "error"), backwards=newest
    )


async def delete_consumer(
    executor: Executor, consumer: int, *, force: bool = False, now: datetime | None = None
) -> None:
    """Delete a consumer, with its position and its dead letters.

    Args:
        force: delete it even if workers use it. Their later settles have no effect.

    Raises:
        InUse: workers use it or wait for its next message, or another transaction held a lock for 5 seconds.
        UnknownConsumer.
    """
    await executor.fetchval(
        "select headrace_internal.delete_consumer($1, $2, coalesce($3, clock_timestamp()))", consumer, force, now
    )


async def delete_stream(
    executor: Executor, stream: str, *, force: bool = False, end_leases: bool = False, now: datetime | None = None
) -> None:
    """Delete a stream with its messages, its consumers and its sources.

    Args:
        force: delete it even if workers use its consumers, or a webhook feeds it.
        end_leases: delete it even if workers use its consumers.

    Raises:
        InUse: workers or a source use it, or another transaction, for example of a publisher, held a lock
            for 5 seconds.
        UnknownStream.
    """
    await executor.fetchval(
        "select headrace_internal.delete_stream($1, $2, coalesce($3, clock_timestamp()), $4)",
        stream,
        force,
        now,
        end_leases,
    )
