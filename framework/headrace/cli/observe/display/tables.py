"""The columns of the tables of streams, consumers and processes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.cells import cell_len
from rich.text import Text

from headrace.cli.observe.display.colors import BAD, FAINT, GOOD, HELD, STRONG, STUCK, WARN
from headrace.cli.observe.display.columns import Column, count_cell, sparkline_cell
from headrace.cli.observe.display.figures import figure_columns
from headrace.cli.observe.display.formats import format_bytes
from headrace.cli.options.times import roughly
from headrace.model.text.printing import printable
from headrace.model.watching.live import ConsumerRow, ConsumerState, ProcessRow, StreamRow
from headrace.model.watching.processes import process_name

# --- streams

STREAMS: Sequence[Column[StreamRow]] = (
    Column(label="stream", width=14, max_width=40, content_width=lambda s: cell_len(s.name), cell=lambda s, _: Text(printable(s.name), STRONG), sort_key=lambda s: s.name),
    *figure_columns(StreamRow),
    Column(label="in/s lately", width=12, max_width=60, drop_order=2, cell=lambda s, width: sparkline_cell(s.rates, width, GOOD)),
    Column(label="keeps", width=10, max_width=26, drop_order=1, cell=lambda s, _: _keeps_cell(s)),
)  # fmt: skip


def _keeps_cell(row: StreamRow) -> Text:
    """Return whether the stream is full, or else its retention."""
    if row.state == "full":
        return Text("full: publishing fails", BAD)
    kept = [
        "" if row.retain_up_to is None else roughly(row.retain_up_to),
        "" if row.max_storage is None else format_bytes(row.max_storage),
        "one per key" if row.one_message_per_key else "",
        "until all consumers are done" if row.retention == "interest" else "",
    ]
    return Text(", ".join(filter(None, kept)) or "everything", FAINT)


# --- consumers

STATE_WORDS: dict[ConsumerState, tuple[str, str]] = {
    "": ("", ""),
    "paused": ("paused", HELD),
    "breaker": ("breaker", BAD),
    "blocked": ("blocked", STUCK),
    "failing": ("failing", BAD),
    "unattended": ("no worker", WARN),
    "growing": ("lag grows", WARN),
    "full": ("full", BAD),
}

CONSUMERS: Sequence[Column[ConsumerRow]] = (
    Column(label="stream", width=10, max_width=30, content_width=lambda c: cell_len(c.stream), cell=lambda c, _: c.stream, sort_key=lambda c: c.stream),
    Column(label="consumer", width=11, max_width=40, content_width=lambda c: cell_len(c.name), cell=lambda c, _: Text(printable(c.name), STRONG), sort_key=lambda c: c.name),
    *figure_columns(ConsumerRow, lag=lambda c: count_cell(c.lag, WARN if c.state in ("growing", "unattended") else "")),
    Column(label="actors", width=7, right=True, drop_order=4, cell=lambda c, _: _actors_cell(c.busy_actors, c.actors), sort_key=lambda c: c.actors or 0),
    Column(label="lag lately", width=11, max_width=60, drop_order=5,
           cell=lambda c, width: sparkline_cell(c.lags, width, WARN if c.state == "growing" else HELD)),
    Column(label="state", width=9, cell=lambda c, _: Text(*STATE_WORDS[c.state]), sort_key=lambda c: STATE_WORDS[c.state][0]),
    Column(label="reason", width=20, max_width=200, cell=lambda c, _: _reason_cell(c)),
)  # fmt: skip


def _actors_cell(busy: int, actors: int | None) -> Text:
    return Text("–", FAINT) if actors is None else Text(f"{busy}/{actors}", "" if busy else FAINT)


def _reason_cell(row: ConsumerRow) -> Text:
    """Say why it is behind, or else the reason for the number of actors."""
    return Text(printable(row.why), STATE_WORDS[row.state][1]) if row.why else Text(printable(row.reason), FAINT)


def pause_end(moment: datetime | None) -> str:
    """Format the end of a pause. None if it has none."""
    return "until resumed" if moment is None else f"until {moment:%Y-%m-%d %H:%M:%S}Z"


# --- processes

PROCESSES: Sequence[Column[ProcessRow]] = (
    Column(label="process", width=16, max_width=40, content_width=lambda w: cell_len(w.host) + 8, cell=lambda w, _: Text(printable(process_name(w.host, w.pid)), STRONG),
           sort_key=lambda w: (w.host, w.pid)),
    Column(label="kind", width=8, cell=lambda w, _: w.kind, sort_key=lambda w: w.kind),
    Column(label="cons", width=4, right=True, cell=lambda w, _: count_cell(len(w.consumers) + w.more_consumers), sort_key=lambda w: len(w.consumers)),
    Column(label="actors", width=7, right=True, cell=lambda w, _: _actors_cell(w.busy_actors, w.actors), sort_key=lambda w: w.actors),
    *figure_columns(ProcessRow),
    Column(label="version", width=8, drop_order=3, cell=lambda w, _: Text(printable(w.version), FAINT)),
    Column(label="works on", width=14, max_width=80, drop_order=1, cell=lambda w, _: _works_on_cell(w)),
)  # fmt: skip


def _works_on_cell(row: ProcessRow) -> Text:
    if row.gone:
        return Text(f"gone: no heartbeat for {roughly(row.silent_seconds)}", BAD)
    if row.blocked is not None:
        return Text(printable(f"blocked by {row.blocked}"), BAD)
    named = ", ".join(f"{one.stream}:{one.name}" for one in row.consumers)
    return Text(printable(named), FAINT)
