"""Routes of schedules: list, read, pause, resume, run, delete."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final

from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter

from headrace import store
from headrace.admin import MAX_LIMIT
from headrace.admin.validation import MAX_ANSWER_BYTES
from headrace.model.errors import UnknownSchedule
from headrace.model.pages import Page
from headrace.model.schedules import ScheduleInfo
from headrace.server.merging import merged_page
from headrace.server.routes.context import AnyRequest, Context
from headrace.server.routes.paging import PAGE_SIZE, AfterName, BeforeName, ListLimit, check_one_place, page
from headrace.server.wire.common import Listed, Success

ScheduleRef = Annotated[
    str,
    PathParameter(
        description="Name of a schedule, or `stream:name` if schedules of several databases have the name.",
        schema_extra={"max_length": 97},
    ),
]

_TAGS = ["Schedules"]
_PATH = "/schedules/{schedule:str}"

Place = tuple[str, str]
"""The place of a schedule in the list: its name, which is unique in a database, and its stream, which is unique among all."""

_LAST = "\U0010ffff"


def _place(info: ScheduleInfo) -> Place:
    return info.name, info.stream


def _ref(info: ScheduleInfo) -> str:
    return f"{info.stream}:{info.name}"


def _place_in(text: str | None) -> Place | None:
    """The place that a request names, `stream:name` or the name alone, which comes after those of all streams."""
    if text is None:
        return None
    stream, colon, name = text.rpartition(":")
    return name, stream if colon else _LAST


async def _page_of(
    database: store.Database, limit: int, after: Place | None, before: Place | None
) -> Page[ScheduleInfo]:
    """Read a page of a database. Its list is sorted by name, so the schedule of the place's name may belong to it, too."""
    found = await store.schedules(
        database, limit=limit, after=after and after[0], before=before and before[0], max_bytes=MAX_ANSWER_BYTES
    )
    place = after or before
    if place is None or place[1] == _LAST:
        return found
    with suppress(UnknownSchedule):
        same = await store.schedule(database, place[0])
        if after is not None and _place(same) > after:
            found.insert(0, same)
        elif before is not None and _place(same) < before:
            found.append(same)
    return found


@get(
    "/schedules",
    effect="read",
    summary="List schedules",
    tags=_TAGS,
    description=f"Returns the schedules of all databases by name. A page ends once its settings have {PAGE_SIZE}.",
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

    found, away = await merged_page(
        context.engine,
        lambda one, after, before: _page_of(one.app.database, limit, after, before),
        kind="stream",
        name=lambda info: info.stream,
        place=_place,
        limit=limit,
        after=_place_in(after),
        before=_place_in(before),
    )
    further = context.engine.further
    return page(
        found,
        _ref if further is not None and further.exist else lambda info: info.name,
        after=after,
        before=before,
        unavailable=away,
    )


@get(_PATH, effect="read", summary="Read a schedule", tags=_TAGS)
async def read_schedule(request: AnyRequest, context: Context, schedule: ScheduleRef) -> ScheduleInfo:
    """Returns the schedule's settings and its state."""
    return await context.schedule(request, schedule, "consume")


@post(f"{_PATH}/pause", effect="change", summary="Pause a schedule", tags=_TAGS, status_code=200)
async def pause_schedule(request: AnyRequest, context: Context, schedule: ScheduleRef) -> ScheduleInfo:
    """Publishes nothing until the schedule is resumed."""
    return await context.admin.pause_schedule((await context.schedule(request, schedule, "admin")).name)


@post(f"{_PATH}/resume", effect="change", summary="Resume a schedule", tags=_TAGS, status_code=200)
async def resume_schedule(request: AnyRequest, context: Context, schedule: ScheduleRef) -> ScheduleInfo:
    """Goes on with the first due time from now."""
    return await context.admin.resume_schedule((await context.schedule(request, schedule, "admin")).name)


@post(f"{_PATH}/run", effect="change", summary="Run a schedule now", tags=_TAGS, status_code=200)
async def run_schedule(request: AnyRequest, context: Context, schedule: ScheduleRef) -> ScheduleInfo:
    """Asks for a message now, besides those of the due times. A process that runs the schedule publishes it within
    two seconds. 422 if the schedule is paused."""
    return await context.admin.run_schedule((await context.schedule(request, schedule, "admin")).name)


@delete(_PATH, effect="change", summary="Delete a schedule", tags=_TAGS, status_code=200)
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
