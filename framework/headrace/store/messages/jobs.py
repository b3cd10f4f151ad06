"""jobs: redrive or purge dead letters in the background."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import msgspec

from headrace.model.conditions.selections import DeadLetterCriteria
from headrace.model.watching.operations import Job, JobKind
from headrace.store.database.database import Executor
from headrace.store.messages.dead_letters import chosen


class ClaimedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that this process works on.

    Attributes:
        id: the number of the job.
        claim: the number of the claim, which each step names.
    """

    id: int
    claim: int
    kind: str
    stream: str
    consumer: str


class NewJob(msgspec.Struct, frozen=True):
    """A job to be created.

    Attributes:
        selection: the dead letters.
        total: how many match, if that is known.
        by: the name of the caller. None for the database role.
    """

    kind: JobKind
    selection: DeadLetterCriteria
    total: int | None = None
    by: str | None = None


async def create_job(
    executor: Executor, stream: str, consumer: str, job: NewJob, *, now: datetime | None = None
) -> UUID:
    """Create a job. Returns its id.

    Raises:
        UnknownConsumer.
        InUse: as many jobs as may be are waiting or running.
    """
    arguments = (stream, consumer, job.kind, chosen(job.selection), job.total, job.by, now)
    found: UUID = await executor.fetchval(
        "select headrace_internal.create_job($1, $2, $3, $4, $5, $6, coalesce($7, clock_timestamp()))",
        *arguments,
    )
    return found


async def jobs(
    executor: Executor,
    streams: Collection[str] | None = None,
    *,
    limit: int,
    id: UUID | None = None,  # noqa: A002
) -> list[Job]:
    """Jobs, the newest first, of these streams or of all. `id`: only this one."""
    names = None if streams is None else list(streams)
    rows = await executor.fetch("select * from headrace_internal.job_page($1, $2, $3)", names, limit, id)
    return [Job(**{**row, "id": str(row["id"])}) for row in rows]


async def cancel_job(executor: Executor, stream: str, id: UUID, *, now: datetime | None = None) -> bool:  # noqa: A002
    """Cancel a job of a stream. Its finished work stays done. Returns whether it was waiting or running."""
    found: bool = await executor.fetchval(
        "select headrace_internal.cancel_job($1, $2, coalesce($3, clock_timestamp()))", stream, id, now
    )
    return found


# --- for the processes that work on jobs


async def claim_job(executor: Executor, seconds: float, *, now: datetime | None = None) -> ClaimedJob | None:
    """Claim the job that has waited longest for its turn, for so many seconds. None if there is nothing to do."""
    row = await executor.fetchrow(
        "select * from headrace_internal.claim_job($1, coalesce($2, clock_timestamp()))", seconds, now
    )
    return None if row is None or row["id"] is None else ClaimedJob(**row)


async def work_job(
    executor: Executor, job: ClaimedJob, *, chunk: int, examine: int, seconds: float, now: datetime | None = None
) -> str:
    """Do one step of a job, in one transaction, and renew the claim for so many seconds.

    Args:
        chunk: the most dead letters to redrive or purge.
        examine: the most dead letters to examine.

    Returns:
        The state of the job: `running` if there is more to do, and `lost` if the claim is another's by now.
    """
    arguments = (job.id, job.claim, chunk, examine, seconds, now)
    found: str = await executor.fetchval(
        "select headrace_internal.work_job($1, $2, $3, $4, $5, coalesce($6, clock_timestamp()))", *arguments
    )
    return found


async def release_job(executor: Executor, job: ClaimedJob) -> None:
    """Give the claim back, so that another job or process has its turn."""
    await executor.fetchval("select headrace_internal.release_job($1, $2)", job.id, job.claim)


async def fail_job(executor: Executor, job: ClaimedJob, error: str, *, now: datetime | None = None) -> None:
    """End a job that can't continue."""
    await executor.fetchval(
        "select headrace_internal.end_job($1, $2, $3, coalesce($4, clock_timestamp()))", job.id, job.claim, error, now
    )


async def delete_old_jobs(executor: Executor, *, now: datetime | None = None) -> int:
    """Delete jobs that ended a week ago, and the oldest ones of more than ten thousand. Returns how many, at most 1,000."""
    found: int = await executor.fetchval(
        "select headrace_internal.delete_old_jobs(coalesce($1, clock_timestamp()))", now
    )
    return found
