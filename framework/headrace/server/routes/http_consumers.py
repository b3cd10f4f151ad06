"""Routes of the consume API's consumers: create, list, read, change, delete, without naming their streams."""

from __future__ import annotations

from typing import Annotated

from litestar.params import JSONBody
from msgspec import UNSET, Meta, UnsetType

from headrace.server.access import methods
from headrace.server.errors import invalid
from headrace.server.routes.consumers import create, edit, remove
from headrace.server.routes.context import Context, RouteContext
from headrace.server.routes.paging import PAGE_SIZE, NamePage, consumer_of, consumer_page_key, page
from headrace.server.routes.parameters import AnyConsumerRef, Force, with_query
from headrace.server.wire.common import Deleted, Listed
from headrace.server.wire.consumer_answers import HttpConsumer
from headrace.server.wire.consumers import ConsumerSettings, NewConsumer

_PATH = "/http-consumers/{consumer:str}"


class NewHttpConsumer(NewConsumer, kw_only=True, forbid_unknown_fields=True):
    """A consumer to be created."""

    stream: Annotated[
        str | UnsetType, Meta(description="Id or name of its stream. Optional while there is only one stream.")
    ] = UNSET


@methods.create("/http-consumers", summary="Create a consumer", tags=["Consume API"])
async def create_http_consumer(context: Context, data: JSONBody[NewHttpConsumer]) -> HttpConsumer:
    """Creates a consumer. `filters` are top-level fields of the messages' data and the values that they must
    have. `*` matches anything."""
    cached = await context.stream(await _stream(context, data), "admin")
    data.stream = UNSET
    return HttpConsumer.of(await create(context, data.spec(cached.name, records=True, older=context.older)))


@methods.read(
    "/http-consumers",
    summary="List consumers",
    tags=["Consume API"],
    description=f"Returns the consumers of all streams, by stream and name. A page ends once its settings have {PAGE_SIZE}.",
)
@with_query
async def list_http_consumers(context: Context, asked: NamePage) -> Listed[HttpConsumer]:
    await context.check_all_streams("consume")
    consumers, away = await context.consumers(None, asked.at(consumer_of))
    return page(consumers, consumer_page_key, asked, show=HttpConsumer.of, unavailable=away)


@methods.read(_PATH, summary="Read a consumer", tags=["Consume API"])
async def read_http_consumer(context: Context, consumer: AnyConsumerRef) -> HttpConsumer:
    """Returns the consumer's settings."""
    cached = await context.consumer_anywhere(consumer, "consume")
    info = await context.admin.consumer(cached.stream.name, cached.name)
    return HttpConsumer.of(await context.visible(info))


@methods.edit(_PATH, summary="Change a consumer", tags=["Consume API"])
async def edit_http_consumer(
    context: Context, consumer: AnyConsumerRef, data: JSONBody[ConsumerSettings]
) -> HttpConsumer:
    """Changes a running consumer. Settings that are left out stay, also with PUT."""
    cached = await context.consumer_anywhere(consumer, "admin")
    return HttpConsumer.of(await edit(context, cached, data, records=True))


@methods.remove(_PATH, summary="Delete a consumer", tags=["Consume API"])
async def delete_http_consumer(context: Context, consumer: AnyConsumerRef, force: Force = None) -> Deleted:
    """Deletes the consumer. Its leases end. With `force=false`, 409 if a worker uses it."""
    return await remove(context, await context.consumer_anywhere(consumer, "admin"), force)


async def _stream(context: RouteContext, data: NewHttpConsumer) -> str:
    """Return the stream of a new consumer. Raises a `Problem` if it must be named."""
    if data.stream is not UNSET:
        return str(data.stream)
    names = await context.streams("admin")
    if len(names) == 1:
        return names[0]
    if names:
        remedy = f"Name one of the streams: {', '.join(names[:20])}."
    else:
        remedy = "Create a stream first, by POST to /v1/streams."
    raise invalid(f"`stream` is missing, and there are {len(names)} streams. {remedy}", "stream", remedy)
