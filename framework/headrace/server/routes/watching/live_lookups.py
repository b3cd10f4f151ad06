"""Lookups of the live routes in a snapshot, and their order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar

from headrace.admin.live.snapshot import Snapshot
from headrace.app.heartbeats import process_version
from headrace.model.errors import HeadraceError, UnknownConsumer, UnknownStream
from headrace.model.records import ConsumerInfo, StreamInfo
from headrace.model.watching.live import ConsumerRow, SourceRow, StreamRow, Unit, figures
from headrace.server.live.attention import attention
from headrace.server.live.refreshing import LiveState
from headrace.server.routes.context import RouteContext
from headrace.server.routes.watching.live_answers import DatabaseFacts, Live, ServerFacts
from headrace.server.slashes import unmarked


async def visible_sources(context: RouteContext, snapshot: Snapshot) -> list[SourceRow]:
    """The sources that the caller may administer."""
    visible = await context.scope("admin")
    return [one for one in snapshot.sources if visible is None or (one.kind != "postgres" and one.stream in visible)]


def summary(state: LiveState, snapshot: Snapshot, visible: Collection[str] | None) -> Live:
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


async def stream_info(context: RouteContext, row: StreamRow) -> StreamInfo:
    engine = await context.engine_of(row.database)
    return await context.admin_of(engine).stream(row.name)


async def consumer_info(context: RouteContext, row: ConsumerRow) -> ConsumerInfo:
    engine = await context.engine_of(row.database)
    return await context.admin_of(engine).consumer(row.stream, row.name)


async def or_none(read: Callable[[], Any]) -> Any:
    """Return None if the database doesn't answer, since the last snapshot is shown then."""
    try:
        return await read()
    except (UnknownStream, UnknownConsumer):
        raise
    except HeadraceError:
        return None


def in_words(reason: str, actors: int) -> str:
    """A decision of the governor as a sentence."""
    counted = f"{actors:,} {'actor' if actors == 1 else 'actors'}"
    return f"{counted}: {reason}." if reason else f"{counted}. The governor has not changed the number yet."


# --- lists


def sort_keys(row: type[StreamRow] | type[ConsumerRow]) -> dict[str, Callable[[Any], Any]]:
    """Return the keys by which rows are sorted, by their names in the API. Those of figures are described with these."""
    keys = {one.sort: partial(_value, name, one.unit) for name, one in figures(row).items() if one.sort is not None}
    return {**keys, "name": name_of}


def _value(name: str, unit: Unit, row: StreamRow | ConsumerRow) -> float:
    value: float | None = getattr(row, name)
    return (-1.0 if unit == "seconds" else 0.0) if value is None else value


R = TypeVar("R", StreamRow, ConsumerRow)


def sorted_page(
    snapshot: Snapshot, rows: list[R], key: Callable[[R], Any], desc: bool | None, offset: int, limit: int
) -> list[R]:
    """Sort rows, in place, and return a page of them with their rates."""
    rows.sort(key=name_of)  # rows that are equal keep the order of their names
    rows.sort(key=key, reverse=key is not name_of if desc is None else desc)
    page = rows[offset : offset + limit]
    for row in page:
        snapshot.with_rates(row)
    return page


def name_of(row: StreamRow | ConsumerRow) -> tuple[str, str]:
    return (row.stream, row.name) if isinstance(row, ConsumerRow) else (row.name, "")


STREAM_KEYS, CONSUMER_KEYS = sort_keys(StreamRow), sort_keys(ConsumerRow)
