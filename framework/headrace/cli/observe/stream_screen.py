"""The screen of one stream: its newest messages, older ones, and the details of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from headrace.cli.observe.board import Board
from headrace.cli.observe.columns import Column
from headrace.cli.observe.details import about
from headrace.cli.observe.dialogs import AskText, Page
from headrace.cli.observe.figures import FAINT, STRONG
from headrace.cli.output.tables import compact, printable
from headrace.model.records import StoredMessage

if TYPE_CHECKING:
    from headrace.cli.observe.observer import Observer

AT_ONCE = 30
"""Messages read at a time."""

NARROW_OR_WIDE = [(0, "-narrow"), (110, "-wide")]
"""From 110 columns on, the message is shown next to the table instead of below it."""

PREVIEW = 300
"""Maximum number of characters of a message's data in its line."""


def preview(data: object) -> Text:
    return Text(printable(compact(data)[:PREVIEW]), FAINT)


MESSAGES: Sequence[Column[StoredMessage]] = (
    Column(label="seq", width=9, most=14, needs=lambda m: len(str(m.seq)), right=True, cell=lambda m, _: str(m.seq)),
    Column(
        label="key",
        width=16,
        most=40,
        needs=lambda m: cell_len(m.key),
        cell=lambda m, _: Text(printable(m.key), STRONG),
    ),
    Column(label="published", width=12, cell=lambda m, _: f"{m.created_at:%H:%M:%S.%f}"[:12]),
    Column(label="data", width=20, most=400, rank=1, cell=lambda m, _: preview(m.data)),
)


class StreamScreen(Screen[None]):
    """The messages of one stream. They are read on request, not at each interval."""

    HORIZONTAL_BREAKPOINTS = NARROW_OR_WIDE
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Back", key_display="esc"),
        Binding("u", "newest", "Newest"),
        Binding("b", "back", "Further back"),
        Binding("slash", "filter", "Filter", key_display="/"),
    ]

    def __init__(self, stream: str) -> None:
        super().__init__()
        self._stream = stream
        self._messages: list[StoredMessage] = []

    @property
    def observer(self) -> Observer:
        from headrace.cli.observe.observer import Observer

        app = self.app
        assert isinstance(app, Observer)
        return app

    def compose(self) -> ComposeResult:
        yield Static("", id="bar")
        yield Static("", id="away")
        with Container(classes="split"):
            yield Board[StoredMessage](
                f"Messages of {self._stream}", MESSAGES, lambda m: str(m.seq), lambda m: m.key, id="messages"
            )
            with VerticalScroll(classes="detail", can_focus=True) as detail:
                detail.border_title = "Message"
                yield Static("", id="about")
        yield Footer()

    async def on_mount(self) -> None:
        self._board.focus()
        await self.action_newest()

    @property
    def _board(self) -> Board[StoredMessage]:
        return self.query_one("#messages", Board)

    async def action_newest(self) -> None:
        """Read the newest messages."""
        await self._read(None)

    async def action_back(self) -> None:
        """Read the messages before the shown ones."""
        if self._messages and self._messages[-1].seq > 1:
            await self._read(max(1, self._messages[-1].seq - AT_ONCE))

    async def _read(self, start: int | None) -> None:
        call = self.observer.admin.messages(self._stream, start_seq=start, limit=AT_ONCE, newest=start is None)
        found = await self.observer.asked(call)
        if found is not None:
            self._messages = found[::-1]
            self._board.note = "newest first"
            self._board.show(self._messages)
            self._tell()

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        self._tell()

    def _tell(self) -> None:
        message = self._board.current
        self.query_one("#about", Static).update(
            Text("There is no message.", FAINT) if message is None else about(message)
        )

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        message = self._board.current
        if message is not None:
            self.app.push_screen(Page(f"{self._stream} {message.seq:,}", about(message)))

    @work
    async def action_filter(self) -> None:
        """Show only messages with a text in their key."""
        text = await self.app.push_screen_wait(AskText(self._board.text))
        if text is not None:
            self._board.look_for(text)

    def action_leave(self) -> None:
        self.dismiss(None)
