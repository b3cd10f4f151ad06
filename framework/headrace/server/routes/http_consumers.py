"""Routes of the consume API's consumers: create, list, read, change, delete, without naming their streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from litestar import delete, get, post, route
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from msgspec import UNSET, Meta, UnsetType

from headrace.admin import MAX_LIMIT
from headrace.server.errors import Problem
from headrace.server.routes.consumers import all_consumers, create, edit, remove
from headrace.server.routes.context import AnyRequest, Context, RouteContext
from headrace.server.routes.paging import PAGE_SIZE, AfterName, BeforeName, ListLimit, page, place_of
from headrace.server.routes.parameters import AnyConsumerRef, Force
from headrace.server.wire.common import Deleted, Listed
from headrace.server.wire.consumer_answers import HttpConsumer
from headrace.server.wire.consumers import ConsumerSettings, NewConsumer

_PATH = "/http-consumers/{consumer:str}"


class NewHttpConsumer(NewConsumer, kw_only=True, forbid_unknown_fields=True):
    """A consumer to be created."""

    stream: Annotated[
        str | UnsetType, Meta(description="Id or name of its stream. Optional while there is only one stream.")
    ] = UNSET


@post("/http-consumers", effect="change", summary="Create a consumer", tags=["Consume API"])
async def create_http_consumer(request: AnyRequest, context: Context, data: JSONBody[NewHttpConsumer]) -> HttpConsumer:
    """Creates a consumer. `filters` are top-level fields of the messages' data and the values that they must
    have. `*` matches anything."""
    cached = await context.stream(request, await _stream(context, request, data), "admin")
    data.stream = UNSET
    return HttpConsumer.of(await create(context, data.spec(cached.name, records=True)))


@get(
    "/http-consumers",
    effect="read",
    summary="List consumers",
    tags=["Consume API"],
    description=f"Returns the consumers of all streams, by stream and name. A page ends once its settings have {PAGE_SIZE}.",
)
async def list_http_consumers(
    request: AnyRequest,
    context: Context,
    limit: ListLimit = MAX_LIMIT,
    after: AfterName = None,
    before: BeforeName = None,
) -> Listed[HttpConsumer]:
    await context.check_all_streams(request, "consume")
    found, away = await all_consumers(context, request, limit, after, before)
    return page(found, place_of, after=after, before=before, show=HttpConsumer.of, unavailable=away)


@get(_PATH, effect="read", summary="Read a consumer", tags=["Consume API"])
async def read_http_consumer(request: AnyRequest, context: Context, consumer: AnyConsumerRef) -> HttpConsumer:
    """Returns the consumer's settings. Filters that were `*` are left out."""
    cached = await context.consumer_anywhere(request, consumer, "consume")
    info = await context.admin.consumer(cached.stream.name, cached.name)
    return HttpConsumer.of(await context.visible(request, info))


@route(_PATH, http_method=[HttpMethod.PATCH, HttpMethod.PUT], effect="change", summary="Change a consumer", tags=["Consume API"],
       status_code=200)  # fmt: skip
async def edit_http_consumer(
    request: AnyRequest, context: Context, consumer: AnyConsumerRef, data: JSONBody[ConsumerSettings]
) -> HttpConsumer:
    """Changes a running consumer. Settings that are left out stay, also with PUT."""
    cached = await context.consumer_anywhere(request, consumer, "admin")
    return HttpConsumer.of(await edit(context, cached, data, records=True))


@delete(_PATH, effect="change", summary="Delete a consumer", tags=["Consume API"], status_code=200)
async def delete_http_consumer(
    request: AnyRequest, context: Context, consumer: AnyConsumerRef, force: Force = None
) -> Deleted:
    """Deletes the consumer. Its leases end. With `force=false`, 409 if a worker uses it."""
    return await remove(context, await context.consumer_anywhere(request, consumer, "admin"), force)


async def _stream(context: RouteContext, request: AnyRequest, data: NewHttpConsumer) -> str:
    """Return the stream of a new consumer. Raises a `Problem` if it must be named."""
    if data.stream is not UNSET:
        return str(data.stream)
    names = await context.streams(request, "admin")
    if len(names) == 1:
        return names[0]
    if names:
        remedy = f"Name one of the streams: {', '.join(names[:20])}."
    else:
        remedy = "Create a stream first, by POST to /v1/streams."
    raise Problem(
        422,
        "invalid",
        f"`stream` is missing, and there are {len(names)} streams. {remedy}",
        validation_errors={"stream": [remedy]},
    )


ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    create_http_consumer,
    list_http_consumers,
    read_http_consumer,
    edit_http_consumer,
    delete_http_consumer,
)
