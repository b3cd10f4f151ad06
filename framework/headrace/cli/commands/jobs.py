"""`headrace job ls|info|cancel`: jobs that redrive or purge dead letters in the background."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.options.common import JsonOption, LimitOption
from headrace.cli.options.times import in_utc, time_or_dash
from headrace.cli.output.results import print_cut, print_list, print_result
from headrace.model.watching.operations import Job

JobId = Annotated[str, Parameter(name="ID", help="The job's id, as `job ls` prints it.")]


def ls(
    stream: Annotated[str | None, Parameter(help="List only the jobs of this stream.", show_default=False)] = None,
    /,
    *,
    limit: LimitOption = 100,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """List jobs, the newest first. Jobs that have ended are kept for a week."""
    jobs = administer(backend, lambda admin: admin.jobs(stream, limit=limit))
    print_list(
        jobs,
        json,
        ("id", "kind", "stream", "consumer", "state", "done#", "total#", "created"),
        lambda job: (job.id, job.kind, job.stream, job.consumer, job.state, job.done, job.total, job.created_at),
        empty="There are no jobs. `headrace consumer dead-letters redrive --background` creates one.",
    )
    print_cut(jobs, limit)


def info(id: JobId, /, *, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: A002, B008 - frozen
    """Show a job, with how much it has done."""
    job = administer(backend, lambda admin: admin.job(id))
    print_result(job, json, pairs=_facts(job))


def cancel(id: JobId, /, *, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: A002, B008 - frozen
    """Cancel a job that waits or runs. Messages that it has handled stay handled."""
    job = administer(backend, lambda admin: admin.cancel_job(id))
    print_result(job, json, f"The job {job.id} is {job.state}. Done: {describe(job)}.")


def describe(job: Job) -> str:
    """Say how much of a job is done."""
    return f"{job.done:,}" if job.total is None else f"{job.done:,} of {job.total:,}"


def _facts(job: Job) -> list[tuple[str, str]]:
    facts = [
        ("job", job.id),
        ("kind", job.kind),
        ("consumer", f"{job.consumer} of {job.stream}"),
        ("state", job.state),
        ("done", describe(job)),
        ("created", f"{in_utc(job.created_at)} by {job.created_by}"),
        ("finished", time_or_dash(job.finished_at)),
    ]
    if job.error is not None:
        facts.append(("error", job.error))
    return facts
