"""API types of jobs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from headrace.admin.requests.consumers import DeadLetterCriteria
from headrace.model.watching.operations import Job, JobKind


class NewJob(Struct, kw_only=True, forbid_unknown_fields=True):
    """A job to redrive or purge dead letters in the background."""

    kind: JobKind
    stream: Annotated[str, Meta(description="The stream, by id or name.", examples=["mystream"])]
    consumer: Annotated[str, Meta(description="The consumer, by id or name.", examples=["us_orders"])]
    selection: Annotated[
        DeadLetterCriteria, Meta(description="Which dead letters. Those that die later are left alone.")
    ] = field(default_factory=DeadLetterCriteria)


class JobAnswer(Struct):
    """A job."""

    data: Job
