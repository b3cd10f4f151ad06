"""workers: each process at work tells of itself, and who looks on sees them all."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from headrace.model.records import WorkerFacts, WorkerInfo
from headrace.store.database import Executor


async def tell_worker(executor: Executor, worker: UUID, facts: WorkerFacts, *, now: datetime | None = None) -> None:
    """Write down what a process tells of itself, in place of what it has told before."""
    await executor.fetchval(
        "select headrace.tell_worker($1, $2, coalesce($3, clock_timestamp()))",
        worker, msgspec.json.encode(facts).decode(), now,
    )  # fmt: skip


async def worker_left(executor: Executor, worker: UUID) -> None:
    """The process ends, and is forgotten at once."""
    await executor.fetchval("select headrace.worker_left($1)", worker)


async def workers(executor: Executor, *, now: datetime | None = None) -> tuple[datetime, list[WorkerInfo]]:
    """The database's time, and the processes that have told of themselves, the longest at work first; 1,000 at most."""
    rows = await executor.fetch(
        """select t.at, w.* from (select coalesce($1, clock_timestamp()) as at) as t
           left join lateral headrace.worker_info(t.at) as w on true""",
        now,
    )
    found = [_worker(row) for row in rows if row["id"] is not None]
    return rows[0]["at"], [worker for worker in found if worker is not None]


def _worker(row: Any) -> WorkerInfo | None:
    try:
        facts = msgspec.json.decode(row["facts"], type=WorkerFacts)
    except msgspec.DecodeError:  # a process of a version to come may tell what this one can't read
        return None
    told = {field: getattr(facts, field) for field in WorkerFacts.__struct_fields__}
    return WorkerInfo(id=str(row["id"]), seen_at=row["seen_at"], gone=row["gone"], **told)


async def forget_workers(executor: Executor, *, now: datetime | None = None) -> int:
    """Forget the processes that have not been seen for a minute. Returns how many."""
    count: int = await executor.fetchval("select headrace.forget_workers(coalesce($1, clock_timestamp()))", now)
    return count
