"""Route of the overview."""

from __future__ import annotations

from collections.abc import Sequence

from litestar import get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from headrace.model.records import Overview
from headrace.server.access.scopes import Access
from headrace.server.engine import Engine
from headrace.server.routes.context import AnyRequest, RouteContext


class OverviewAnswer(Struct):
    """An overview of the database."""

    data: Overview


def routes(engine: Engine, access: Access) -> Sequence[HTTPRouteHandler]:
    """Return the handlers."""
    context = RouteContext(engine, access)

    @get("/overview", summary="Read the overview", tags=["Overview"])
    async def overview(request: AnyRequest) -> OverviewAnswer:
        """Returns streams, consumers, sources, running backfills and active processes. It
        evaluates no conditions, so it is cheap enough for a call every second."""
        await context.check_all_streams(request, "admin")
        return OverviewAnswer(await context.admin.overview())

    return [overview]
