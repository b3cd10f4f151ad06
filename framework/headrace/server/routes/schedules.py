"""Routes of schedules: list, read, pause, resume, run, delete."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import asdict

from headrace import store
from headrace.admin.validation import MAX_ANSWER_BYTES
from headrace.model.errors import UnknownSchedule
from headrace.model.pages import Page, PageRequest
from headrace.model.schedules import ScheduleInfo
from headrace.server.access import methods
from headrace.server.engine import Engine
from headrace.server.merging import merged_page
from headrace.server.routes.context import Context
from headrace.server.routes.paging import PAGE_SIZE, NamePage, page
from headrace.server.routes.parameters import with_query
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


def _place_in(text: str) -> Place:
    """The place that a request names, `stream:name` or the name alone, which comes after those of all streams."""
    stream, colon, name = text.rpartition(":")
    return name, stream if colon else _LAST


async def _page_of(engine: Engine, asked: PageRequest[Place]) -> Page[ScheduleInfo]:
    """Read a page of a database. Its list is sorted by name, so the schedule of the place's name may belong to it, too."""
    database, after, before = engine.app.database, asked.after, asked.before
    names = asked.at(lambda place: place[0])
    schedules = await store.schedules(database, **asdict(names), max_bytes=MAX_ANSWER_BYTES)
    place = after or before
    if place is None or place[1] == _LAST:
        return schedules
    with suppress(UnknownSchedule):
        same = await store.schedule(database, place[0])
        if after is not None and _place(same) > after:
            schedules.insert(0, same)
        elif before is not None and _place(same) < before:
            schedules.append(same)
    return schedules


@methods.read(
    "/schedules",
    summary="List schedules",
    tags=_TAGS,
    description=f"Returns the schedules of all databases by name. A page ends once its settings have {PAGE_SIZE}.",
)
@with_query
async def list_schedules(context: Context, asked: NamePage) -> Listed[ScheduleInfo]:
    await context.check_all_streams("consume")
    places = asked.at(_place_in)
    schedules, unavailable = await merged_page(
        context.engine, _page_of, places, kind="stream", name=lambda info: info.stream, place=_place
    )
    further = context.engine.further
    name = _ref if further is not None and further.exist else lambda info: info.name
    return page(schedules, name, asked, unavailable=unavailable)
