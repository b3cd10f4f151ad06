"""The columns of the tables of streams, consumers and processes, and the selection of those that fit a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec
from rich.cells import cell_len
from rich.text import Text

from headrace.cli.observe.display.colors import BAD, FAINT, GOOD, HELD, STRONG, STUCK, WARN
from headrace.cli.observe.display.formats import (
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    sparkline,
)
from headrace.cli.observe.snapshot import ConsumerRow, StreamRow, WorkerRow
from headrace.flow.observed import ConsumerState
from headrace.model.text.printing import printable

Row = TypeVar("Row")


class Column(msgspec.Struct, Generic[Row], frozen=True, kw_only=True):
    """A column of a table.

    Args:
        label: the heading.
        width: the minimum width, in columns of the terminal.
        cell: returns the content for a row, given the width.
        sort_key: returns the sort key of a row. Numbers sort with the largest first, texts from A to Z.
            None if the column is not sortable.
        max_width: the maximum width, if there is room.
        content_width: returns the width that a row needs. If it is set, the column doesn't grow beyond
            the widest row.
        right: whether the column is aligned to the right, as numbers are.
        drop_order: columns with a higher number are left out first and grow last. 0 is never left out.
    """

    label: str
    width: int
    cell: Callable[[Row, int], str | Text]
    sort_key: Callable[[Row], Any] | None = None
    max_width: int = 0
    content_width: Callable[[Row], int] | None = None
    right: bool = False
    drop_order: int = 0


def fit_columns(columns: Sequence[Column[Row]], width: int, rows: Sequence[Row] = ()) -> list[tuple[Column[Row], int]]:
    """Return the columns that fit `width`, with their widths. Columns that can grow share the remaining width."""
    kept = list(columns)
    while sum(column.width + 1 for column in kept) > width and any(column.drop_order for column in kept):
        kept.remove(max(kept, key=lambda column: column.drop_order))
    widths = {column.label: column.width for column in kept}
    left = width - sum(each + 1 for each in widths.values())
    for column in sorted(kept, key=lambda column: column.drop_order):
        max_width = column.max_width
        if column.content_width is not None:
            max_width = min(max_width, max(map(column.content_width, rows), default=0))
        growth = max(0, min(left, max_width - column.width))
        widths[column.label] += growth
        left -= growth
    return [(column, widths[column.label]) for column in kept]


def count_cell(value: float, style: str = "") -> Text:
    """Format a count. Zero is faint."""
    return Text(format_count(value), style if value else FAINT)


def rate_cell(rate: float | None) -> Text:
    """Format a rate. Zero is faint."""
    return Text(format_rate(rate), GOOD if rate else FAINT)


def sparkline_cell(values: Sequence[float], width: int, style: str) -> Text:
    """Format recent values as a sparkline. It is faint if all are zero."""
    return Text(sparkline(values, width), style if any(list(values)[-width:]) else FAINT)


# --- streams

STREAMS: Sequence[Column[StreamRow]] = (
    Column(label="stream", width=14, max_width=40, content_width=lambda s: cell_len(s.info.name), cell=lambda s, _: Text(printable(s.info.name), STRONG), sort_key=lambda s: s.info.name),
    Column(label="messages", width=8, right=True, cell=lambda s, _: count_cell(s.info.messages), sort_key=lambda s: s.info.messages),
    Column(label="in/s", width=7, right=True, cell=lambda s, _: rate_cell(s.rate), sort_key=lambda s: s.rate or 0),
    Column(label="size", width=7, right=True, cell=lambda s, _: format_bytes(s.info.size), sort_key=lambda s: s.info.size),
    Column(label="last seq", width=9, right=True, drop_order=3, cell=lambda s, _: count_cell(s.info.last_seq or 0)),
    Column(label="cons", width=4, right=True, drop_order=1, cell=lambda s, _: count_cell(s.info.consumers), sort_key=lambda s: s.info.consumers),
    Column(label="later", width=6, right=True, drop_order=4, cell=lambda s, _: count_cell(s.info.scheduled), sort_key=lambda s: s.info.scheduled),
    Column(label="in/s lately", width=12, max_width=60, drop_order=2, cell=lambda s, width: sparkline_cell(s.rates, width, GOOD)),
    Column(label="keeps", width=10, max_width=26, drop_order=1, cell=lambda s, _: _keeps_cell(s)),
)  # fmt: skip


def _keeps_cell(row: StreamRow) -> Text:
    """Return whether the stream is full, or else its retention."""
    info = row.info
    if info.full:
        return Text("full: publishing fails", BAD)
    kept = [
        "" if info.retain_up_to is None else format_duration(info.retain_up_to),
        "" if info.max_storage is None else format_bytes(info.max_storage),
        "one per key" if info.one_message_per_key else "",
        "until all consumers are done" if info.retention == "interest" else "",
    ]
    return Text(", ".join(filter(None, kept)) or "everything", FAINT)


# --- consumers

STATE_WORDS: dict[ConsumerState, tuple[str, str]] = {
    "": ("", ""),
    "paused": ("paused", HELD),
    "breaker": ("breaker", BAD),
    "blocked": ("blocked", STUCK),
    "unattended": ("no worker", WARN),
    "growing": ("lag grows", WARN),
    "full": ("full", BAD),
}

CONSUMERS: Sequence[Column[ConsumerRow]] = (
    Column(label="stream", width=10, max_width=30, content_width=lambda c: cell_len(c.info.stream), cell=lambda c, _: c.info.stream, sort_key=lambda c: c.info.stream),
    Column(label="consumer", width=11, max_width=40, content_width=lambda c: cell_len(c.info.name), cell=lambda c, _: Text(printable(c.info.name), STRONG), sort_key=lambda c: c.info.name),
    Column(label="lag", width=7, right=True, cell=lambda c, _: count_cell(c.info.lag, WARN if c.state in ("growing", "unattended") else ""),
           sort_key=lambda c: c.info.lag),
    Column(label="done/s", width=6, right=True, cell=lambda c, _: rate_cell(c.rate), sort_key=lambda c: c.rate or 0),
    Column(label="flight", width=6, right=True, drop_order=2, cell=lambda c, _: count_cell(c.info.num_ack_pending), sort_key=lambda c: c.info.num_ack_pending),
    Column(label="parked", width=6, right=True, drop_order=3, cell=lambda c, _: count_cell(c.info.parked), sort_key=lambda c: c.info.parked),
    Column(label="block", width=5, right=True, drop_order=1, cell=lambda c, _: count_cell(c.info.blocked, STUCK), sort_key=lambda c: c.info.blocked),
    Column(label="dead", width=5, right=True, cell=lambda c, _: count_cell(c.info.dead_letters, BAD), sort_key=lambda c: c.info.dead_letters),
    Column(label="actors", width=7, right=True, drop_order=4, cell=lambda c, _: _actors_cell(c.busy, c.actors), sort_key=lambda c: c.actors or 0),
    Column(label="lag lately", width=11, max_width=60, drop_order=5,
           cell=lambda c, width: sparkline_cell(c.lags, width, WARN if c.state == "growing" else HELD)),
    Column(label="state", width=9, cell=lambda c, _: Text(*STATE_WORDS[c.state]), sort_key=lambda c: STATE_WORDS[c.state][0]),
    Column(label="reason", width=20, max_width=52, cell=lambda c, _: _reason_cell(c)),
)  # fmt: skip


def _actors_cell(busy: int, actors: int | None) -> Text:
    return Text("–", FAINT) if actors is None else Text(f"{busy}/{actors}", "" if busy else FAINT)


def _reason_cell(row: ConsumerRow) -> Text:
    """Describe the state, or else the reason for the number of actors."""
    if row.info.paused_until is not None:
        return Text(f"paused {pause_end(row.info.paused_until)}", HELD)
    if row.breaker:
        return Text("circuit breaker open: many handlers failed in a row", BAD)
    return Text(printable(row.reason), FAINT)


def pause_end(moment: datetime) -> str:
    """Format the end of a pause."""
    return "until resumed" if moment.year == 9999 else f"until {moment:%Y-%m-%d %H:%M:%S}Z"


# --- processes

WORKERS: Sequence[Column[WorkerRow]] = (
    Column(label="process", width=16, max_width=40, content_width=lambda w: cell_len(w.info.host) + 8, cell=lambda w, _: Text(f"{printable(w.info.host)}:{w.info.pid}", STRONG),
           sort_key=lambda w: (w.info.host, w.info.pid)),
    Column(label="kind", width=8, cell=lambda w, _: w.info.kind, sort_key=lambda w: w.info.kind),
    Column(label="up", width=4, right=True, cell=lambda w, _: format_duration(w.age), sort_key=lambda w: w.age),
    Column(label="cons", width=4, right=True, cell=lambda w, _: count_cell(len(w.info.consumers) + w.info.more_consumers),
           sort_key=lambda w: len(w.info.consumers)),
    Column(label="actors", width=7, right=True, cell=lambda w, _: _actors_cell(w.busy, w.actors), sort_key=lambda w: w.actors),
    Column(label="msg/s", width=6, right=True, cell=lambda w, _: rate_cell(w.rate), sort_key=lambda w: w.rate or 0),
    Column(label="req/s", width=6, right=True, cell=lambda w, _: rate_cell(None if w.info.server is None else w.info.server.requests),
           sort_key=lambda w: 0 if w.info.server is None else w.info.server.requests or 0),
    Column(label="waiting", width=7, right=True, drop_order=2, cell=lambda w, _: format_count(None if w.info.server is None else w.info.server.waiting)),
    Column(label="conns", width=5, right=True, drop_order=2, cell=lambda w, _: count_cell(w.info.connections), sort_key=lambda w: w.info.connections),
    Column(label="version", width=8, drop_order=3, cell=lambda w, _: Text(printable(w.info.version), FAINT)),
    Column(label="works on", width=14, max_width=80, drop_order=1, cell=lambda w, _: _works_on_cell(w)),
)  # fmt: skip


def _works_on_cell(row: WorkerRow) -> Text:
    if row.info.gone:
        return Text(f"gone: no heartbeat for {format_duration(row.silent)}", BAD)
    if row.info.blocked is not None:
        return Text(printable(f"blocked by {row.info.blocked}"), BAD)
    named = ", ".join(f"{one.stream}:{one.name}" for one in row.info.consumers)
    return Text(printable(named), FAINT)
