"""Problems that need attention: the consumers, streams, sources and processes that are not well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Literal

from msgspec import Struct

from headrace.flow.observed import PROBLEM_STATES
from headrace.model.text.counting import count
from headrace.model.watching.live import ConsumerRow, ProcessRow, SourceRow, StreamRow
from headrace.model.watching.processes import process_name

MOST = 100
"""The most entries that are returned."""

ORDER = (
    "stopped",
    "full",
    "alarm",
    "degraded",
    "event_loop",
    "breaker",
    "blocked",
    "failing",
    "dead_letters",
    "unattended",
    "gone",
    "waiting",
    "growing",
    "filters",
    "paused",
)
"""States from the worst on. docs/how-to/monitor.md says of each what to do."""


class Attention(Struct, kw_only=True):
    """Something that needs somebody. `mend` is the statement or command that fixes it."""

    kind: Literal["consumer", "stream", "source", "process", "push"]
    stream: str | None
    name: str
    state: str
    reason: str
    mend: str | None = None
    since: datetime | None = None


def attention(
    streams: Iterable[StreamRow],
    consumers: Iterable[ConsumerRow],
    sources: Iterable[SourceRow],
    processes: Iterable[ProcessRow],
) -> list[Attention]:
    """The problems that need attention, the worst first, at most `MOST`."""
    found = [*_streams(streams), *_consumers(consumers), *_sources(sources), *_processes(processes)]
    return sorted(found, key=lambda one: ORDER.index(one.state))[:MOST]


def _streams(streams: Iterable[StreamRow]) -> Iterator[Attention]:
    for one in streams:
        if one.state:
            reason = "Publishing is refused: `max_storage` is reached, and the messages must still be kept."
            yield Attention(kind="stream", stream=one.name, name=one.name, state=one.state, reason=reason)


def _consumers(consumers: Iterable[ConsumerRow]) -> Iterator[Attention]:
    for one in consumers:
        if one.state:
            kind: Literal["push", "consumer"] = "push" if one.kind == "push" and one.state == "breaker" else "consumer"
            mend = f"headrace consumer resume {one.stream} {one.name}" if one.state == "paused" else None
            yield Attention(
                kind=kind, stream=one.stream, name=one.name, state=one.state, reason=_reason(one), mend=mend
            )
        elif one.cause == "filters":
            yield Attention(kind="consumer", stream=one.stream, name=one.name, state="filters", reason=one.why)
        if one.dead_letters and one.state != "blocked":
            yield Attention(
                kind="consumer",
                stream=one.stream,
                name=one.name,
                state="dead_letters",
                reason=f"It has {count(one.dead_letters, 'dead letter')}.",
                mend=f"headrace consumer dead-letters ls {one.stream} {one.name}",
            )


def _reason(one: ConsumerRow) -> str:
    grows = f"Its lag grows. It is {one.lag:,} messages now." if one.state == "growing" else ""
    return f"{grows} {one.why}".strip()


def _sources(sources: Iterable[SourceRow]) -> Iterator[Attention]:
    for one in sources:
        if one.state in PROBLEM_STATES:
            yield Attention(
                kind="source",
                stream=one.stream,
                name=one.name,
                state=one.state,
                reason=one.reason or "No process captures it.",
                mend=one.mend,
                since=one.since,
            )


def _processes(processes: Iterable[ProcessRow]) -> Iterator[Attention]:
    for one in processes:
        if one.gone:
            reason = "It no longer sends heartbeats, and did not shut down cleanly."
            yield Attention(
                kind="process",
                stream=None,
                name=process_name(one.host, one.pid),
                state="gone",
                reason=reason,
                since=one.seen_at,
            )
        elif one.blocked is not None:
            yield Attention(
                kind="process",
                stream=None,
                name=process_name(one.host, one.pid),
                state="event_loop",
                reason=f"Nothing in it runs, since its event loop is blocked by {one.blocked}.",
            )
