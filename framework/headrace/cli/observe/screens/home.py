"""The home screen: streams, consumers, running processes, and sources."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from headrace.cli.observe.display.live_table import LiveTable
from headrace.cli.observe.display.process_details import process_details
from headrace.cli.observe.display.source_columns import SOURCES
from headrace.cli.observe.display.tables import CONSUMERS, PROCESSES, STREAMS
from headrace.cli.observe.screens.consumer import ConsumerScreen
from headrace.cli.observe.screens.consumer_actions import ConsumerActions
from headrace.cli.observe.screens.dialogs import AskFilter, TextPage
from headrace.cli.observe.screens.source import SourceScreen
from headrace.cli.observe.screens.stream import StreamScreen
from headrace.model.watching.live import ConsumerRow, LiveSnapshot, ProcessRow, SourceRow, StreamRow
from headrace.model.watching.processes import process_name


class HomeScreen(ConsumerActions):
    """Tables of streams, consumers, processes and sources.

    If room is short, the focused table is the largest. Sources are shown if there are any.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("o", "sort", "Sort"),
        Binding("1", "focus_table('streams')", show=False),
        Binding("2", "focus_table('consumers')", show=False),
        Binding("3", "focus_table('processes')", show=False),
        Binding("4", "focus_table('sources')", show=False),
    ]

    def compose(self) -> ComposeResult:
        yield Static("", id="bar")
        yield Static("", id="error")
        yield LiveTable[StreamRow]("Streams", STREAMS, lambda s: s.id, lambda s: s.name, id="streams")
        yield LiveTable[ConsumerRow](
            "Consumers", CONSUMERS, lambda c: c.id, lambda c: f"{c.stream}:{c.name}", id="consumers"
        )
        yield LiveTable[ProcessRow](
            "Processes", PROCESSES, lambda w: w.process_id, lambda w: process_name(w.host, w.pid), id="processes"
        )
        yield LiveTable[SourceRow]("Sources", SOURCES, lambda s: s.id, lambda s: s.name, id="sources")
        yield Footer()

    def on_mount(self) -> None:
        self.table("consumers").focus()
        self.table("sources").display = False
        if self.observer.snapshot is not None:
            self.show(self.observer.snapshot)

    def show(self, snapshot: LiveSnapshot) -> None:
        """Show the current snapshot."""
        for name in ("streams", "consumers", "processes"):
            self.table(name).show(getattr(snapshot, name))
        self._show_sources(snapshot)

    def _show_sources(self, snapshot: LiveSnapshot) -> None:
        table = self.table("sources")
        if not snapshot.sources and table.has_focus:
            self.table("consumers").focus()
        table.display = bool(snapshot.sources)
        table.show(snapshot.sources)

    def selected_consumer(self) -> ConsumerRow | None:
        table = self.table("consumers")
        return table.current_row if table.has_focus else None

    def selected_source(self) -> SourceRow | None:
        table = self.table("sources")
        return table.current_row if table.has_focus else None

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        row = event.data_table.current_row if isinstance(event.data_table, LiveTable) else None
        if isinstance(row, StreamRow):
            self.app.push_screen(StreamScreen(row.name))
        elif isinstance(row, ConsumerRow):
            self.app.push_screen(ConsumerScreen(row))
        elif isinstance(row, SourceRow):
            self.app.push_screen(SourceScreen(row))
        elif isinstance(row, ProcessRow):
            self.app.push_screen(TextPage(process_name(row.host, row.pid), process_details(row)))

    def action_focus_table(self, name: str) -> None:
        if self.table(name).display:
            self.table(name).focus()

    def action_sort(self) -> None:
        """Sort the focused table by the next column."""
        table = self.focused
        if isinstance(table, LiveTable):
            self.notify(f"Sorted by: {table.sort_next()}", timeout=2)

    @work
    async def action_filter(self) -> None:
        """Show only rows with a text in their name."""
        text = await self.app.push_screen_wait(AskFilter(self.table("consumers").filter_text))
        if text is not None:
            for name in ("streams", "consumers", "sources"):
                self.table(name).show_matching(text)
