"""Route of the overview."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from litestar import get
from litestar.handlers import HTTPRouteHandler
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from headrace.model.records import Overview
from headrace.server.engine import Engine
from headrace.server.merging import reachable, read_all
from headrace.server.routes.context import AnyRequest, Context, RouteContext, located


class OverviewAnswer(Struct):
    """An overview of the database."""

    data: Overview
    unavailable: Annotated[
        list[str] | UnsetType, Meta(description="The further databases that did not answer. Left out if all did.")
    ] = UNSET


def merged(found: Sequence[Overview]) -> Overview:
    """Merge the overviews of all databases, beginning with the server's own. A process that works in several is listed once."""
    workers = {(one.host, one.pid): one for overview in reversed(found) for one in overview.workers}
    return Overview(
        streams=sorted((one for overview in found for one in overview.streams), key=lambda one: one.name),
        consumers=sorted(
            (one for overview in found for one in overview.consumers), key=lambda one: (one.stream, one.name)
        ),
        workers=list(workers.values()),
        at=found[0].at,
        sources=sorted((one for overview in found for one in overview.sources), key=lambda one: one.name),
        backfills=sorted((one for overview in found for one in overview.backfills), key=lambda one: one.created_at),
    )


@get("/overview", effect="read", summary="Read the overview", tags=["Overview"])
async def overview(request: AnyRequest, context: Context) -> OverviewAnswer:
    """Returns streams, consumers, sources, running backfills and active processes. It
    evaluates no conditions, so it is cheap enough for a call every second."""
    await context.check_all_streams(request, "admin")
    found, away = await read_all(context.engine, lambda engine: _overview(context, engine))
    return OverviewAnswer(found[0] if len(found) == 1 else merged(found), unavailable=away or UNSET)


async def _overview(context: RouteContext, engine: Engine) -> Overview:
    found = await context.admin_of(engine).overview()
    if engine.names is None:
        return found
    sources = await reachable(engine, "source", found.sources, lambda one: one.name)
    names = {one.name for one in sources}
    return structs.replace(
        found,
        streams=[
            located(engine, one) for one in await reachable(engine, "stream", found.streams, lambda one: one.name)
        ],
        consumers=await reachable(engine, "stream", found.consumers, lambda one: one.stream),
        sources=sources,
        backfills=[one for one in found.backfills if one.source in names],
    )


ROUTES: Final[Sequence[HTTPRouteHandler]] = (overview,)
