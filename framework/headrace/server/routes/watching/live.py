"""Routes of the live state, for screens that are drawn again each second."""

from __future__ import annotations

from collections.abc import Callable, Collection
from hashlib import blake2b
from inspect import isawaitable
from typing import Annotated, Any, Literal

from litestar import Response
from litestar.params import QueryParameter
from msgspec import Struct
from msgspec.structs import asdict

from headrace.admin.live.snapshot import Snapshot
from headrace.model.conditions.selections import NO_NUL
from headrace.model.watching.live import ConsumerState
from headrace.server.access import methods
from headrace.server.live.pacing import is_first
from headrace.server.routes.context import AnyRequest, Context, RouteContext
from headrace.server.routes.parameters import ConsumerRef, StreamRef, with_query
from headrace.server.routes.watching.live_answers import (
    ConsumerRows,
    Decision,
    LiveAnswer,
    LiveConsumer,
    LiveConsumerAnswer,
    LiveSnapshotAnswer,
    LiveStream,
    LiveStreamAnswer,
    ProcessOfConsumer,
    ProcessRows,
    SourceRows,
    StreamRows,
)
from headrace.server.routes.watching.live_lookups import (
    CONSUMER_KEYS,
    STREAM_KEYS,
    consumer_info,
    consumer_row,
    in_words,
    or_none,
    sorted_page,
    stream_info,
    stream_row,
    summary,
    visible_sources,
)
from headrace.server.slashes import unmarked

_TAGS = ["Live"]
MAX_ROWS = 500

_ETAG = (
    " The answer has an `ETag`. A request with it in `If-None-Match` gets 304 until there is another snapshot. Snapshots are taken at most"
    " once a second, for all requests, and only while there are any."
)

Search = Annotated[
    str | None, QueryParameter(max_length=200, pattern=NO_NUL, description="Only names that contain this text.")
]
OfStream = Annotated[
    str | None,
    QueryParameter(max_length=200, pattern=NO_NUL, description="Only consumers of the stream of this name."),
]
State = Annotated[
    ConsumerState | Literal["ok"] | None,
    QueryParameter(name="state", description="Only consumers in this state. `ok` for those without problems."),
]
_SORT = QueryParameter(description="The field to sort by.")
_STREAM_SORTS = ("name", *(one for one in STREAM_KEYS if one != "name"))
_CONSUMER_SORTS = tuple(CONSUMER_KEYS)


class Rows(Struct, kw_only=True):
    """Which rows of a sorted list."""

    desc: Annotated[
        bool | None,
        QueryParameter(description="Whether the largest comes first. By default it does, unless sorted by name."),
    ] = None
    offset: Annotated[
        int, QueryParameter(ge=0, le=1_000_000, description="How many rows to leave out.", schema_extra={"minimum": 0})
    ] = 0
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_ROWS, description="Maximum number of results.")] = 100


@methods.read(
    "/live",
    summary="Read the live state",
    tags=_TAGS,
    description=f"Returns totals and problems of the streams for which the caller has `consume`.{_ETAG}",
)
async def live(request: AnyRequest, context: Context) -> Response[LiveAnswer]:
    visible = await _visible(context)
    state = context.live
    snapshot = await state.snapshot(first=is_first(request.scope["headers"]))
    return await _answer(request, context, snapshot, visible, lambda: LiveAnswer(summary(state, snapshot, visible)))


@methods.read(
    "/live/snapshot",
    summary="Read the live state of everything",
    tags=_TAGS,
    description="Returns the rows of the streams for which the caller has `consume` and of their consumers, of the sources that it may"
    f" administer, and of the processes with `consume` of all streams.{_ETAG}",
)
async def live_snapshot(request: AnyRequest, context: Context) -> Response[LiveSnapshotAnswer]:
    visible = await _visible(context)
    snapshot = await context.live.snapshot()

    async def make() -> LiveSnapshotAnswer:
        sources = await visible_sources(context, snapshot)
        return LiveSnapshotAnswer(await snapshot.everything(visible, sources, context.live.away, context.live.error))

    return await _answer(request, context, snapshot, visible, make)


@methods.read(
    "/live/streams", summary="List streams live", tags=_TAGS, description=f"Returns the live state of streams.{_ETAG}"
)
@with_query
async def live_streams(
    request: AnyRequest,
    context: Context,
    q: Search = None,
    sort: Annotated[Literal[_STREAM_SORTS], _SORT] = "name",  # type: ignore[valid-type]
    *,
    rows: Rows,
) -> Response[StreamRows]:
    visible = await _visible(context)
    snapshot = await context.live.snapshot()

    def make() -> StreamRows:
        chosen = [
            row
            for row in snapshot.streams.values()
            if (visible is None or row.name in visible) and (not q or q.lower() in row.name.lower())
        ]
        page = sorted_page(snapshot, chosen, STREAM_KEYS[sort], **asdict(rows))
        return StreamRows(data=page, total=len(chosen), at=snapshot.at)

    return await _answer(request, context, snapshot, visible, make)


