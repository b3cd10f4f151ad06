"""Sources: make, list, see, change, remove. What they take in goes by `headrace.server.webhooks`, and by who captures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from litestar import Response, delete, get, post, route
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, Parameter, QueryParameter
from msgspec import UNSET

from headrace.model.errors import UnknownStream
from headrace.server.access import Access
from headrace.server.engine import Engine
from headrace.server.http import Call
from headrace.server.routes import captures
from headrace.server.routes.desk import AnyRequest, Desk
from headrace.server.routes.found import SourceRef, found
from headrace.server.routes.slashes import unmarked
from headrace.server.webhooks import Webhooks
from headrace.server.wire.captures import DeletedSource
from headrace.server.wire.common import Listed, Success
from headrace.server.wire.sources import NewSource, Source, SourceSettings, source_of


def routes(engine: Engine, access: Access) -> Sequence[HTTPRouteHandler]:
    """The handlers."""
    desk = Desk(engine, access)

    @post("/sources", summary="Make a source", tags=["Sources"])
    async def create_source(request: AnyRequest, data: Annotated[NewSource, Body()]) -> Response[Source]:
        """201; or 200 if there is one of this name and these settings, and 409 if its settings are others. One that captures
        tables makes its stream, too, unless it exists, and takes a token with `admin` for all streams."""
        stream = await _stream(desk, request, data)
        new = await desk.admin.create_source(data.spec(stream))
        engine.forget()
        return Response(source_of(await desk.admin.source(data.name)), status_code=201 if new else 200)

    @get("/sources", summary="List sources", tags=["Sources"])
    async def list_sources(request: AnyRequest) -> Listed[Source]:
        """All of them, by name."""
        await desk.all(request, "admin")
        return Listed([source_of(info) for info in await desk.admin.sources()])

    @get("/sources/{source:str}", summary="See a source", tags=["Sources"])
    async def read_source(request: AnyRequest, source: SourceRef) -> Source:
        """Its settings, but for its secrets, and how it goes."""
        return source_of(await found(desk, request, source))

    @route(
        "/sources/{source:str}",
        http_method=[HttpMethod.PATCH, HttpMethod.PUT],
        summary="Change a source",
        tags=["Sources"],
        status_code=200,
    )
    async def edit_source(request: AnyRequest, source: SourceRef, data: Annotated[SourceSettings, Body()]) -> Source:
        """What is left out stays as it is, by PUT too. This server heeds it at once, others within two seconds."""
        known = await found(desk, request, source)
        changed = await desk.admin.edit_source(known.id, **data.changes(known.kind))
        engine.forget()
        return source_of(changed)

    @delete("/sources/{source:str}", summary="Remove a source", tags=["Sources"], status_code=200)
    async def delete_source(
        request: AnyRequest,
        source: SourceRef,
        force: Annotated[
            bool, QueryParameter(description="Also if its replication slot or its publication can't be dropped.")
        ] = False,
    ) -> DeletedSource:
        """What it has delivered stays. 409 if it captures tables, and what it has at their database can't be dropped."""
        known = await found(desk, request, source)
        left = await desk.admin.delete_source(known.id, force=force)
        engine.forget()
        return DeletedSource(id=known.id, left=UNSET if left is None else left)

    return [
        create_source,
        list_sources,
        read_source,
        edit_source,
        delete_source,
        *captures.routes(desk),
        _deliver(Webhooks(engine)),
    ]


async def _stream(desk: Desk, request: AnyRequest, data: NewSource) -> str:
    """The name of the stream that a new source is for, once it is known that the caller may."""
    if data.kind == "postgres":  # which reads tables of whatever database, and so is about more than a stream
        await desk.all(request, "admin")
    try:
        return (await desk.stream(request, data.stream, "admin")).name
    except UnknownStream as error:
        if data.kind == "postgres":
            return data.stream
        raise UnknownStream(
            f"There is no stream {data.stream!r}: create it first, a webhook source makes none."
        ) from error


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
