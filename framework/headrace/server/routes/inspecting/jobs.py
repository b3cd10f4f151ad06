"""Routes of jobs, which redrive or purge dead letters in the background."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from litestar.params import JSONBody, PathParameter, QueryParameter

from headrace import store
from headrace.admin.jobs import cancel_job as cancel
from headrace.admin.jobs import create_job as create
from headrace.admin.jobs import job_id, unknown_job
from headrace.admin.validation import dead_letters_of
from headrace.model.errors import UnknownJob
from headrace.model.watching.operations import Job
from headrace.server.access import methods
from headrace.server.access.scopes import Need
from headrace.server.engine import Engine
from headrace.server.merging import reachable, read_all
from headrace.server.routes.context import Context, RouteContext
from headrace.server.routes.parameters import Limit
from headrace.server.wire.common import Listed
from headrace.server.wire.jobs import JobAnswer, NewJob

_TAGS = ["Jobs"]

JobRef = Annotated[str, PathParameter(description="Id of a job.")]
OfStream = Annotated[str | None, QueryParameter(description="Return only jobs of this stream, given by id or name.")]


@methods.create("/jobs", summary="Create a job", tags=_TAGS)
async def create_job(context: Context, data: JSONBody[NewJob]) -> JobAnswer:
    """Redrives or purges dead letters in the background, in small steps. Any server of the database works on it, and if one is
    killed, another one continues. 409 if 100 jobs wait or run already."""
    cached = await context.consumer(data.stream, data.consumer, "admin")
    selection = dead_letters_of(**data.selection.criteria())
    made = await create(context.admin, cached.stream.name, cached.name, data.kind, selection, by=await context.caller())
    context.engine.look_for_jobs()
    return JobAnswer(made)


@methods.read("/jobs", summary="List jobs", tags=_TAGS)
async def list_jobs(context: Context, stream: OfStream = None, limit: Limit = 100) -> Listed[Job]:
    """Returns the last jobs of the streams that the caller may read, the newest first. Jobs that have ended are kept for a week."""
    names: Collection[str] | None
    if stream is not None:
        names = [(await context.stream(stream, "consume")).name]
    else:
        names = await context.scope("consume")

    async def read(engine: Engine) -> list[Job]:
        found = await store.jobs(engine.app.database, names, limit=limit)
        return await reachable(engine, "stream", found, lambda job: job.stream)

    lists, unavailable = await read_all(context.engine, read)
    found = sorted((job for jobs in lists for job in jobs), key=lambda job: job.created_at, reverse=True)
    return Listed(found[:limit], unavailable=unavailable)


@methods.read("/jobs/{job:str}", summary="Read a job", tags=_TAGS)
async def read_job(context: Context, job: JobRef) -> JobAnswer:
    """Returns a job, with how much it has done."""
    return JobAnswer((await _find(context, job, "consume"))[0])


@methods.change("/jobs/{job:str}/cancel", summary="Cancel a job", tags=_TAGS)
async def cancel_job(context: Context, job: JobRef) -> JobAnswer:
    """Cancels a job that waits or runs. Its finished work stays done. A job that has ended stays as it is."""
    found, engine = await _find(context, job, "admin")
    await cancel(context.admin_of(engine), found)
    return JobAnswer((await _find(context, job, "admin"))[0])


async def _find(context: RouteContext, ref: str, need: Need) -> tuple[Job, Engine]:
    """Return a job, and the engine of its database. A caller without access to all streams gets the same error for a job
    that doesn't exist and for one of another stream."""
    names = await context.scope(need)

    async def read(engine: Engine) -> list[tuple[Job, Engine]]:
        return [(job, engine) for job in await store.jobs(engine.app.database, names, limit=1, id=job_id(ref))]

    try:
        lists, _ = await read_all(context.engine, read)
        jobs = [one for each in lists for one in each]
        if not jobs:
            raise unknown_job(ref)
    except UnknownJob as error:
        if names is None:
            raise
        scope = f"{need!r} for the stream of the job {ref:.80}, or for all streams"
        raise await context.forbidden(scope) from error
    return jobs[0]
