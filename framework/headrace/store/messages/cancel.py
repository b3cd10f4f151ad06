"""cancel: have a consumer be done with messages that its handler has not handled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from headrace.store.database.database import Executor


class Cancelled(NamedTuple):
    """The seqs of messages whose cancellation was requested.

    Attributes:
        cancelled: they were waiting, and will not be handled.
        stopping: they are at work.
        others: they are done, dead letters, not wanted by the consumer, or not in the stream.
    """

    cancelled: list[int]
    stopping: list[int]
    others: list[int]


class CancelledOfKey(NamedTuple):
    """The seqs of the waiting messages of a key that one step has cancelled.

    Attributes:
        reached: how far the step came.
        until: how far all steps together go.
    """

    cancelled: list[int]
    reached: int
    until: int


async def cancel(executor: Executor, consumer: int, seqs: Sequence[int], *, by: str | None = None) -> Cancelled:
    """Cancel messages.

    Args:
        consumer: the consumer's id.
        by: who asks. By default the role of the session.

    Raises:
        UnknownConsumer, StoreUnavailable.
        InvalidInput: too many cancellations are pending.
    """
    row = await executor.fetchrow(
        "select * from headrace_internal.cancel_messages($1, $2, $3)", consumer, list(seqs), by
    )
    return _cancelled(row)


async def cancel_key(
    executor: Executor, consumer: int, key: str, *, above: int = 0, until: int | None = None, by: str | None = None
) -> CancelledOfKey:
    """Cancel some of the messages of a key that wait now, and not those at work. The first step has no bounds. The next
    ones continue above `reached`, with the same `until`. The last one has reached it. Raises as `cancel` does.
    """
    row = await executor.fetchrow(
        "select * from headrace_internal.cancel_key($1, $2, $3, $4, $5)", consumer, key, above, until, by
    )
    return CancelledOfKey(list(row["cancelled"]), row["reached"], row["until"])


async def cancel_unique(
    executor: Executor, consumer: int, unique_key: str, *, by: str | None = None
) -> Cancelled | None:
    """Cancel the last message that was published with a unique key. None if that one is scheduled, and so not published
    yet. Raises as `cancel` does.
    """
    row = await executor.fetchrow("select * from headrace_internal.cancel_unique($1, $2, $3)", consumer, unique_key, by)
    return None if row["scheduled"] else _cancelled(row)


class Watched(NamedTuple):
    """What a process with messages at work looks for.

    Attributes:
        history: the identity of the history, as in `Batch.history`. None if there is none yet.
        cancelled: the messages whose cancellation is requested, by their leases.
    """

    history: UUID | None
    cancelled: dict[int, list[int]]


async def watched(executor: Executor, consumers: Sequence[int]) -> Watched:
    """Look at the history of the database, and for cancelled messages of these consumers."""
    rows = await executor.fetch("select * from headrace_internal.watched($1)", list(consumers))
    cancelled = {row["lease_id"]: list(row["seqs"]) for row in rows if row["lease_id"] is not None}
    return Watched(rows[0]["history"] if rows else None, cancelled)


def _cancelled(row: Any) -> Cancelled:
    return Cancelled(sorted(row["cancelled"]), sorted(row["stopping"]), sorted(row["others"]))
