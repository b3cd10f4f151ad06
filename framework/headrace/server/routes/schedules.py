"""Routes of schedules: list, read, pause, resume, run, delete."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from litestar import get
from litestar.handlers import HTTPRouteHandler

from headrace import store
from headrace.admin import MAX_LIMIT
from headrace.admin.validation import MAX_ANSWER_BYTES
from headrace.model.errors import UnknownSchedule
from headrace.model.pages import Page
from headrace.model.schedules import ScheduleInfo
from headrace.server.merging import merged_page
from headrace.server.routes.context import AnyRequest, Context
from headrace.server.routes.paging import PAGE_SIZE, AfterName, BeforeName, ListLimit, check_one_place, page
from headrace.server.wire.common import Listed

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


ROUTES: Final[Sequence[HTTPRouteHandler]] = (list_schedules,)
