"""Leader election among the processes of one database, and the leader's check for missed notifications.

See `sql/functions/maintenance/leader.sql`.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from headrace.store.database.database import Executor


async def lead(executor: Executor, candidate: UUID, term: float, *, now: datetime | None = None) -> tuple[bool, float]:
    """Become the leader, or stay it.

    Args:
        candidate: the id of the process that asks.
        term: for how many seconds it leads, unless it asks again.
        now: the time, for tests.

    Returns:
        Whether it is the leader, and in how many seconds to ask again.

    Raises:
        StoreUnavailable: the database can't be reached.
    """
    arguments = (candidate, term, now)
    leads, again_in = await executor.fetchrow(
        "select * from headrace_internal.lead($1, make_interval(secs => $2), coalesce($3, clock_timestamp()))",
        *arguments,
    )
    return leads, again_in


async def resign(executor: Executor, leader: UUID) -> None:
    """End the leader's term, so that another process can take over immediately. Raises `StoreUnavailable`."""
    await executor.fetchval("select headrace_internal.resign($1)", leader)


async def notify_waiting(executor: Executor, after: int = 0, limit: int = 1000) -> tuple[int | None, int]:
    """Notify the waiting consumers that have something to lease, in case they missed their notification.

    Args:
        after: the id of the last consumer that the previous call checked.
        limit: how many consumers to check.

    Returns:
        The id of the last consumer that was checked, or None at the end, and how many had something to lease.

    Raises:
        StoreUnavailable: the database can't be reached.
    """
    reached, notified = await executor.fetchrow("select * from headrace_internal.notify_waiting($1, $2)", after, limit)
    return reached, notified
