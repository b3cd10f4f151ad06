"""Jobs: redrive or purge dead letters in the background."""

from __future__ import annotations

from typing import Any, Unpack
from uuid import UUID

from headrace import store
from headrace.admin.base import Base
from headrace.admin.validation import (
    check_limit,
    check_one_of,
    dead_letters_of,
)
from headrace.admin.watching.recording import selected
from headrace.model.conditions.selections import MAX_CHOSEN, DeadLetterCriteria
from headrace.model.errors import FilterTooSlow, InvalidInput, StoreBusy, UnknownJob
from headrace.model.watching.audit import Change
from headrace.model.watching.operations import Job, JobKind
from headrace.store.database.time_limit import within

_COUNTING = 2.0
"""Seconds for counting the dead letters of a new job."""


async def create_job(
    base: Base, stream: str, name: str, kind: JobKind, selection: DeadLetterCriteria, *, by: str | None
) -> Job:
    """Create a job in the name of a caller, or of the database role if `by` is None. See `Admin.create_job`."""
    check_one_of("kind", kind, ("redrive", "purge"))
    if len(selection.get("seqs") or ()) > MAX_CHOSEN:
        raise InvalidInput(
            f"{len(selection['seqs'] or ()):,} seqs are given. Give at most {MAX_CHOSEN:,}, or select dead letters in another way.",
            field="seqs",
        )
    database, consumer = base._database, await base._consumer(stream, name)
    total: int | None = None
    try:
        async with database.judging(stream, _COUNTING), within(database, _COUNTING) as connection:
            # By groups, since that needs no lock of the consumer. There are as many as reasons.
            groups = await store.dead_letter_groups(connection, consumer, "reason", selection)
            total = sum(group.messages for group in groups)
    except (FilterTooSlow, StoreBusy):
        pass  # the job counts what it does
    change = _change_of(stream, "", "create", consumer=name, kind=kind, **selected(selection))

    async def create(connection: store.Executor) -> UUID:
        created = await store.create_job(connection, stream, name, store.NewJob(kind, selection, total, by))
        change.name = str(created)
        return created

    jobs = await store.jobs(database, limit=1, id=await base._change(change, create))
    return jobs[0]


async def cancel_job(base: Base, job: Job) -> None:
    """Cancel a job that waits or runs."""
    change = _change_of(job.stream, job.id, "cancel", consumer=job.consumer, kind=job.kind)

    async def cancel(connection: store.Executor) -> None:
        change.skipped = not await store.cancel_job(connection, job.stream, UUID(job.id))

    await base._change(change, cancel)


class Jobs(Base):
    """The calls about jobs."""

    async def create_job(self, stream: str, name: str, kind: JobKind, **criteria: Unpack[DeadLetterCriteria]) -> Job:
        """Redrive or purge dead letters in the background, in small steps. A running server works on it.

        Args:
            kind: "redrive" or "purge".
            criteria: see `DeadLetterCriteria`. At most 10,000 seqs. Those that die later are left alone.

        Raises:
            InUse: 100 jobs wait or run already.
        """
        return await create_job(self, stream, name, kind, dead_letters_of(**criteria), by=None)

    async def jobs(self, stream: str | None = None, *, limit: int = 100) -> list[Job]:
        """Return the last jobs of a stream, or of all, the newest first, at most `limit`. Jobs that have ended are kept for a
        week.
        """
        check_limit(limit)
        if stream is not None:
            await store.stream(self._database, stream)
        return await store.jobs(self._database, None if stream is None else [stream], limit=limit)

    async def job(self, id: str) -> Job:  # noqa: A002
        """Return one job, by its id. Raises `UnknownJob`."""
        jobs = await store.jobs(self._database, limit=1, id=job_id(id))
        if not jobs:
            raise unknown_job(id)
        return jobs[0]

    async def cancel_job(self, id: str) -> Job:  # noqa: A002
        """Cancel a job that waits or runs, and return it. Messages that it has handled stay handled. Raises
        `UnknownJob`."""
        await cancel_job(self, await self.job(id))
        return await self.job(id)


def _change_of(stream: str, id: str, action: str, **details: Any) -> Change:  # noqa: A002
    return Change(action=f"job.{action}", kind="job", name=id, stream=stream, details=details)


def job_id(text: str) -> UUID:
    """Parse the id of a job. Raises `UnknownJob`."""
    try:
        return UUID(text)
    except ValueError:
        raise unknown_job(text) from None


def unknown_job(id: str) -> UnknownJob:  # noqa: A002
    """The error about a job that doesn't exist."""
    return UnknownJob(f"There is no job {id!r:.80}. Jobs that have ended are removed after a week.")
