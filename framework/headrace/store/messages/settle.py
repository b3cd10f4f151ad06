"""settle: write the outcomes of leased messages."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from headrace.model.errors import TimelineChanged
from headrace.model.outcomes import Failure, Settlement
from headrace.model.records import Lost
from headrace.model.watching.history_log import recorded, settled
from headrace.store.database.database import Executor

_SETTLE = """select lost_lease, lost_seq, lease_gone
             from headrace_internal.settle_outcomes($1, $2, $3, $4, $5, coalesce($6, clock_timestamp()), $7{report})"""
_UNREPORTED, _REPORTED = _SETTLE.format(report=""), _SETTLE.format(report=", row($8, $9, $10, $11, $12, $13, $14)")


@recorded(settled)
async def settle(
    executor: Executor,
    consumer: int,
    settlement: Settlement,
    *,
    now: datetime | None = None,
    history: UUID | None = None,
    process: str | None = None,
) -> list[Lost]:
    """Settle outcomes of many leases in one transaction.

    Args:
        executor: a `Database`, or a connection.
        consumer: the consumer's id.
        settlement: the outcomes.
        now: the time, for tests. By default the server's clock.
        history: the history in which the leases are known to be held, see `Batch.history`, or None to skip the check.
        process: the name of the worker process, which is kept with the errors of failed attempts. None for a client.

    Returns:
        The outcomes that could not be settled because their lease was lost. They changed nothing.

    Raises:
        TimelineChanged: the database has another history by now. Nothing was changed.
        StoreUnavailable: it is unknown whether the outcomes were settled. Settle again: what had been
            settled is then returned as lost.
    """
    failures = [_encoded(failure, process) if failure else None for failure in settlement.failures]
    outcomes = (consumer, settlement.whole, settlement.leases, settlement.seqs, failures, now, history)
    if settlement.report is None:
        rows = await executor.fetch(_UNREPORTED, *outcomes)
    else:
        rows = await executor.fetch(_REPORTED, *outcomes, *msgspec.structs.astuple(settlement.report))
    if rows and rows[0][0] is None:
        raise TimelineChanged(
            "The server was restarted, failed over or was restored: check in to learn which of the earlier leases are valid."
        )
    return [Lost(*row) for row in rows]


def _encoded(failure: Failure, process: str | None) -> str:
    columns = {name: getattr(failure, name) for name in ("kind", "delay", "error", "error_type", "traceback")}
    return msgspec.json.encode({**columns, "process": process}).decode()
