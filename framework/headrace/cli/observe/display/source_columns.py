"""The columns of the table of sources."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.cells import cell_len
from rich.text import Text

from headrace.cli.observe.display.colors import BAD, FAINT, GOOD, HELD, STRONG, WARN
from headrace.cli.observe.display.columns import Column, sparkline_cell
from headrace.cli.observe.display.figures import figure_columns
from headrace.cli.options.times import roughly
from headrace.model.capture import BackfillInfo
from headrace.model.text.printing import printable
from headrace.model.watching.live import SourceRow, SourceState

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
    left = "" if backfill.seconds_left is None else roughly(backfill.seconds_left)
    return f"{share} {left}".strip() or "running"


def reason_cell(row: SourceRow) -> Text:
    """Return why the source is not running and how to correct it, or the problem of its slot."""
    if row.state in ("", "paused"):
        return Text("")
    if row.state == "unattended" and row.reason is None:
        return Text("no process captures it: run `headrace serve`", WARN)
    fix = "" if row.mend is None else f" To fix it: {row.mend}"
    return Text(printable(f"{row.reason or ''}{fix}".strip()), SOURCE_STATES[row.state][1])


def _captures(column: Column[SourceRow]) -> Column[SourceRow]:
    """Return the column without what it says of a source that captures no tables."""
    return msgspec.structs.replace(column, cell=lambda row, width: column.cell(row, width) if row.state else Text(""))


SOURCES: Sequence[Column[SourceRow]] = (
    Column(label="source", width=10, max_width=40, content_width=lambda s: cell_len(s.name), cell=lambda s, _: Text(printable(s.name), STRONG), sort_key=lambda s: s.name),
    Column(label="stream", width=10, max_width=30, content_width=lambda s: cell_len(s.stream), drop_order=2, cell=lambda s, _: s.stream, sort_key=lambda s: s.stream),
    Column(label="state", width=10, cell=lambda s, _: Text(*SOURCE_STATES[s.state]), sort_key=lambda s: SOURCE_STATES[s.state][0]),
    *map(_captures, figure_columns(SourceRow)),
    Column(label="backfill", width=8, max_width=12, cell=lambda s, _: _backfill_cell(s)),
    Column(label="tables", width=10, max_width=40, drop_order=3, content_width=lambda s: cell_len(", ".join(s.tables)), cell=lambda s, _: Text(printable(", ".join(s.tables)), FAINT)),
    _captures(Column(label="lately", width=8, max_width=30, drop_order=4, cell=lambda s, width: sparkline_cell(s.rates, width, GOOD))),
    Column(label="reason", width=16, max_width=160, drop_order=1, content_width=lambda s: cell_len(reason_cell(s).plain), cell=lambda s, _: reason_cell(s)),
)  # fmt: skip
