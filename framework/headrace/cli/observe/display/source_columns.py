"""The columns of the table of sources."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from headrace.cli.observe.display.colors import BAD, FAINT, GOOD, HELD, STRONG, WARN
from headrace.cli.observe.display.columns import Column, count_cell, rate_cell, sparkline_cell
from headrace.cli.observe.display.formats import format_bytes, format_duration
from headrace.cli.observe.snapshot import SourceRow
from headrace.flow.observed import SourceState, source_reason
from headrace.model.capture import BackfillInfo
from headrace.model.text.printing import printable

SOURCE_STATES: dict[SourceState, tuple[str, str]] = {
    "": ("webhook", FAINT),
    "running": ("running", GOOD),
    "alarm": ("alarm", BAD),
    "degraded": ("degraded", WARN),
    "starting": ("starting", FAINT),
    "new": ("new", FAINT),
    "waiting": ("waiting", WARN),
    "stopped": ("stopped", BAD),
    "paused": ("paused", HELD),
    "unattended": ("unattended", WARN),
}
"""The word and the color of each state."""


def _bytes_cell(count: int | None, style: str = "") -> Text:
    return Text("–", FAINT) if count is None else Text(format_bytes(count), style if count else FAINT)


def _backfill_cell(row: SourceRow) -> Text:
    """Return the progress of the running backfill, and its remaining time."""
    if not row.backfills:
        return Text("")
    backfill = next((one for one in row.backfills if one.state == "running"), row.backfills[0])
    more = f" +{len(row.backfills) - 1}" if len(row.backfills) > 1 else ""
    return Text(backfill_progress(backfill) + more, GOOD if backfill.state == "running" else FAINT)


def backfill_progress(backfill: BackfillInfo) -> str:
    """Format the share and the remaining time of a backfill, if they are known."""
    if backfill.state != "running":
        return backfill.state
    share = "" if backfill.share is None else f"{backfill.share:.0%}"
    left = "" if backfill.seconds_left is None else format_duration(backfill.seconds_left)
    return f"{share} {left}".strip() or "running"


def reason_cell(row: SourceRow) -> Text:
    """Return why the source is not running and how to correct it, or the problem of its slot."""
    capture = row.info.capture
    if capture is None or row.state == "paused":
        return Text("")
    if row.state == "unattended" and capture.reason is None:
        return Text("no process captures it: run `headrace serve`", WARN)
    reason, mend = source_reason(row.info.name, capture)
    fix = "" if mend is None else f" To fix it: {mend}"
    return Text(printable(f"{reason or ''}{fix}".strip()), SOURCE_STATES[row.state][1])


SOURCES: Sequence[Column[SourceRow]] = (
    Column(label="source", width=12, max_width=40, content_width=lambda s: cell_len(s.info.name), cell=lambda s, _: Text(printable(s.info.name), STRONG), sort_key=lambda s: s.info.name),
    Column(label="stream", width=10, max_width=30, content_width=lambda s: cell_len(s.info.stream), drop_order=2, cell=lambda s, _: s.info.stream, sort_key=lambda s: s.info.stream),
    Column(label="state", width=10, cell=lambda s, _: Text(*SOURCE_STATES[s.state]), sort_key=lambda s: SOURCE_STATES[s.state][0]),
    Column(label="chg/s", width=6, right=True, cell=lambda s, _: Text("") if s.info.capture is None else rate_cell(s.rate), sort_key=lambda s: s.rate or 0),
    Column(label="behind", width=7, right=True, cell=lambda s, _: Text("") if s.info.capture is None else _bytes_cell(s.behind), sort_key=lambda s: s.behind or 0),
    Column(label="WAL held", width=8, right=True, cell=lambda s, _: Text("") if s.info.capture is None else _bytes_cell(s.held_back, BAD if s.state == "alarm" else ""), sort_key=lambda s: s.held_back or 0),
    Column(label="fail", width=4, right=True, cell=lambda s, _: Text("") if s.info.capture is None else count_cell(s.info.capture.failures, BAD),
           sort_key=lambda s: 0 if s.info.capture is None else s.info.capture.failures),
    Column(label="backfill", width=8, max_width=12, cell=lambda s, _: _backfill_cell(s)),
    Column(label="tables", width=10, max_width=40, drop_order=3, content_width=lambda s: cell_len(", ".join(s.tables)), cell=lambda s, _: Text(printable(", ".join(s.tables)), FAINT)),
    Column(label="lately", width=8, max_width=30, drop_order=4, cell=lambda s, width: Text("") if s.info.capture is None else sparkline_cell(s.rates, width, GOOD)),
    Column(label="reason", width=16, max_width=160, drop_order=1, content_width=lambda s: cell_len(reason_cell(s).plain), cell=lambda s, _: reason_cell(s)),
)  # fmt: skip


# --- what the keys do