@methods.read(
    "/live/streams/{stream:str}",
    summary="Read a stream live",
    tags=_TAGS,
    description=f"Returns the live state of a stream, and its settings.{_ETAG}",
)
async def live_stream(request: AnyRequest, context: Context, stream: StreamRef) -> Response[LiveStreamAnswer]:
    snapshot = await context.live.snapshot()
    row = await stream_row(context, snapshot, stream)

    async def make() -> LiveStreamAnswer:
        info = await or_none(lambda: context.live.kept.get(row.id, lambda: stream_info(context, row)))
        snapshot.with_rates(row)
        return LiveStreamAnswer(LiveStream(**asdict(row), info=info), snapshot.at)

    return await _answer(request, context, snapshot, None, make)


@methods.read(
    "/live/consumers",
    summary="List consumers live",
    tags=_TAGS,
    description=f"Returns the live state of consumers.{_ETAG}",
)
@with_query
async def live_consumers(
    request: AnyRequest,
    context: Context,
    q: Search = None,
    stream: OfStream = None,
    status: State = None,
    sort: Annotated[Literal[_CONSUMER_SORTS], _SORT] = "lag",  # type: ignore[valid-type]
    *,
    rows: Rows,
) -> Response[ConsumerRows]:
    visible = await _visible(context)
    snapshot = await context.live.snapshot()
    wanted = "" if status == "ok" else status

    def make() -> ConsumerRows:
        chosen = [
            row
            for row in snapshot.consumers.values()
            if (visible is None or row.stream in visible)
            and (stream is None or row.stream == stream)
            and (wanted is None or row.state == wanted)
            and (not q or q.lower() in f"{row.stream}/{row.name}".lower())
        ]
        page = sorted_page(snapshot, chosen, CONSUMER_KEYS[sort], **asdict(rows))
        return ConsumerRows(data=page, total=len(chosen), at=snapshot.at)

    return await _answer(request, context, snapshot, visible, make)


@methods.read(
    "/live/streams/{stream:str}/consumers/{consumer:str}",
    summary="Read a consumer live",
    tags=_TAGS,
    description=f"Returns the live state of a consumer, its settings, and the processes that work on it.{_ETAG}",
)
async def live_consumer(
    request: AnyRequest, context: Context, stream: StreamRef, consumer: ConsumerRef
) -> Response[LiveConsumerAnswer]:
    snapshot = await context.live.snapshot()
    of = await stream_row(context, snapshot, stream)
    row = consumer_row(snapshot, of, unmarked(consumer))

    async def make() -> LiveConsumerAnswer:
        info = await or_none(lambda: context.live.kept.get(row.id, lambda: consumer_info(context, row)))
        info = None if info is None else await context.visible(info)
        reports = snapshot.reports.get((row.stream, row.name), ())
        snapshot.with_rates(row)
        processes = [ProcessOfConsumer.of(*one) for one in reports]
        governor = [Decision(worker.id, in_words(one.reason, one.actors)) for worker, one in reports]
        found = LiveConsumer(**asdict(row), info=info, processes=processes, governor=governor)
        return LiveConsumerAnswer(found, snapshot.at)

    return await _answer(request, context, snapshot, None, make)


@methods.read(
    "/live/processes",
    summary="List processes live",
    tags=_TAGS,
    description=f"Returns the running processes. It requires `consume` of all streams.{_ETAG}",
)
async def live_processes(request: AnyRequest, context: Context) -> Response[ProcessRows]:
    await context.check_all_streams("consume")
    snapshot = await context.live.snapshot()
    processes = snapshot.processes
    return await _answer(
        request, context, snapshot, None, lambda: ProcessRows(data=processes, total=len(processes), at=snapshot.at)
    )


@methods.read(
    "/live/sources",
    summary="List sources live",
    tags=_TAGS,
    description=f"Returns the live state of sources, those with problems first. It requires `admin` of the streams that they fill.{_ETAG}",
)
async def live_sources(request: AnyRequest, context: Context) -> Response[SourceRows]:
    visible = await context.scope("admin")
    snapshot = await context.live.snapshot()
    sources = await visible_sources(context, snapshot)
    return await _answer(
        request, context, snapshot, visible, lambda: SourceRows(data=sources, total=len(sources), at=snapshot.at)
    )


# --- answers


async def _visible(context: RouteContext) -> Collection[str] | None:
    """The names of the streams that the caller may see, None for all. Raises `Forbidden` if it may see none."""
    visible = await context.scope("consume")
    if visible is not None and not visible:
        await context.check_all_streams("consume")  # raises
    return visible


async def _answer(
    request: AnyRequest,
    context: RouteContext,
    snapshot: Snapshot,
    visible: Collection[str] | None,
    make: Callable[[], Any],
) -> Response[Any]:
    """Answer with the result of `make`, plain or async, or 304 if the caller has it."""
    seen = "" if visible is None else "\n".join(sorted(visible))
    text = f"{request.url.path}?{request.url.query}\n{seen}".encode()
    etag = f'"{context.live.id}-{snapshot.number}-{blake2b(text, digest_size=6).hexdigest()}"'
    known = request.headers.get("if-none-match", "").split(",")
    if etag in (one.strip().removeprefix("W/") for one in known):
        return Response(None, status_code=304, headers={"etag": etag})
    answer = make()
    return Response(await answer if isawaitable(answer) else answer, headers={"etag": etag})
