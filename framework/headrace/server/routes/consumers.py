"""Routes of consumers: create, list, read, change, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from litestar import delete, get, post, route
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from headrace import store
from headrace.admin import MAX_LIMIT
from headrace.admin.validation import already_exists
from headrace.model.pages import Page
from headrace.model.records import ConsumerInfo
from headrace.model.specs import ConsumerSpec
from headrace.server.data_plane.registry import CachedConsumer
from headrace.server.routes.context import AnyRequest, Context, RouteContext
from headrace.server.routes.paging import (
    PAGE_SIZE,
    AfterName,
    BeforeName,
    ListLimit,
    check_one_place,
    consumer_place,
    page,
    place_of,
)
from headrace.server.routes.parameters import ConsumerRef, Force, StreamRef
from headrace.server.wire.common import Deleted, Listed
from headrace.server.wire.consumer_answers import Consumer
from headrace.server.wire.consumers import ConsumerSettings, NewConsumer, changes

_PATH = "/streams/{stream:str}/consumers/{consumer:str}"


@post("/streams/{stream:str}/consumers", effect="change", summary="Create a consumer", tags=["Consumers"])
async def create_consumer(
    request: AnyRequest, context: Context, stream: StreamRef, data: JSONBody[NewConsumer]
) -> Consumer:
    """Creates a consumer. A setting may have any of the names that it has in the answer. 409 if the
    stream has a consumer of this name."""
    cached = await context.stream(request, stream, "admin")
    return Consumer.of(await create(context, data.spec(cached.name)))


@get(
    "/consumers",
    effect="read",
    summary="List the consumers of all streams",
    tags=["Consumers"],
    description=f"Returns consumers by stream and name. A page ends once its settings have {PAGE_SIZE}.",
)
async def list_all_consumers(
    request: AnyRequest,
    context: Context,
    limit: ListLimit = MAX_LIMIT,
    after: AfterName = None,
    before: BeforeName = None,
) -> Listed[Consumer]:
    await context.check_all_streams(request, "consume")
    found, away = await all_consumers(context, request, limit, after, before)
    return page(found, place_of, after=after, before=before, show=Consumer.of, unavailable=away)


@get(
    "/streams/{stream:str}/consumers",
    effect="read",
    summary="List a stream's consumers",
    tags=["Consumers"],
    description=f"Returns consumers by name. A page ends once its settings have {PAGE_SIZE}.",
)
async def list_consumers(
    request: AnyRequest,
    context: Context,
    stream: StreamRef,
    limit: ListLimit = MAX_LIMIT,
    after: AfterName = None,
    before: BeforeName = None,
) -> Listed[Consumer]:
    check_one_place(after, before)
    cached = await context.stream(request, stream, "consume")
    found, _ = await context.consumers(
        request, cached.name, limit=limit, after=None if after is None else (cached.name, after),
        before=None if before is None else (cached.name, before),
    )  # fmt: skip
    return page(found, lambda info: info.name, after=after, before=before, show=Consumer.of)


@get(_PATH, effect="read", summary="Read a consumer", tags=["Consumers"])
async def read_consumer(request: AnyRequest, context: Context, stream: StreamRef, consumer: ConsumerRef) -> Consumer:
    """Returns the consumer's settings, its position and its backlog."""
    cached = await context.consumer(request, stream, consumer, "consume")
    info = await context.admin.consumer(cached.stream.name, cached.name)
    return Consumer.of(await context.visible(request, info))


@route(_PATH, http_method=[HttpMethod.PATCH, HttpMethod.PUT], effect="change", summary="Change a consumer", tags=["Consumers"],
       status_code=200)  # fmt: skip
async def edit_consumer(
    request: AnyRequest,
    context: Context,
    stream: StreamRef,
    consumer: ConsumerRef,
    data: JSONBody[ConsumerSettings],
) -> Consumer:
    """Changes a running consumer. Receivers use the new settings from their next call on.
    Settings that are left out stay, also with PUT."""
    cached = await context.consumer(request, stream, consumer, "admin")
    return Consumer.of(await edit(context, cached, data))


@delete(_PATH, effect="change", summary="Delete a consumer", tags=["Consumers"], status_code=200)
async def delete_consumer(
    request: AnyRequest, context: Context, stream: StreamRef, consumer: ConsumerRef, force: Force = None
) -> Deleted:
    """Deletes the consumer with its position and its dead letters. Its leases end, so that late acks
    are stale. With `force=false`, 409 if a worker uses it."""
    return await remove(context, await context.consumer(request, stream, consumer, "admin"), force)


async def all_consumers(
    context: RouteContext, request: AnyRequest, limit: int, after: str | None, before: str | None
) -> tuple[Page[ConsumerInfo], list[str]]:
    """Read a page of the consumers of all streams, as the caller may see them. See `RouteContext.consumers`."""
    check_one_place(after, before)
    return await context.consumers(
        request, None, limit=limit, after=consumer_place(after), before=consumer_place(before)
    )


async def create(context: RouteContext, spec: ConsumerSpec) -> ConsumerInfo:
    """Create a consumer. Raises `AlreadyExists` if it exists."""
    if not await context.admin.create_consumer(spec):
        raise already_exists(f"The consumer {spec.name!r} of the stream {spec.stream!r}", {})
    context.engine.clear_caches()
    return await context.admin.consumer(spec.stream, spec.name)


async def edit(
    context: RouteContext, cached: CachedConsumer, data: ConsumerSettings, *, records: bool = False
) -> ConsumerInfo:
    """Change a consumer. `records` is as in `NewConsumer.spec`."""
    before, _ = await store.consumer_spec(context.engine.app.database, cached.number)
    await context.admin.edit_consumer(
        cached.stream.name, cached.name, **changes(data, before, cached.stream.name if records else None)
    )
    context.engine.clear_caches()
    return await context.admin.consumer(cached.stream.name, cached.name)


async def remove(context: RouteContext, cached: CachedConsumer, force: bool | None) -> Deleted:
    """Delete a consumer, also while workers use it, unless `force` is False."""
    await context.admin.delete_consumer(cached.stream.name, cached.name, force=force is not False)
    context.engine.clear_caches()
    return Deleted(cached.id)


ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    create_consumer,
    list_all_consumers,
    list_consumers,
    read_consumer,
    edit_consumer,
    delete_consumer,
)
