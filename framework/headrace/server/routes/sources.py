"""Sources: make, list, see, change, remove. What they take in goes by `headrace.server.webhooks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from litestar import Response, delete, get, post, route
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, Parameter

from headrace.model.errors import UnknownSource, UnknownStream
from headrace.model.sources import SourceInfo
from headrace.server.access import Access
from headrace.server.engine import Engine
from headrace.server.http import Call
from headrace.server.routes.desk import AnyRequest, Desk
from headrace.server.routes.slashes import unmarked
from headrace.server.webhooks import Webhooks
from headrace.server.wire.common import Deleted, Listed, Success
from headrace.server.wire.sources import NewSource, Source, WebhookSettings

SourceRef = Annotated[str, Parameter(description="A source, by its id or name.")]


def routes(engine: Engine, access: Access) -> Sequence[HTTPRouteHandler]:
    """The handlers."""
    desk = Desk(engine, access)

    async def found(request: AnyRequest, ref: str) -> SourceInfo:
        try:
            source = await desk.admin.source(unmarked(ref))
        except UnknownSource:
            await desk.all(request, "admin")
            raise
        await desk.named(request, source.stream, "admin")
        return source

    @post("/sources", summary="Make a webhook source", tags=["Sources"])
    async def create_source(request: AnyRequest, data: Annotated[NewSource, Body()]) -> Response[Source]:
        """201; or 200 if there is one of this name and these settings, and 409 if its settings are others."""
        try:
            stream = await desk.stream(request, data.stream, "admin")
        except UnknownStream as error:
            raise UnknownStream(f"There is no stream {data.stream!r}: create it first, a source makes none.") from error
        new = await desk.admin.create_source(data.spec(stream.name))
        engine.forget()
        return Response(Source.of(await desk.admin.source(data.name)), status_code=201 if new else 200)

    @get("/sources", summary="List sources", tags=["Sources"])
    async def list_sources(request: AnyRequest) -> Listed[Source]:
        """All of them, by name."""
        await desk.all(request, "admin")
        return Listed([Source.of(info) for info in await desk.admin.sources()])

    @get("/sources/{source:str}", summary="See a source", tags=["Sources"])
    async def read_source(request: AnyRequest, source: SourceRef) -> Source:
        """Its settings, but for its secrets."""
        return Source.of(await found(request, source))

    @route(
        "/sources/{source:str}",
        http_method=[HttpMethod.PATCH, HttpMethod.PUT],
        summary="Change a source",
        tags=["Sources"],
        status_code=200,
    )
    async def edit_source(request: AnyRequest, source: SourceRef, data: Annotated[WebhookSettings, Body()]) -> Source:
        """What is left out stays as it is, by PUT too. This server heeds it at once, others within two seconds."""
        known = await found(request, source)
        changed = await desk.admin.edit_source(known.id, **data.changes())
        engine.forget()
        return Source.of(changed)

    @delete("/sources/{source:str}", summary="Remove a source", tags=["Sources"], status_code=200)
    async def delete_source(request: AnyRequest, source: SourceRef) -> Deleted:
        """What it has delivered stays."""
        known = await found(request, source)
        await desk.admin.delete_source(known.id)
        engine.forget()
        return Deleted(known.id)

    return [create_source, list_sources, read_source, edit_source, delete_source, _deliver(Webhooks(engine))]


def _deliver(webhooks: Webhooks) -> HTTPRouteHandler:
    """As the API's description has it. The server finds this endpoint by hand, before it asks Litestar (`Webhooks.find`)."""

    @post("/webhook/{source:str}", summary="Deliver a webhook", tags=["Sources"], status_code=200)
    async def deliver(
        request: AnyRequest, source: Annotated[str, Parameter(description="A webhook source, by its name.")]
    ) -> Response[Success]:
        """The body may be anything. No token is needed; 401 if the source wants a signature, and this has none or another.
        The answer comes after the commit."""
        call = Call(request.scope, request.receive, (unmarked(source),), await request.body())  # type: ignore[arg-type]
        reply = await webhooks.deliver(call)
        answer: Response[Any] = Response(reply.body, status_code=reply.status, media_type="application/json")
        return answer

    return deliver
