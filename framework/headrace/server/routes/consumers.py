"""Routes of consumers: create, list, read, change, delete."""

from __future__ import annotations

from litestar.params import JSONBody

from headrace import store
from headrace.admin.validation import already_exists
from headrace.model.records import ConsumerInfo
from headrace.model.specs import ConsumerSpec
from headrace.server.access import methods
from headrace.server.data_plane.registry import CachedConsumer
from headrace.server.routes.context import Context, RouteContext
from headrace.server.routes.paging import (
    PAGE_SIZE,
    NamePage,
    consumer_of,
    consumer_page_key,
    page,
)
from headrace.server.routes.parameters import ConsumerRef, Force, StreamRef, with_query
from headrace.server.wire.common import Deleted, Listed
from headrace.server.wire.consumer_answers import Consumer
from headrace.server.wire.consumers import ConsumerSettings, NewConsumer, changes

_PATH = "/streams/{stream:str}/consumers/{consumer:str}"


@methods.create("/streams/{stream:str}/consumers", summary="Create a consumer", tags=["Consumers"])
async def create_consumer(context: Context, stream: StreamRef, data: JSONBody[NewConsumer]) -> Consumer:
    """Creates a consumer. A setting may have any of the names that it has in the answer. 409 if the
    stream has a consumer of this name."""
    cached = await context.stream(stream, "admin")
    return Consumer.of(await create(context, data.spec(cached.name, older=context.older)))


@methods.read(
    "/consumers",
    summary="List the consumers of all streams",
    tags=["Consumers"],
    description=f"Returns consumers by stream and name. A page ends once its settings have {PAGE_SIZE}.",
)
@with_query
async def list_all_consumers(context: Context, asked: NamePage) -> Listed[Consumer]:
    await context.check_all_streams("consume")
    consumers, unavailable = await context.consumers(None, asked.at(consumer_of))
    return page(consumers, consumer_page_key, asked, show=Consumer.of, unavailable=unavailable)


@methods.read(
    "/streams/{stream:str}/consumers",
    summary="List a stream's consumers",
    tags=["Consumers"],
    description=f"Returns consumers by name. A page ends once its settings have {PAGE_SIZE}.",
)
@with_query
async def list_consumers(context: Context, stream: StreamRef, asked: NamePage) -> Listed[Consumer]:
    cached = await context.stream(stream, "consume")
    consumers, _ = await context.consumers(cached.name, asked.at(lambda name: (cached.name, name)))
    return page(consumers, lambda info: info.name, asked, show=Consumer.of)


@methods.read(_PATH, summary="Read a consumer", tags=["Consumers"])
async def read_consumer(context: Context, stream: StreamRef, consumer: ConsumerRef) -> Consumer:
    """Returns the consumer's settings, its position and its backlog."""
    cached = await context.consumer(stream, consumer, "consume")
    info = await context.admin.consumer(cached.stream.name, cached.name)
    return Consumer.of(await context.visible(info))


@methods.edit(_PATH, summary="Change a consumer", tags=["Consumers"])
async def edit_consumer(
    context: Context,
    stream: StreamRef,
    consumer: ConsumerRef,
    data: JSONBody[ConsumerSettings],
) -> Consumer:
    """Changes a running consumer. Receivers use the new settings from their next call on.
    Settings that are left out stay, also with PUT."""
    cached = await context.consumer(stream, consumer, "admin")
    return Consumer.of(await edit(context, cached, data))


@methods.remove(_PATH, summary="Delete a consumer", tags=["Consumers"])
async def delete_consumer(context: Context, stream: StreamRef, consumer: ConsumerRef, force: Force = None) -> Deleted:
    """Deletes the consumer with its position and its dead letters. Its leases end, so that late acks
    are stale. With `force=false`, 409 if a worker uses it."""
    return await remove(context, await context.consumer(stream, consumer, "admin"), force)


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
