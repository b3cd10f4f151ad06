"""The screen of one source: the state of its capture, its backfills, and its failed changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from headrace.cli.observe.display.colors import BAD, FAINT, GOOD, HELD, STRONG, WARN
from headrace.cli.observe.display.columns import Column, count_cell
from headrace.cli.observe.display.formats import format_count, format_rate
from headrace.cli.observe.display.live_table import LiveTable
from headrace.cli.observe.display.message_columns import data_preview
from headrace.cli.observe.display.source_columns import SOURCE_STATES, backfill_progress
from headrace.cli.observe.display.source_details import backfill_details, failure_details, source_details
from headrace.cli.observe.screens import source_actions
from headrace.cli.observe.screens.base import DetailsScreen
from headrace.cli.observe.screens.dialogs import TextPage
from headrace.model.capture import BackfillInfo, FailedChange
from headrace.model.text.printing import printable
from headrace.model.watching.live import LiveSnapshot, SourceRow

_STATE_COLORS = {"queued": WARN, "running": GOOD, "done": FAINT, "cancelled": HELD, "failed": BAD}

BACKFILL_COLUMNS: Sequence[Column[BackfillInfo]] = (
    Column(label="table", width=14, max_width=40, content_width=lambda b: cell_len(b.table), cell=lambda b, _: Text(printable(b.table), STRONG)),
    Column(label="state", width=9, cell=lambda b, _: Text(b.state, _STATE_COLORS[b.state])),
    Column(label="read", width=7, right=True, cell=lambda b, _: count_cell(b.read)),
    Column(label="of", width=7, right=True, cell=lambda b, _: Text(format_count(b.total), FAINT)),
    Column(label="done", width=8, cell=lambda b, _: Text(backfill_progress(b) if b.state == "running" else "", GOOD)),
    Column(label="began", width=8, drop_order=2, cell=lambda b, _: "" if b.started_at is None else f"{b.started_at:%H:%M:%S}"),
    Column(label="reason", width=12, max_width=200, drop_order=1, cell=lambda b, _: Text(printable(b.reason or ""), BAD)),
)  # fmt: skip

FAILED_COLUMNS: Sequence[Column[FailedChange]] = (
    Column(label="id", width=6, max_width=10, content_width=lambda f: len(str(f.id)), right=True, cell=lambda f, _: str(f.id)),
    Column(label="key", width=14, max_width=40, content_width=lambda f: cell_len(f.key or ""), cell=lambda f, _: Text(printable(f.key or ""), STRONG)),
    Column(label="at", width=8, cell=lambda f, _: f"{f.failed_at:%H:%M:%S}"),
    Column(label="", width=5, cell=lambda f, _: Text("again" if f.retry else "", WARN)),
    Column(label="error", width=16, max_width=100, cell=lambda f, _: Text(printable(f.error.split("\n")[0]), BAD)),
    Column(label="data", width=12, max_width=300, drop_order=1, cell=lambda f, _: data_preview(f.data)),
)  # fmt: skip

MAX_FAILED = 100
"""Maximum number of failed changes read."""


class SourceScreen(DetailsScreen):
    """The tables of backfills and of failed changes, and the details of the source or of a failed change.

    The source's state is updated at each interval. The tables are read on request and after each
    change.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("u", "update", "Update"),
        Binding("p", "pause", "Pause"),
        Binding("c", "cancel", "Cancel backfill"),
        Binding("r", "retry_one", "Retry one"),
        Binding("R", "retry", "Retry all", key_display="R"),
    ]

    def __init__(self, row: SourceRow) -> None:
        super().__init__("backfills")
        self._row = row

    def compose(self) -> ComposeResult:
        yield Static("", id="bar")
        yield Static("", id="error")
        yield Static("", id="summary")
        yield from self.compose_with_details(
            LiveTable[BackfillInfo]("Backfills", BACKFILL_COLUMNS, lambda b: b.id, lambda b: b.table, id="backfills"),
            LiveTable[FailedChange]("Failed", FAILED_COLUMNS, lambda f: str(f.id), lambda f: f.key or "", id="failed"),
        )
        yield Footer()

    async def on_mount(self) -> None:
        self._update_summary()
        self.table("backfills").focus()
        if self._row.info.capture is not None:
            await self.action_update()
        self.show_details()

    def show(self, snapshot: LiveSnapshot) -> None:
        """Show the current snapshot."""
        row = next((one for one in snapshot.sources if one.id == self._row.id), None)
        if row is None:
            self.notify(printable(f"The source {self._row.name} was removed."), severity="warning")
            self.dismiss(None)
            return
        self._row = row
        self._update_summary()
        self._refresh_backfills()
        self.show_details()

    def _refresh_backfills(self) -> None:
        """Update the queued and running backfills. The others are read on request."""
        current = {one.id: one for one in self._row.backfills}
        table = self.table("backfills")
        shown: list[BackfillInfo] = list(table.all_rows)
        known = {one.id for one in shown}
        table.show(
            [one for one in reversed(current.values()) if one.id not in known]
            + [current.get(one.id, one) for one in shown]
        )

    def _update_summary(self) -> None:
        row, capture = self._row, self._row.info.capture
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{printable(row.name)} → {printable(row.stream)} ", STRONG)
        text.append(f" {SOURCE_STATES[row.state][0]}", SOURCE_STATES[row.state][1])
        facts = {}
        if capture is not None:
            facts = {
                "chg/s": format_rate(row.changes_rate),
                "captured": f"{capture.captured:,}",
                "failed": f"{capture.failures:,}",
                "position": capture.position or "",
            }
        self.show_summary(text, facts)

    async def _update_after_change(self, changed: bool) -> None:
        if changed:
            await self.observer.poll()
            await self.action_update()

    async def action_update(self) -> None:
        """Read both tables."""
        admin, name = self.observer.admin, self._row.name
        backfills = await self.observer.fetch(admin.backfills(name))
        if backfills is None:
            return
        failed = await self.observer.fetch(admin.failures(name, limit=MAX_FAILED))
        if failed is None:
            return
        self.table("failed").note = f"the first {MAX_FAILED}" if len(failed) == MAX_FAILED else ""
        self.table("failed").show(failed)
        self.table("backfills").show(backfills)
        self.show_details()

    def details(self) -> tuple[str, Text]:
        row = self.row_at_cursor()
        if isinstance(row, FailedChange):
            return "Failed", failure_details(row)
        return "Source", source_details(self._row, self.observer.now)

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        row = self.row_at_cursor()
        if isinstance(row, FailedChange):
            self.app.push_screen(TextPage(f"Failed change {row.id} of {self._row.name}", failure_details(row)))
        elif isinstance(row, BackfillInfo):
            self.app.push_screen(TextPage(f"Backfill of {row.table}", backfill_details(row)))

    @work
    async def action_pause(self) -> None:
        """Pause the source, or resume it if it is paused."""
        await self._update_after_change(await source_actions.pause_or_resume(self.observer, self._row))

    @work
    async def action_cancel(self) -> None:
        """Cancel the backfill under the cursor."""
        backfill = self.table("backfills").current_row
        await self._update_after_change(await source_actions.cancel_backfills(self.observer, self._row, backfill))

    @work
    async def action_retry_one(self) -> None:
        """Try the failed change under the cursor again."""
        row = self.table("failed").current_row
        if row is None or self.focused_table != "failed":
            self.notify("Select a failed change first. Press Tab to go to the failed changes.", severity="warning")
            return
        await self._update_after_change(await source_actions.retry_failures(self.observer, self._row, [row.id]))

    @work
    async def action_retry(self) -> None:
        """Try all failed changes again."""
        await self._update_after_change(await source_actions.retry_failures(self.observer, self._row, None))
