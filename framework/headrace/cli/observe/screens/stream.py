"""The screen of one stream: its newest messages, older ones, and the details of one."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from headrace.cli.observe.display.colors import FAINT
from headrace.cli.observe.display.live_table import LiveTable
from headrace.cli.observe.display.message_columns import MESSAGE_COLUMNS
from headrace.cli.observe.display.message_details import message_details
from headrace.cli.observe.screens.base import DetailsScreen
from headrace.cli.observe.screens.dialogs import AskFilter, TextPage
from headrace.model.records import StoredMessage

PAGE_SIZE = 30
"""Messages read at a time."""


class StreamScreen(DetailsScreen):
    """The messages of one stream. They are read on request, not at each interval."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("u", "newest", "Newest"),
        Binding("b", "back", "Older"),
        Binding("slash", "filter", "Filter", key_display="/"),
    ]

    def __init__(self, stream: str) -> None:
        super().__init__("messages")
        self._stream = stream
        self._messages: list[StoredMessage] = []

    def compose(self) -> ComposeResult:
        yield Static("", id="bar")
        yield Static("", id="error")
        yield from self.compose_with_details(
            LiveTable[StoredMessage](
                f"Messages of {self._stream}", MESSAGE_COLUMNS, lambda m: str(m.seq), lambda m: m.key, id="messages"
            )
        )
        yield Footer()

    async def on_mount(self) -> None:
        self.show_details()
        self._table.focus()
        await self.action_newest()

    @property
    def _table(self) -> LiveTable[StoredMessage]:
        return self.table("messages")

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
            self.show_details()

    def details(self) -> tuple[str, Text]:
        message = self.row_at_cursor()
        return "Message", Text("No message is selected.", FAINT) if message is None else message_details(message)

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
