"""The home screen: streams, consumers, running processes, and sources."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from headrace.cli.observe.actions import Actions
from headrace.cli.observe.board import Board
from headrace.cli.observe.columns import CONSUMERS, STREAMS, WORKERS
from headrace.cli.observe.consumer_screen import ConsumerScreen
from headrace.cli.observe.dialogs import AskText
from headrace.cli.observe.history import ConsumerLine, Picture, SourceLine, StreamLine, WorkerLine
from headrace.cli.observe.source_columns import SOURCES
from headrace.cli.observe.source_screen import SourceScreen
from headrace.cli.observe.stream_screen import StreamScreen


class HomeScreen(Actions):
    """A table of each kind. If room is short, the focused table is the largest. Sources are shown if there are any."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("o", "sort", "Sort"),
        Binding("1", "focus_board('streams')", show=False),
        Binding("2", "focus_board('consumers')", show=False),
        Binding("3", "focus_board('workers')", show=False),
        Binding("4", "focus_board('sources')", show=False),
    ]

    def compose(self) -> ComposeResult:
        yield Static("", id="bar")
        yield Static("", id="away")
        yield Board[StreamLine]("Streams", STREAMS, lambda s: s.info.id, lambda s: s.info.name, id="streams")
        yield Board[ConsumerLine](
            "Consumers", CONSUMERS, lambda c: c.info.id, lambda c: f"{c.info.stream}:{c.info.name}", id="consumers"
        )
        yield Board[WorkerLine](
            "Processes", WORKERS, lambda w: w.info.id, lambda w: f"{w.info.host}:{w.info.pid}", id="workers"
        )
        yield Board[SourceLine]("Sources", SOURCES, lambda s: s.info.id, lambda s: s.info.name, id="sources")
        yield Footer()

    def on_mount(self) -> None:
        self.board("consumers").focus()
        self.board("sources").display = False
        if self.observer.picture is not None:
            self.show(self.observer.picture)

    def board(self, name: str) -> Board[Any]:
        return self.query_one(f"#{name}", Board)

    def show(self, picture: Picture) -> None:
        """Show the current picture."""
        for name in ("streams", "consumers", "workers"):
            self.board(name).show(getattr(picture, name))
        self._show_sources(picture)

    def _show_sources(self, picture: Picture) -> None:
        board = self.board("sources")
        if not picture.sources and board.has_focus:
            self.board("consumers").focus()
        board.display = bool(picture.sources)
        board.show(picture.sources)

    def chosen(self) -> ConsumerLine | None:
        board = self.board("consumers")
        return board.current if board.has_focus else None

    def chosen_source(self) -> SourceLine | None:
        board = self.board("sources")
        return board.current if board.has_focus else None

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        line = event.data_table.current if isinstance(event.data_table, Board) else None
        if isinstance(line, StreamLine):
            self.app.push_screen(StreamScreen(line.info.name))
        elif isinstance(line, ConsumerLine):
            self.app.push_screen(ConsumerScreen(line))
        elif isinstance(line, SourceLine):
            self.app.push_screen(SourceScreen(line))
        elif isinstance(line, WorkerLine):
            self.observer.tell_of_worker(line)

    def action_focus_board(self, name: str) -> None:
        if self.board(name).display:
            self.board(name).focus()

    def action_sort(self) -> None:
        """Sort the focused table by the next column."""
        board = self.focused
        if isinstance(board, Board):
            self.notify(f"Sorted: {board.sort_next()}", timeout=2)

    @work
    async def action_filter(self) -> None:
        """Show only lines with a text in their name."""
        text = await self.app.push_screen_wait(AskText(self.board("consumers").text))
        if text is not None:
            for name in ("streams", "consumers", "sources"):
                self.board(name).look_for(text)
