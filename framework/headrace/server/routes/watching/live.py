"""Routes of the live state, for screens that are drawn again each second."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal, TypeVar

from litestar import Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter
from msgspec import Struct

from headrace.admin.live.snapshot import Snapshot
from headrace.app.heartbeats import process_version
from headrace.model.conditions.selections import NO_NUL
from headrace.model.errors import HeadraceError, UnknownConsumer, UnknownStream
from headrace.model.records import ConsumerInfo, StreamInfo
from headrace.model.watching.live import ConsumerRow, ConsumerState, SourceRow, StreamRow
from headrace.server.access import methods
from headrace.server.live.attention import attention
from headrace.server.live.pacing import is_first
from headrace.server.live.refreshing import LiveState
from headrace.server.routes.context import AnyRequest, Context, RouteContext
from headrace.server.routes.parameters import ConsumerRef, StreamRef, with_query
from headrace.server.routes.watching.live_answers import (
    ConsumerRows,
    DatabaseFacts,
    Decision,
    Live,
    LiveAnswer,
    LiveConsumer,
    LiveConsumerAnswer,
    LiveSnapshotAnswer,
    LiveStream,
    LiveStreamAnswer,
    ProcessOfConsumer,
    ProcessRows,
    ServerFacts,
    SourceRows,
    StreamRows,
)
from headrace.server.slashes import unmarked

_TAGS = ["Live"]
MAX_ROWS = 500

_ETAG = (
    " The answer has an `ETag`. A request with it in `If-None-Match` gets 304 until there is another snapshot. Snapshots are taken at most"
    " once a second, for all who ask, and only while somebody asks."
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
    QueryParameter(name="state", description="Only consumers in this state. `ok` for those that are well."),
]
StreamSort = Annotated[
    Literal["name", "rate", "messages", "size", "lag"], QueryParameter(description="What to sort by.")
]


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


ConsumerSort = Annotated[
    Literal["lag", "lag_seconds", "rate", "in_flight", "dead_letters", "name"],
    QueryParameter(description="What to sort by."),
]


@methods.read(
    "/live",
    summary="Read the live state",
    tags=_TAGS,
    description=f"Returns sums, and what needs somebody, of the streams for which the caller has `consume`.{_ETAG}",
)
async def live(request: AnyRequest, context: Context) -> Response[LiveAnswer]:
    visible = await _visible(context)
    state = context.live
    snapshot = await state.snapshot(first=is_first(request.scope["headers"]))
    return _answer(request, state, snapshot, visible, lambda: LiveAnswer(_summary(state, snapshot, visible)))


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
    if _is_known(request, _etag(request, context.live, snapshot, visible)):
        return _answer(request, context.live, snapshot, visible, lambda: None)
    sources = await _sources(context, snapshot)
    found = await snapshot.everything(visible, sources, context.live.away, context.live.error)
    return _answer(request, context.live, snapshot, visible, lambda: LiveSnapshotAnswer(found))


@methods.read(
    "/live/streams", summary="List streams live", tags=_TAGS, description=f"Returns the live state of streams.{_ETAG}"
)
@with_query
async def live_streams(
    request: AnyRequest, context: Context, q: Search = None, sort: StreamSort = "name", *, rows: Rows
) -> Response[StreamRows]:
    visible = await _visible(context)
    snapshot = await context.live.snapshot()

    def make() -> StreamRows:
        found = [
            one
            for one in snapshot.streams.values()
            if (visible is None or one.name in visible) and (not q or q.lower() in one.name.lower())
        ]
        page = _page(snapshot, found, _STREAM_KEYS[sort], sort, rows)
        return StreamRows(data=page, total=len(found), at=snapshot.at)

    return _answer(request, context.live, snapshot, visible, make)


@methods.read(
    "/live/streams/{stream:str}",
    summary="Read a stream live",
    tags=_TAGS,
    description=f"Returns the live state of a stream, and its settings.{_ETAG}",
)
async def live_stream(request: AnyRequest, context: Context, stream: StreamRef) -> Response[LiveStreamAnswer]:
    snapshot = await context.live.snapshot()
    row = await stream_row(context, snapshot, stream)
    if _is_known(request, _etag(request, context.live, snapshot, None)):
        return _answer(request, context.live, snapshot, None, lambda: None)
    info = await _or_none(lambda: context.live.kept.get(row.id, lambda: _stream_info(context, row)))
    snapshot.with_rates(row)
    found = LiveStream(**_fields(row), info=info)
    return _answer(request, context.live, snapshot, None, lambda: LiveStreamAnswer(found, snapshot.at))


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
    sort: ConsumerSort = "lag",
    *,
    rows: Rows,
) -> Response[ConsumerRows]:
    visible = await _visible(context)
    snapshot = await context.live.snapshot()
    wanted = "" if status == "ok" else status

    def make() -> ConsumerRows:
        found = [
            one
            for one in snapshot.consumers.values()
            if (visible is None or one.stream in visible)
            and (stream is None or one.stream == stream)
            and (wanted is None or one.state == wanted)
            and (not q or q.lower() in f"{one.stream}/{one.name}".lower())
        ]
        page = _page(snapshot, found, _CONSUMER_KEYS[sort], sort, rows)
        return ConsumerRows(data=page, total=len(found), at=snapshot.at)

    return _answer(request, context.live, snapshot, visible, make)


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
    if _is_known(request, _etag(request, context.live, snapshot, None)):
        return _answer(request, context.live, snapshot, None, lambda: None)
    info = await _or_none(lambda: context.live.kept.get(row.id, lambda: _consumer_info(context, row)))
    info = None if info is None else await context.visible(info)
    reports = snapshot.reports.get((row.stream, row.name), ())
    snapshot.with_rates(row)
    processes = [ProcessOfConsumer.of(*one) for one in reports]
    governor = [Decision(worker.id, _in_words(one.reason, one.actors)) for worker, one in reports]
    found = LiveConsumer(**_fields(row), info=info, processes=processes, governor=governor)
    return _answer(request, context.live, snapshot, None, lambda: LiveConsumerAnswer(found, snapshot.at))


@methods.read(
    "/live/processes",
    summary="List processes live",
    tags=_TAGS,
    description=f"Returns the running processes. It requires `consume` of all streams.{_ETAG}",
)
async def live_processes(request: AnyRequest, context: Context) -> Response[ProcessRows]:
    await context.check_all_streams("consume")
    snapshot = await context.live.snapshot()
    found = snapshot.processes
    return _answer(
        request, context.live, snapshot, None, lambda: ProcessRows(data=found, total=len(found), at=snapshot.at)
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
    found = await _sources(context, snapshot)
    return _answer(
        request, context.live, snapshot, visible, lambda: SourceRows(data=found, total=len(found), at=snapshot.at)
    )


async def _sources(context: RouteContext, snapshot: Snapshot) -> list[SourceRow]:
    """The sources that the caller may administer."""
    visible = await context.scope("admin")
    return [one for one in snapshot.sources if visible is None or (one.kind != "postgres" and one.stream in visible)]


def _summary(state: LiveState, snapshot: Snapshot, visible: Collection[str] | None) -> Live:
    streams = [one for one in snapshot.streams.values() if visible is None or one.name in visible]
    consumers = [one for one in snapshot.consumers.values() if visible is None or one.stream in visible]
    # Sources and processes are of all streams.
    sources, processes = (snapshot.sources, snapshot.processes) if visible is None else ([], [])
    facts = state.facts
    version, size, role = (None, None, None) if facts is None else (facts.version, facts.size, facts.role)
    return Live(
        at=snapshot.at,
        server=ServerFacts(
            version=process_version(),
            uptime_seconds=round(state.uptime, 1),
            processes=sum(not one.gone for one in snapshot.processes),
        ),
        database=DatabaseFacts(
            reachable=state.error is None,
            version=version,
            size_bytes=size,
            clock_offset_seconds=state.clock_offset,
            role=None if visible is not None else role,
            error=state.error,
        ),
        totals=snapshot.totals(visible),
        attention=attention(streams, consumers, sources, processes),
        unavailable=sorted(state.away),
    )


# --- one stream or consumer


async def stream_row(context: RouteContext, snapshot: Snapshot, ref: str) -> StreamRow:
    """Look up a stream by its id or name. Raises `Forbidden`, or `UnknownStream`."""
    ref = unmarked(ref)
    row = snapshot.streams.get(ref) or next((one for one in snapshot.streams.values() if one.id == ref), None)
    # Without the scope for all streams, one that doesn't exist gets the same answer as one that the caller may not see. It
    # says what the caller has sent, and never the name behind an id.
    names = await context.scope("consume")
    if names is not None and (row is None or row.name not in names):
        await context.check_stream(ref, "consume")
    if row is None:
        raise UnknownStream(f"The stream {ref!r:.80} does not exist.")
    return row


def consumer_row(snapshot: Snapshot, stream: StreamRow, ref: str) -> ConsumerRow:
    """Look up a consumer by its id or name. Raises `UnknownConsumer`."""
    row = snapshot.consumers.get((stream.name, ref)) or next(
        (one for one in snapshot.consumers.values() if one.id == ref and one.stream == stream.name), None
    )
    if row is None:
        raise UnknownConsumer(f"The stream {stream.name!r} has no consumer {ref!r:.80}.")
    return row


async def _stream_info(context: RouteContext, row: StreamRow) -> StreamInfo:
    engine = await context.engine_of(row.database)
    return await context.admin_of(engine).stream(row.name)


async def _consumer_info(context: RouteContext, row: ConsumerRow) -> ConsumerInfo:
    engine = await context.engine_of(row.database)
    return await context.admin_of(engine).consumer(row.stream, row.name)


async def _or_none(read: Callable[[], Any]) -> Any:
    """Return None if the database doesn't answer, since the last snapshot is shown then."""
    try:
        return await read()
    except (UnknownStream, UnknownConsumer):
        raise
    except HeadraceError:
        return None


