"""workers: the heartbeats of processes, the list of running processes, and the features that all of them know."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from headrace.model.records import ConsumerAtWork, WorkerFacts, WorkerInfo
from headrace.store.database.database import Executor


async def record_heartbeat(
    executor: Executor, worker: UUID, facts: WorkerFacts, *, now: datetime | None = None
) -> None:
    """Write a heartbeat of a process. It replaces the previous one."""
    arguments = (worker, msgspec.json.encode(facts).decode(), now)
    await executor.fetchval(
        "select headrace_internal.record_heartbeat($1, $2, coalesce($3, clock_timestamp()))", *arguments
    )


async def delete_heartbeat(executor: Executor, worker: UUID) -> None:
    """Remove a process that ends."""
    await executor.fetchval("select headrace_internal.delete_heartbeat($1)", worker)


async def workers(executor: Executor, *, now: datetime | None = None) -> tuple[datetime, list[WorkerInfo]]:
    """The database's time, and the running processes, the oldest first, at most 1,000."""
    rows = await executor.fetch(
        """select t.at, w.* from (select coalesce($1, clock_timestamp()) as at) as t
           left join lateral headrace_internal.worker_info(t.at) as w on true""",
        now,
    )
    return rows[0]["at"], [_worker(row) for row in rows if row["id"] is not None]


class ReportOfConsumer(msgspec.Struct, frozen=True):
    """What a running process reports of a consumer, when it did, and its name if something blocks its event
    loop."""

    seen_at: datetime
    work: ConsumerAtWork
    event_loop: str | None


async def consumer_at_work(
    executor: Executor, stream: str, name: str, *, now: datetime | None = None
) -> list[ReportOfConsumer]:
    """The reports of the running processes on a consumer."""
    rows = await executor.fetch(
        "select * from headrace_internal.consumer_at_work($1, $2, coalesce($3, clock_timestamp()))", stream, name, now
    )
    found = []
    for row in rows:
        with suppress(msgspec.DecodeError):  # the heartbeat of a newer version may be unreadable
            work = msgspec.json.decode(row["entry"], type=ConsumerAtWork)
            found.append(ReportOfConsumer(row["seen_at"], work, row["event_loop"]))
    return found


def _worker(row: Any) -> WorkerInfo:
    try:
        facts = msgspec.json.decode(row["facts"], type=WorkerFacts)
    except msgspec.DecodeError:  # of a newer version, or of a role that writes its own
        facts = WorkerFacts(host="?", pid=0, kind="unreadable", version="?", started_at=row["seen_at"])
    fields = {field: getattr(facts, field) for field in WorkerFacts.__struct_fields__}
    return WorkerInfo(id=str(row["id"]), seen_at=row["seen_at"], gone=row["gone"], **fields)


async def forget_workers(executor: Executor, *, now: datetime | None = None) -> int:
    """Remove the processes that have sent no heartbeat for a minute. Returns how many."""
    count: int = await executor.fetchval(
        "select headrace_internal.delete_old_heartbeats(coalesce($1, clock_timestamp()))", now
    )
    return count


async def switch_on_features(executor: Executor, *, now: datetime | None = None) -> list[str]:
    """Switch on the features that all running processes know. Returns their names."""
    rows = await executor.fetch(
        "select name from headrace_internal.switch_on_features(coalesce($1, clock_timestamp())) as name", now
    )
    return [row["name"] for row in rows]
