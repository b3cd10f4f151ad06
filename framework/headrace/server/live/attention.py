"""Problems that need attention: the consumers, streams, sources and processes that are not well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Literal

from msgspec import Struct

from headrace.flow.observed import PROBLEM_STATES
from headrace.model.watching.live import ConsumerRow, ProcessRow, SourceRow, StreamRow

MOST = 100
"""The most entries that are returned."""

_ORDER = (
    "stopped",
    "full",
    "alarm",
    "degraded",
    "breaker",
    "blocked",
    "unattended",
    "gone",
    "waiting",
    "growing",
    "paused",
)
"""States from the worst on."""


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
    return sorted(found, key=lambda one: _ORDER.index(one.state))[:MOST]


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


def _reason(one: ConsumerRow) -> str:
    match one.state:
        case "paused":
            until = "it is resumed" if one.paused_until is None else f"{one.paused_until:%Y-%m-%d %H:%M:%S} UTC"
            return f"It is paused until {until}."
        case "breaker":
            return "Its circuit breaker is open, because its handler or its target failed too often."
        case "blocked":
            return f"{one.blocked:,} messages wait behind dead letters that block their keys."
        case "unattended":
            return f"{one.lag:,} messages wait, and no process works on them."
    return f"Its lag grows. It is {one.lag:,} messages now."


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
                name=f"{one.host}:{one.pid}",
                state="gone",
                reason=reason,
                since=one.seen_at,
            )
        elif one.blocked is not None:
            yield Attention(
                kind="process",
                stream=None,
                name=f"{one.host}:{one.pid}",
                state="blocked",
                reason=f"Nothing in it runs, since its event loop is blocked by {one.blocked}.",
            )