def _fields(row: StreamRow | ConsumerRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


def _in_words(reason: str, actors: int) -> str:
    """A decision of the governor as a sentence."""
    counted = f"{actors:,} {'actor' if actors == 1 else 'actors'}"
    return f"{counted}: {reason}." if reason else f"{counted}. The governor has not changed the number yet."


# --- lists

_STREAM_KEYS: dict[str, Callable[[StreamRow], Any]] = {
    "name": lambda one: one.name,
    "rate": lambda one: one.publish_rate or 0.0,
    "messages": lambda one: one.messages or 0,
    "size": lambda one: one.size or 0,
    "lag": lambda one: one.lag,
}

_CONSUMER_KEYS: dict[str, Callable[[ConsumerRow], Any]] = {
    "name": lambda one: (one.stream, one.name),
    "rate": lambda one: one.finish_rate or 0.0,
    "lag": lambda one: one.lag,
    "lag_seconds": lambda one: -1.0 if one.lag_seconds is None else one.lag_seconds,
    "in_flight": lambda one: one.in_flight,
    "dead_letters": lambda one: one.dead_letters,
}

R = TypeVar("R", StreamRow, ConsumerRow)


def _page(snapshot: Snapshot, found: list[R], key: Callable[[R], Any], sort: str, rows: Rows) -> list[R]:
    """Sort rows, in place, and return a page of them with their rates."""
    found.sort(key=_name_of)  # rows that are equal keep the order of their names
    found.sort(key=key, reverse=sort != "name" if rows.desc is None else rows.desc)
    page = found[rows.offset : rows.offset + rows.limit]
    for row in page:
        snapshot.with_rates(row)
    return page


def _name_of(row: StreamRow | ConsumerRow) -> tuple[str, str]:
    return (row.stream, row.name) if isinstance(row, ConsumerRow) else (row.name, "")


# --- answers


async def _visible(context: RouteContext) -> Collection[str] | None:
    """The names of the streams that the caller may see, None for all. Raises `Forbidden` if it may see none."""
    visible = await context.scope("consume")
    if visible is not None and not visible:
        await context.check_all_streams("consume")  # raises
    return visible


def _etag(request: AnyRequest, state: LiveState, snapshot: Snapshot, visible: Collection[str] | None) -> str:
    """The snapshot, the request and what the caller may see."""
    seen = "" if visible is None else "\n".join(sorted(visible))
    text = f"{request.url.path}?{request.url.query}\n{seen}".encode()
    return f'"{state.id}-{snapshot.number}-{blake2b(text, digest_size=6).hexdigest()}"'


def _is_known(request: AnyRequest, etag: str) -> bool:
    given = request.headers.get("if-none-match", "")
    return etag in (one.strip().removeprefix("W/") for one in given.split(","))


def _answer(
    request: AnyRequest, state: LiveState, snapshot: Snapshot, visible: Collection[str] | None, make: Callable[[], Any]
) -> Response[Any]:
    """Answer with the result of `make`, or 304 if the caller has it."""
    etag = _etag(request, state, snapshot, visible)
    if _is_known(request, etag):
        return Response(None, status_code=304, headers={"etag": etag})
    return Response(make(), headers={"etag": etag})


ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    live,
    live_snapshot,
    live_streams,
    live_stream,
    live_consumers,
    live_consumer,
    live_processes,
    live_sources,
)
