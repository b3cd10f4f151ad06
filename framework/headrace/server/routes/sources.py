"""Routes of sources: create, list, read, change, delete, and the declaration of the webhook
endpoint.

`headrace.server.dialects.webhooks` receives the deliveries of webhooks.
"""

from __future__ import annotations

from typing import Annotated

from litestar import Response, post
from litestar.params import Body, Parameter, QueryParameter
from msgspec import UNSET
from msgspec.structs import asdict

from headrace import store
from headrace.admin.validation import MAX_ANSWER_BYTES, already_exists
from headrace.model.errors import AlreadyExists, UnknownStream
from headrace.model.pages import Page, PageRequest
from headrace.model.sources import SourceInfo
from headrace.model.watching.operations import WebhookDelivery
from headrace.server.access import methods
from headrace.server.claims import claimed
from headrace.server.engine import Engine
from headrace.server.merging import merged_page
from headrace.server.routes.context import AnyRequest, Context, RouteContext, call
from headrace.server.routes.paging import PAGE_SIZE, NamePage, page
from headrace.server.routes.parameters import Limit, SourceRef, with_query
from headrace.server.wire.captures import DeletedSource
from headrace.server.wire.common import Listed, Success
from headrace.server.wire.sources import NewSource, Source, SourceSettings, source_of


@methods.create("/sources", summary="Create a source", tags=["Sources"])
async def create_source(context: Context, data: Annotated[NewSource, Body()]) -> Source:
    """Creates a source. 409 if a source of this name exists. A source that captures tables also creates its stream unless that exists,
    which needs `into_existing` if the stream has messages or consumers,
    and requires a token with `admin` for all streams."""
    stream = await _stream(context, data)
    spec = data.spec(stream)
    context.engine.transforms.check_settings(spec.settings())
    try:
        async with claimed(context.engine, "source", spec.name):
            if not await context.admin.create_source(spec, into_existing=data.into_existing):
                raise already_exists(f"The source {data.name!r}", {})
    except AlreadyExists as error:
        if "stream" in error.differing and await context.scope("admin") is not None:
            # Nothing but that the name is taken, which the URL of every webhook shows.
            raise AlreadyExists(f"The source name {data.name!r} is taken. Choose another name.") from error
        raise
    context.engine.clear_caches()
    return source_of(await context.admin.source(data.name))


def _name(info: SourceInfo) -> str:
    return info.name


@methods.read(
    "/sources",
    summary="List sources",
    tags=["Sources"],
    description=f"Returns sources by name. A page ends once its settings have {PAGE_SIZE}.",
)
@with_query
async def list_sources(context: Context, asked: NamePage) -> Listed[Source]:
    await context.check_all_streams("admin")

    async def read(engine: Engine, asked: PageRequest[str]) -> Page[SourceInfo]:
        return await store.sources(engine.app.database, **asdict(asked), max_bytes=MAX_ANSWER_BYTES)

    sources, unavailable = await merged_page(context.engine, read, asked, kind="source", name=_name, place=_name)
    return page(sources, _name, asked, show=source_of, unavailable=unavailable)


@methods.read("/sources/{source:str}", summary="Read a source", tags=["Sources"])
async def read_source(context: Context, source: SourceRef) -> Source:
    """Returns the source's settings, without its secrets, and its state."""
    return source_of(await context.source(source))


@methods.read("/sources/{source:str}/deliveries", summary="List deliveries to a webhook", tags=["Sources"])
async def list_deliveries(context: Context, source: SourceRef, limit: Limit = 50) -> Listed[WebhookDelivery]:
    """Returns the last deliveries, accepted and refused, the newest first, without what they contained. 100 of them are kept, and
    the last 20 of each second. 422 for a source that captures tables."""
    info = await context.source(source)
    return Listed(await context.admin.deliveries(info.id, limit=limit))


@methods.edit("/sources/{source:str}", summary="Change a source", tags=["Sources"])
async def edit_source(context: Context, source: SourceRef, data: Annotated[SourceSettings, Body()]) -> Source:
    """Changes settings of a source. Settings that are left out stay, also with PUT. Among `secrets`, `…` stands for
    the secrets that the source has. This server applies the change immediately, others within two seconds."""
    info = await context.source(source)
    changes = data.changes(info.kind)
    context.engine.transforms.check_settings(changes, info.settings)
    changed = await context.admin.edit_source(info.id, **changes)
    context.engine.clear_caches()
    return source_of(changed)


@methods.remove("/sources/{source:str}", summary="Delete a source", tags=["Sources"])
async def delete_source(
    context: Context,
    source: SourceRef,
    force: Annotated[
        bool, QueryParameter(description="Delete it although its replication slot or publication can't be dropped.")
    ] = False,
) -> DeletedSource:
    """Deletes the source. Published messages stay. 409 if the source captures tables, and its replication slot
    or publication can't be dropped, unless forced."""
    info = await context.source(source)
    left = await context.admin.delete_source(info.id, force=force)
    if context.engine.names is not None:
        await context.engine.names.forget("source", info.name)
    context.engine.clear_caches()
    return DeletedSource(id=info.id, left=UNSET if left is None else left)


async def _stream(context: RouteContext, data: NewSource) -> str:
    """Return the name of a new source's stream, after checking the caller's access."""
    if data.kind == "postgres":  # reads tables of any database, so it concerns more than one stream
        await context.check_all_streams("admin")
    try:
        return (await context.stream(data.stream, "admin")).name
    except UnknownStream as error:
        if data.kind == "postgres":
            return data.stream
        raise UnknownStream(
            f"The stream {data.stream!r} does not exist. Create it first, since a webhook source does not create its stream."
        ) from error


@post("/webhook/{source:str}", effect="unchecked", summary="Deliver a webhook", tags=["Sources"], status_code=200)
async def deliver(
    request: AnyRequest, context: Context, source: Annotated[str, Parameter(description="Name of a webhook source.")]
) -> Response[Success]:
    """Publishes a delivery. The body may be anything. No token is needed. 401 if the source requires a signature
    and the request has none or an invalid one. The answer is sent after the commit."""
    return await call(request, context.webhooks.deliver, source)
