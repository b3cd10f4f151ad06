"""The screen of one stream: its newest messages, older ones, and the details of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.widgets import DataTable, Footer, Static

from headrace.cli.observe.display.colors import FAINT, STRONG
from headrace.cli.observe.display.columns import Column
from headrace.cli.observe.display.live_table import LiveTable
from headrace.cli.observe.display.message_details import message_details
from headrace.cli.observe.screens.base import ObserveScreen
from headrace.cli.observe.screens.dialogs import AskFilter, TextPage
from headrace.cli.output.formats import one_line_json, printable
from headrace.model.records import StoredMessage

PAGE_SIZE = 30
"""Messages read at a time."""

BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]
"""From 110 columns on, the message is shown next to the table instead of below it."""

PREVIEW_CHARACTERS = 300
"""Maximum number of characters of a message's data in its line."""


def data_preview(data: object) -> Text:
    return Text(printable(one_line_json(data)[:PREVIEW_CHARACTERS]), FAINT)


MESSAGE_COLUMNS: Sequence[Column[StoredMessage]] = (
    Column(
        label="seq",
        width=9,
        max_width=14,
        content_width=lambda m: len(str(m.seq)),
        right=True,
        cell=lambda m, _: str(m.seq),
    ),
    Column(
        label="key",
        width=16,
        max_width=40,
        content_width=lambda m: cell_len(m.key),
        cell=lambda m, _: Text(printable(m.key), STRONG),
    ),
    Column(label="published", width=12, cell=lambda m, _: f"{m.created_at:%H:%M:%S.%f}"[:12]),
    Column(label="data", width=20, max_width=400, drop_order=1, cell=lambda m, _: data_preview(m.data)),
)


class StreamScreen(ObserveScreen):
    """The messages of one stream. They are read on request, not at each interval."""

    HORIZONTAL_BREAKPOINTS = BREAKPOINTS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Back", key_display="esc"),
        Binding("u", "newest", "Newest"),
        Binding("b", "back", "Older"),
        Binding("slash", "filter", "Filter", key_display="/"),
    ]

    def __init__(self, stream: str) -> None:
        super().__init__()
        self._stream = stream
        self._messages: list[StoredMessage] = []

    def compose(self) -> ComposeResult:
        yield Static("", id="bar")
        yield Static("", id="error")
        with Container(classes="split"):
            yield LiveTable[StoredMessage](
                f"Messages of {self._stream}", MESSAGE_COLUMNS, lambda m: str(m.seq), lambda m: m.key, id="messages"
            )
            with VerticalScroll(classes="detail", can_focus=True) as detail:
                detail.border_title = "Message"
                yield Static("", id="details")
        yield Footer()

    async def on_mount(self) -> None:
        self._table.focus()
        await self.action_newest()

    @property
    def _table(self) -> LiveTable[StoredMessage]:
        return self.query_one("#messages", LiveTable)

    async def action_newest(self) -> None:
        """Read the newest messages."""
        await self._read(None)

    async def action_back(self) -> None:
        """Read the messages before the shown ones."""
        if self._messages and self._messages[-1].seq > 1:
            await self._read(max(1, self._messages[-1].seq - PAGE_SIZE))

    async def _read(self, start: int | None) -> None:
        call = self.observer.admin.messages(self._stream, start_seq=start, limit=PAGE_SIZE, newest=start is None)
        found = await self.observer.fetch(call)
        if found is not None:
            self._messages = found[::-1]
            self._table.note = "newest first"
            self._table.show(self._messages)
            self._show_details()

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        self._show_details()

    def _show_details(self) -> None:
        message = self._table.current_row
        self.query_one("#details", Static).update(
            Text("No message is selected.", FAINT) if message is None else message_details(message)
        )

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        message = self._table.current_row
        if message is not None:
            self.app.push_screen(TextPage(f"{self._stream} {message.seq:,}", message_details(message)))

    @work
    async def action_filter(self) -> None:
        """Show only messages with a text in their key."""
        text = await self.app.push_screen_wait(AskFilter(self._table.filter_text))
        if text is not None:
            self._table.show_matching(text)

    def action_leave(self) -> None:
        self.dismiss(None)
