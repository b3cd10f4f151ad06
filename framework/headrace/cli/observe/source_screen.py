"""The screen of one source: the state of its capture, its backfills, and its failed changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from headrace.cli.observe import source_columns
from headrace.cli.observe.board import Board
from headrace.cli.observe.columns import Column, number
from headrace.cli.observe.dialogs import Page
from headrace.cli.observe.figures import (
    BAD,
    FAINT,
    GOOD,
    HELD,
    STRONG,
    WARN,
    pace,
    short,
)
from headrace.cli.observe.history import Picture, SourceLine
from headrace.cli.observe.source_columns import STATES, progress
from headrace.cli.observe.source_details import about_backfill, about_failure, about_source
from headrace.cli.observe.stream_screen import NARROW_OR_WIDE, preview
from headrace.cli.output.tables import printable
from headrace.model.capture import BackfillInfo, FailedChange

if TYPE_CHECKING:
    from headrace.cli.observe.observer import Observer

_COLOURS = {"queued": WARN, "running": GOOD, "done": FAINT, "cancelled": HELD, "failed": BAD}

BACKFILLS: Sequence[Column[BackfillInfo]] = (
    Column(label="table", width=14, most=40, needs=lambda b: cell_len(b.table), cell=lambda b, _: Text(printable(b.table), STRONG)),
    Column(label="state", width=9, cell=lambda b, _: Text(b.state, _COLOURS[b.state])),
    Column(label="read", width=7, right=True, cell=lambda b, _: number(b.read)),
    Column(label="of", width=7, right=True, cell=lambda b, _: Text(short(b.total), FAINT)),
    Column(label="done", width=8, cell=lambda b, _: Text(progress(b) if b.state == "running" else "", GOOD)),
    Column(label="began", width=8, rank=2, cell=lambda b, _: "" if b.started_at is None else f"{b.started_at:%H:%M:%S}"),
    Column(label="why", width=12, most=200, rank=1, cell=lambda b, _: Text(printable(b.reason or ""), BAD)),
)  # fmt: skip

FAILED: Sequence[Column[FailedChange]] = (
    Column(label="id", width=6, most=10, needs=lambda f: len(str(f.id)), right=True, cell=lambda f, _: str(f.id)),
    Column(label="key", width=14, most=40, needs=lambda f: cell_len(f.key or ""), cell=lambda f, _: Text(printable(f.key or ""), STRONG)),
    Column(label="at", width=8, cell=lambda f, _: f"{f.failed_at:%H:%M:%S}"),
    Column(label="", width=5, cell=lambda f, _: Text("again" if f.retry else "", WARN)),
    Column(label="error", width=16, most=100, cell=lambda f, _: Text(printable(f.error.split("\n")[0]), BAD)),
    Column(label="data", width=12, most=300, rank=1, cell=lambda f, _: preview(f.data)),
)  # fmt: skip

AT_ONCE = 100
"""Maximum number of failed changes read."""


class SourceScreen(Screen[None]):
    """Two tables, and next to them the details of the source or of the failed change under the cursor.

    The source's state is updated at each interval. The tables are read on request and after each
    change.
    """

    HORIZONTAL_BREAKPOINTS = NARROW_OR_WIDE
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Back", key_display="esc"),
        Binding("u", "update", "Update"),
        Binding("p", "pause", "Pause"),
        Binding("c", "cancel", "Cancel"),
        Binding("r", "retry_one", "Retry"),
        Binding("R", "retry", "all", key_display="R"),
    ]

    def __init__(self, line: SourceLine) -> None:
        super().__init__()
        self._line = line
        self._last = "backfills"  # the table that was focused last

    @property
    def observer(self) -> Observer:
        from headrace.cli.observe.observer import Observer

        app = self.app
        assert isinstance(app, Observer)
        return app

    def compose(self) -> ComposeResult:
        yield Static("", id="bar")
        yield Static("", id="away")
        yield Static("", id="summary")
        with Container(classes="split"):
            with Container(classes="two"):
                yield Board[BackfillInfo]("Backfills", BACKFILLS, lambda b: b.id, lambda b: b.table, id="backfills")
                yield Board[FailedChange]("Failed", FAILED, lambda f: str(f.id), lambda f: f.key or "", id="failed")
            with VerticalScroll(classes="detail small", can_focus=True) as detail:
                detail.border_title = "Source"
                yield Static("", id="about")
        yield Footer()

    async def on_mount(self) -> None:
        self._summarize()
        self._board("backfills").focus()
        if self._line.info.capture is not None:
            await self.action_update()
        self._tell()

    def _board(self, name: str) -> Board[Any]:
        return self.query_one(f"#{name}", Board)

    def show(self, picture: Picture) -> None:
        """Show the current picture."""
        found = picture.source(self._line.info.id)
        if found is None:
            self.notify(f"The source {self._line.info.name} is not there any more.", severity="warning")
            self.dismiss(None)
            return
        self._line = found
        self._summarize()
        self._refresh_backfills()
        self._tell()

    def _refresh_backfills(self) -> None:
        """Update the queued and running backfills. The others are read on request."""
        now = {one.id: one for one in self._line.backfills}
        board = self._board("backfills")
        there: list[BackfillInfo] = list(board.lines)
        known = {one.id for one in there}
        board.show(
            [one for one in reversed(now.values()) if one.id not in known] + [now.get(one.id, one) for one in there]
        )

    def _summarize(self) -> None:
        line, how = self._line, self._line.info.capture
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{printable(line.info.name)} → {printable(line.info.stream)} ", STRONG)
        text.append(f" {STATES[line.state][0]}", STATES[line.state][1])
        if how is not None:
            said = {
                "chg/s": pace(line.rate),
                "captured": f"{how.captured:,}",
                "failed": f"{how.failures:,}",
                "at": how.position or "",
            }
            for name, value in said.items():
                if value:
                    text.append(f" {name} ", FAINT).append(value)
        self.query_one("#summary", Static).update(text)

    async def _after(self, changed: bool) -> None:
        if changed:
            await self.observer.look()
            await self.action_update()

    async def action_update(self) -> None:
        """Read both tables."""
        admin, name = self.observer.admin, self._line.info.name
        backfills = await self.observer.asked(admin.backfills(name))
        if backfills is None:
            return
        failed = await self.observer.asked(admin.failures(name, limit=AT_ONCE))
        if failed is None:
            return
        self._board("failed").note = f"the first {AT_ONCE}" if len(failed) == AT_ONCE else ""
        self._board("failed").show(failed)
        self._board("backfills").show(backfills)
        self._tell()

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        self._tell()

    def on_descendant_focus(self) -> None:
        if isinstance(self.focused, Board):
            self._last = self.focused.id or self._last
            self._tell()

    def _at(self) -> BackfillInfo | FailedChange | None:
        """The line under the cursor of the table that was focused last."""
        found: BackfillInfo | FailedChange | None = self._board(self._last).current
        return found

    def _tell(self) -> None:
        at = self._at()
        text = about_failure(at) if isinstance(at, FailedChange) else about_source(self._line, self.observer.now)
        self.query_one(".detail", VerticalScroll).border_title = "Failed" if isinstance(at, FailedChange) else "Source"
        self.query_one("#about", Static).update(text)

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        at = self._at()
        if isinstance(at, FailedChange):
            self.app.push_screen(Page(f"Failed change {at.id} of {self._line.info.name}", about_failure(at)))
        elif isinstance(at, BackfillInfo):
            self.app.push_screen(Page(f"Backfill of {at.table}", about_backfill(at)))

    @work
    async def action_pause(self) -> None:
        """Pause the source, or resume it if it is paused."""
        await self._after(await source_columns.pause(self.observer, self._line))

    @work
    async def action_cancel(self) -> None:
        """Cancel the backfill under the cursor."""
        one = self._board("backfills").current
        await self._after(await source_columns.cancel(self.observer, self._line, one))

    @work
    async def action_retry_one(self) -> None:
        """Try the failed change under the cursor again."""
        at = self._board("failed").current
        if at is None or self._last != "failed":
            self.notify("Choose a failed change first: Tab goes to their table.", severity="warning")
            return
        await self._after(await source_columns.retry(self.observer, self._line, [at.id]))

    @work
    async def action_retry(self) -> None:
        """Try all failed changes again."""
        await self._after(await source_columns.retry(self.observer, self._line, None))

    def action_leave(self) -> None:
        self.dismiss(None)
