"""All there is at a glance."""

from __future__ import annotations

from collections.abc import Sequence

from litestar import get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from headrace.model.records import Overview
from headrace.server.access import Access
from headrace.server.engine import Engine
from headrace.server.routes.desk import AnyRequest, Desk


class OverviewAnswer(Struct):
    """All there is at a glance."""

    data: Overview


def routes(engine: Engine, access: Access) -> Sequence[HTTPRouteHandler]:
    """The handlers."""
    desk = Desk(engine, access)

    @get("/overview", summary="See all there is at a glance", tags=["Overview"])
    async def overview(request: AnyRequest) -> OverviewAnswer:
        """Streams, consumers, sources, backfills under way, and processes at work. Cheap enough to be asked for every second: no condition is judged."""
        await desk.all(request, "admin")
        return OverviewAnswer(await desk.admin.overview())

    return [overview]
