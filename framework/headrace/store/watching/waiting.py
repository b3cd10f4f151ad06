"""What waits for consumers, see `sql/functions/watching/waiting.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from headrace.model.watching.diagnosis import Waiting
from headrace.store.database.database import Executor


async def waiting_samples(
    executor: Executor, consumers: Sequence[int], *, now: datetime | None = None
) -> dict[int, Waiting]:
    """Samples of what waits for these consumers, by their numbers. Those that were deleted are left out."""
    rows = await executor.fetch(
        "select * from headrace_internal.waiting_samples($1, p_now => coalesce($2, clock_timestamp()))",
        list(consumers),
        now,
    )
    return {row["consumer"]: Waiting(**{name: row[name] for name in Waiting.__struct_fields__}) for row in rows}


async def unmatched_messages(executor: Executor, consumer: int) -> int:
    """How many of the last messages of the stream were examined, if the filters of a consumer match none of them. 0 if
    they match one, or if it has none. Its condition may be slow, so call this with a time limit."""
    count: int = await executor.fetchval("select headrace_internal.unmatched_messages($1)", consumer)
    return count
