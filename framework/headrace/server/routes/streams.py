"""Routes of streams: create, list, read, change, delete."""

from __future__ import annotations

from typing import Annotated

from litestar.params import JSONBody, QueryParameter
from msgspec.structs import asdict

from headrace import store
from headrace.admin import streams as administration
from headrace.admin.validation import already_exists
from headrace.model.pages import Page, PageRequest
from headrace.model.records import StreamInfo
from headrace.server.access import methods
from headrace.server.claims import claimed
from headrace.server.engine import Engine
from headrace.server.merging import merged_page
from headrace.server.routes.context import Context, located
from headrace.server.routes.paging import NamePage, page
from headrace.server.routes.parameters import StreamRef, with_query
from headrace.server.wire.common import Deleted, Listed
from headrace.server.wire.streams import NewStream, Stream, StreamSettings, changes


def _name(info: StreamInfo) -> str:
    return info.name


@methods.create("/streams", summary="Create a stream", tags=["Streams"])
async def create_stream(context: Context, data: JSONBody[NewStream]) -> Stream:
    """Creates a stream, in a further database if one is named. 409 if a stream of this name exists in any database."""
    await context.check_stream(data.name, "admin")
    engine, database, spec = context.engine, data.database, data.spec()
    target = engine if database is None or engine.further is None else await engine.further.engine(database)
    async with claimed(target, "stream", spec.name):
        if not await context.admin_of(target).create_stream(spec):
            raise already_exists(f"The stream {spec.name!r}", {})
    target.clear_caches()
    return Stream.of(located(target, await context.admin_of(target).stream(spec.name)))


@methods.read("/streams", summary="List streams", tags=["Streams"])
@with_query
async def list_streams(context: Context, asked: NamePage) -> Listed[Stream]:
    """Returns streams by name."""
    await context.check_all_streams("consume")

    async def read(engine: Engine, asked: PageRequest[str]) -> Page[StreamInfo]:
        streams = await store.streams(engine.app.database, **asdict(asked))
        return Page((located(engine, info) for info in streams), more=streams.more)

    streams, unavailable = await merged_page(context.engine, read, asked, kind="stream", name=_name, place=_name)
    return page(streams, _name, asked, show=Stream.of, unavailable=unavailable)


@methods.read("/streams/{stream:str}", summary="Read a stream", tags=["Streams"])
async def read_stream(context: Context, stream: StreamRef) -> Stream:
    """Returns the stream's settings and its size."""
    cached = await context.stream(stream, "consume")
    return Stream.of(context.located(await context.admin.stream(cached.name)))


@methods.edit("/streams/{stream:str}", summary="Change a stream", tags=["Streams"])
async def edit_stream(context: Context, stream: StreamRef, data: JSONBody[StreamSettings]) -> Stream:
    """Changes settings of a stream. Settings that are left out stay, also with PUT."""
    cached = await context.stream(stream, "admin")
    await context.admin.edit_stream(cached.name, **changes(data, await context.admin.stream(cached.name)))
    return Stream.of(context.located(await context.admin.stream(cached.name)))


@methods.remove("/streams/{stream:str}", summary="Delete a stream", tags=["Streams"])
async def delete_stream(
    context: Context,
    stream: StreamRef,
    force: Annotated[
        bool | None,
        QueryParameter(
            description="`true` deletes its webhooks, too. `false` refuses with 409 while a worker uses one of its"
            " consumers. By default only a source that fills it refuses."
        ),
    ] = None,
) -> Deleted:
    """Deletes the stream with its messages and consumers. The leases of its consumers end, so that late
    acks are stale. 409 if a source fills it."""
    cached = await context.stream(stream, "admin")
    await administration.delete_stream(context.admin, cached.name, force=force is True, end_leases=force is not False)
    if context.engine.names is not None:
        await context.engine.names.forget("stream", cached.name)
    context.engine.clear_caches()
    return Deleted(cached.id)
