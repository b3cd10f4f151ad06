"""settle: tell what became of leased messages."""

from __future__ import annotations

from datetime import datetime

from headrace.model.outcomes import Settlement
from headrace.model.records import Lost
from headrace.store.database import Executor


async def settle(
    executor: Executor, consumer: int, settlement: Settlement, *, now: datetime | None = None
) -> list[Lost]:
    """Settle outcomes of many leases in one transaction.

    Returns:
        What could not be settled because its lease was lost. Nothing was changed for those.

    Raises:
        StoreUnavailable: unknown whether it was settled. Settle again: what had been done is then returned as lost.
    """
    failures = settlement.failures
    rows = await executor.fetch(
        "select * from headrace.settle($1, $2, $3, $4, $5, $6, $7, $8, coalesce($9, clock_timestamp()))",
        consumer,
        settlement.whole,
        settlement.leases,
        settlement.seqs,
        [failure.kind if failure else "ack" for failure in failures],
        [failure.delay if failure else None for failure in failures],
        [failure.error if failure else None for failure in failures],
        [failure.traceback if failure else None for failure in failures],
        now,
    )
    return [Lost(row[0], row[1]) for row in rows]
