"""The columns of the tables of streams, consumers and processes, and the selection of those that fit a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec
from rich.cells import cell_len
from rich.text import Text

from headrace.cli.observe.figures import (
    BAD,
    FAINT,
    GOOD,
    HELD,
    STRONG,
    STUCK,
    WARN,
    bytes_of,
    lasting,
    pace,
    short,
    sparkline,
)
from headrace.cli.observe.history import ConsumerLine, State, StreamLine, WorkerLine
from headrace.cli.output.tables import printable

Line = TypeVar("Line")


class Column(msgspec.Struct, Generic[Line], frozen=True, kw_only=True):
    """A column of a table.

    Args:
        label: its heading.
        width: its minimum width, in columns of the terminal.
        most: its maximum width, if there is room.
        needs: the width that a line needs. If it is set, the column doesn't grow beyond it.
        cell: the content for a line, given the width.
        by: the sort key. Numbers sort with the largest first, texts from A to Z. None if the column is
            not sortable.
        right: whether it is aligned to the right, as numbers are.
        rank: columns with a higher rank are left out first and grow last. 0 is never left out.
    """

    label: str
    width: int
    cell: Callable[[Line, int], str | Text]
    by: Callable[[Line], Any] | None = None
    most: int = 0
    needs: Callable[[Line], int] | None = None
    right: bool = False
    rank: int = 0


def fit(columns: Sequence[Column[Line]], width: int, lines: Sequence[Line] = ()) -> list[tuple[Column[Line], int]]:
    """The columns that fit `width`, with their widths. Columns that can grow share the remaining width."""
    kept = list(columns)
    while sum(column.width + 1 for column in kept) > width and any(column.rank for column in kept):
        kept.remove(max(kept, key=lambda column: column.rank))
    widths = {column.label: column.width for column in kept}
    left = width - sum(each + 1 for each in widths.values())
    for column in sorted(kept, key=lambda column: column.rank):
        most = column.most
        if column.needs is not None:
            most = min(most, max(map(column.needs, lines), default=0))
        more = max(0, min(left, most - column.width))
        widths[column.label] += more
        left -= more
    return [(column, widths[column.label]) for column in kept]


def number(value: float, style: str = "") -> Text:
    """Format a count. Zero is faint."""
    return Text(short(value), style if value else FAINT)


def rate_of(rate: float | None) -> Text:
    """Format a rate. Zero is faint."""
    return Text(pace(rate), GOOD if rate else FAINT)


def bars(values: Sequence[float], width: int, style: str) -> Text:
    """Format recent values as a sparkline. It is faint if all are zero."""
    return Text(sparkline(values, width), style if any(list(values)[-width:]) else FAINT)


# --- streams

STREAMS: Sequence[Column[StreamLine]] = (
    Column(label="stream", width=14, most=40, needs=lambda s: cell_len(s.info.name), cell=lambda s, _: Text(printable(s.info.name), STRONG), by=lambda s: s.info.name),
    Column(label="messages", width=8, right=True, cell=lambda s, _: number(s.info.messages), by=lambda s: s.info.messages),
    Column(label="in/s", width=7, right=True, cell=lambda s, _: rate_of(s.rate), by=lambda s: s.rate or 0),
    Column(label="size", width=7, right=True, cell=lambda s, _: bytes_of(s.info.size), by=lambda s: s.info.size),
    Column(label="last seq", width=9, right=True, rank=3, cell=lambda s, _: number(s.info.last_seq or 0)),
    Column(label="cons", width=4, right=True, rank=1, cell=lambda s, _: number(s.info.consumers), by=lambda s: s.info.consumers),
    Column(label="later", width=6, right=True, rank=4, cell=lambda s, _: number(s.info.scheduled), by=lambda s: s.info.scheduled),
    Column(label="in/s lately", width=12, most=60, rank=2, cell=lambda s, width: bars(s.rates, width, GOOD)),
    Column(label="keeps", width=10, most=26, rank=1, cell=lambda s, _: _stream_state(s)),
)  # fmt: skip


def _stream_state(line: StreamLine) -> Text:
    """Whether the stream is full, or else its retention."""
    info = line.info
    if info.full:
        return Text("full: publishing is refused", BAD)
    kept = [
        "" if info.retain_up_to is None else lasting(info.retain_up_to),
        "" if info.max_storage is None else bytes_of(info.max_storage),
        "one per key" if info.one_message_per_key else "",
        "what is needed" if info.retention == "interest" else "",
    ]
    return Text(", ".join(filter(None, kept)) or "everything", FAINT)


# --- consumers

WORDS: dict[State, tuple[str, str]] = {
    "": ("", ""),
    "paused": ("paused", HELD),
    "breaker": ("breaker", BAD),
    "blocked": ("blocked", STUCK),
    "unattended": ("no worker", WARN),
    "growing": ("lag grows", WARN),
    "full": ("full", BAD),
}

CONSUMERS: Sequence[Column[ConsumerLine]] = (
    Column(label="stream", width=10, most=30, needs=lambda c: cell_len(c.info.stream), cell=lambda c, _: c.info.stream, by=lambda c: c.info.stream),
    Column(label="consumer", width=11, most=40, needs=lambda c: cell_len(c.info.name), cell=lambda c, _: Text(printable(c.info.name), STRONG), by=lambda c: c.info.name),
    Column(label="lag", width=7, right=True, cell=lambda c, _: number(c.info.lag, WARN if c.state in ("growing", "unattended") else ""),
           by=lambda c: c.info.lag),
    Column(label="done/s", width=6, right=True, cell=lambda c, _: rate_of(c.rate), by=lambda c: c.rate or 0),
    Column(label="flight", width=6, right=True, cell=lambda c, _: number(c.info.num_ack_pending), by=lambda c: c.info.num_ack_pending),
    Column(label="parked", width=6, right=True, cell=lambda c, _: number(c.info.parked), by=lambda c: c.info.parked),
    Column(label="block", width=5, right=True, cell=lambda c, _: number(c.info.blocked, STUCK), by=lambda c: c.info.blocked),
    Column(label="dead", width=5, right=True, cell=lambda c, _: number(c.info.dead_letters, BAD), by=lambda c: c.info.dead_letters),
    Column(label="actors", width=7, right=True, rank=2, cell=lambda c, _: _actors(c.busy, c.actors), by=lambda c: c.actors or 0),
    Column(label="lag lately", width=11, most=60, rank=3,
           cell=lambda c, width: bars(c.lags, width, WARN if c.state == "growing" else HELD)),
    Column(label="state", width=9, cell=lambda c, _: Text(*WORDS[c.state]), by=lambda c: WORDS[c.state][0]),
    Column(label="why", width=20, most=52, rank=1, cell=lambda c, _: _why(c)),
)  # fmt: skip


def _actors(busy: int, actors: int | None) -> Text:
    return Text("–", FAINT) if actors is None else Text(f"{busy}/{actors}", "" if busy else FAINT)


def _why(line: ConsumerLine) -> Text:
    """The state in more words, or else the reason for the number of actors."""
    if line.info.paused_until is not None:
        return Text(f"paused {until(line.info.paused_until)}", HELD)
    if line.breaker:
        return Text("its breaker is open: handlers failed in a row", BAD)
    return Text(printable(line.reason), FAINT)


def until(moment: datetime) -> str:
    """Format the end of a pause."""
    return "until resumed" if moment.year == 9999 else f"until {moment:%Y-%m-%d %H:%M:%S}Z"


# --- processes

WORKERS: Sequence[Column[WorkerLine]] = (
    Column(label="process", width=16, most=40, needs=lambda w: cell_len(w.info.host) + 8, cell=lambda w, _: Text(f"{printable(w.info.host)}:{w.info.pid}", STRONG),
           by=lambda w: (w.info.host, w.info.pid)),
    Column(label="kind", width=8, cell=lambda w, _: w.info.kind, by=lambda w: w.info.kind),
    Column(label="up", width=4, right=True, cell=lambda w, _: lasting(w.age), by=lambda w: w.age),
    Column(label="cons", width=4, right=True, cell=lambda w, _: number(len(w.info.consumers) + w.info.more_consumers),
           by=lambda w: len(w.info.consumers)),
    Column(label="actors", width=7, right=True, cell=lambda w, _: _actors(w.busy, w.actors), by=lambda w: w.actors),
    Column(label="msg/s", width=6, right=True, cell=lambda w, _: rate_of(w.rate), by=lambda w: w.rate or 0),
    Column(label="req/s", width=6, right=True, cell=lambda w, _: rate_of(None if w.info.server is None else w.info.server.requests),
           by=lambda w: 0 if w.info.server is None else w.info.server.requests or 0),
    Column(label="waiting", width=7, right=True, rank=2, cell=lambda w, _: short(None if w.info.server is None else w.info.server.waiting)),
    Column(label="conns", width=5, right=True, rank=2, cell=lambda w, _: number(w.info.connections), by=lambda w: w.info.connections),
    Column(label="version", width=8, rank=3, cell=lambda w, _: Text(printable(w.info.version), FAINT)),
    Column(label="works on", width=14, most=80, rank=1, cell=lambda w, _: _worker_state(w)),
)  # fmt: skip


def _worker_state(line: WorkerLine) -> Text:
    if line.info.gone:
        return Text(f"gone: silent for {lasting(line.silent)}", BAD)
    named = ", ".join(f"{one.stream}:{one.name}" for one in line.info.consumers)
    return Text(printable(named), FAINT)
