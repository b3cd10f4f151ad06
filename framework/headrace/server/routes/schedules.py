"""Routes of schedules: list, read, pause, resume, run, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter

from headrace import store
from headrace.admin import MAX_LIMIT
from headrace.admin.validation import MAX_ANSWER_BYTES
from headrace.model.schedules import ScheduleInfo
from headrace.server.routes.context import AnyRequest, Context
from headrace.server.routes.paging import PAGE_SIZE, AfterName, BeforeName, ListLimit, check_one_place, page
from headrace.server.wire.common import Listed, Success

ScheduleRef = Annotated[str, PathParameter(description="Name of a schedule.", schema_extra={"max_length": 48})]

_TAGS = ["Schedules"]
_PATH = "/schedules/{schedule:str}"


@get(
    "/schedules",
    summary="List schedules",
    tags=_TAGS,
    description=f"Returns schedules by name. A page ends once its settings have {PAGE_SIZE}.",
)
async def list_schedules(
    request: AnyRequest,
    context: Context,
    limit: ListLimit = MAX_LIMIT,
    after: AfterName = None,
    before: BeforeName = None,
) -> Listed[ScheduleInfo]:
    await context.check_all_streams(request, "consume")
    check_one_place(after, before)
    found = await store.schedules(
        context.engine.app.database, limit=limit, after=after, before=before, max_bytes=MAX_ANSWER_BYTES
    )
    return page(found, lambda schedule: schedule.name, after=after, before=before)


@get(_PATH, summary="Read a schedule", tags=_TAGS)
async def read_schedule(request: AnyRequest, context: Context, schedule: ScheduleRef) -> ScheduleInfo:
    """Returns the schedule's settings and its state."""
    return await context.schedule(request, schedule, "consume")


@post(f"{_PATH}/pause", summary="Pause a schedule", tags=_TAGS, status_code=200)
async def pause_schedule(request: AnyRequest, context: Context, schedule: ScheduleRef) -> ScheduleInfo:
    """Publishes nothing until the schedule is resumed."""
    return await context.admin.pause_schedule((await context.schedule(request, schedule, "admin")).name)


@post(f"{_PATH}/resume", summary="Resume a schedule", tags=_TAGS, status_code=200)
async def resume_schedule(request: AnyRequest, context: Context, schedule: ScheduleRef) -> ScheduleInfo:
    """Goes on with the first due time from now."""
    return await context.admin.resume_schedule((await context.schedule(request, schedule, "admin")).name)


@post(f"{_PATH}/run", summary="Run a schedule now", tags=_TAGS, status_code=200)
async def run_schedule(request: AnyRequest, context: Context, schedule: ScheduleRef) -> ScheduleInfo:
    """Asks for a message now, besides those of the due times. A process that runs the schedule publishes it within
    two seconds. 422 if the schedule is paused."""
    return await context.admin.run_schedule((await context.schedule(request, schedule, "admin")).name)


@delete(_PATH, summary="Delete a schedule", tags=_TAGS, status_code=200)
async def delete_schedule(request: AnyRequest, context: Context, schedule: ScheduleRef) -> Success:
    """Deletes the schedule. The next process that starts and declares it creates it again."""
    await context.admin.delete_schedule((await context.schedule(request, schedule, "admin")).name)
    return Success(success=True)


ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    list_schedules,
    read_schedule,
    pause_schedule,
    resume_schedule,
    run_schedule,
    delete_schedule,
)
