"""The screen of one consumer: its messages in progress and its dead letters."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from headrace.cli.observe.display.colors import FAINT, STRONG
from headrace.cli.observe.display.figures import figure_texts
from headrace.cli.observe.display.live_table import LiveTable
from headrace.cli.observe.display.message_columns import DEAD_LETTER_COLUMNS, IN_PROGRESS_COLUMNS
from headrace.cli.observe.display.message_details import message_details
from headrace.cli.observe.display.tables import STATE_WORDS
from headrace.cli.observe.screens.base import DetailsScreen
from headrace.cli.observe.screens.consumer_actions import ConsumerActions, redrive_result
from headrace.cli.observe.screens.dialogs import Confirm, TextPage
from headrace.model.records import DeadLetter, PeekedMessage, StoredMessage
from headrace.model.text.printing import printable
from headrace.model.watching.live import ConsumerRow, LiveSnapshot

MESSAGES_PER_STATE = 20
"""Number of messages read per state."""

MAX_DEAD_LETTERS = 100
"""Maximum number of dead letters read."""


class ConsumerScreen(DetailsScreen, ConsumerActions):
    """The tables of messages in progress and of dead letters, and the message under the cursor.

    The tables are read on request and after each change.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("u", "update", "Update"),
        Binding("r", "redrive_one", "Redrive one"),
        Binding("R", "redrive", "Redrive all", key_display="R"),
    ]

    def __init__(self, row: ConsumerRow) -> None:
        super().__init__("in_progress")
        self._row = row
        self._stream, self._consumer_name = row.stream, row.name

    def compose(self) -> ComposeResult:
        yield Static("", id="bar")
        yield Static("", id="error")
        yield Static("", id="summary")
        yield from self.compose_with_details(
            LiveTable[PeekedMessage]("In progress", IN_PROGRESS_COLUMNS, _key, lambda m: m.key, id="in_progress"),
            LiveTable[DeadLetter]("Dead letters", DEAD_LETTER_COLUMNS, _key, lambda d: d.key, id="dead_letters"),
        )
        yield Footer()

    async def on_mount(self) -> None:
        self._update_summary()
        self.show_details()
        self.table("dead_letters" if self._row.dead_letters else "in_progress").focus()
        await self.action_update()

    def selected_consumer(self) -> ConsumerRow:
        return self._row

    def show(self, snapshot: LiveSnapshot) -> None:
        """Show the current snapshot."""
        name = (self._stream, self._consumer_name)
        row = next((one for one in snapshot.consumers if (one.stream, one.name) == name), None)
        if row is None:
            self.notify(f"The consumer {self._consumer_name} of {self._stream} was deleted.", severity="warning")
            self.dismiss(None)
            return
        self._row = row
        self._update_summary()

    def _update_summary(self) -> None:
        row = self._row
        facts = figure_texts(row) | {
            "actors": "" if row.actors is None else f"{row.busy_actors}/{row.actors}",
            "position": f"{row.position:,}",
            "missed": f"{row.missed:,}" if row.missed else "",
        }
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{printable(self._consumer_name)} of {printable(self._stream)} ", STRONG)
        if row.state:
            word, style = STATE_WORDS[row.state]
            text.append(f" {word}", style)
        self.show_summary(text, facts, row.why)

    async def update_after_change(self) -> None:
        await super().update_after_change()
        await self.action_update()

    async def action_update(self) -> None:
        """Read both tables."""
        admin = self.observer.admin
        peeked = await self.observer.fetch(admin.peek(self._stream, self._consumer_name, limit=MESSAGES_PER_STATE))
        if peeked is None:
            return
        dead = await self.observer.fetch(admin.dead_letters(self._stream, self._consumer_name, limit=MAX_DEAD_LETTERS))
        if dead is None:
            return
        table = self.table("dead_letters")
        table.note = f"the first of {self._row.dead_letters:,}" if len(dead) == MAX_DEAD_LETTERS else ""
        table.show(dead)
        self.table("in_progress").show(peeked)
        self.show_details()

    def details(self) -> tuple[str, Text]:
        message = self.row_at_cursor()
        return "Message", Text("No message is selected.", FAINT) if message is None else message_details(message)

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        message = self.row_at_cursor()
        if message is not None:
            self.app.push_screen(
                TextPage(f"{self._consumer_name} of {self._stream}: {message.seq:,}", message_details(message))
            )

    @work
    async def action_redrive_one(self) -> None:
        """Deliver the dead letter under the cursor again."""
        letter = self.row_at_cursor()
        if not isinstance(letter, DeadLetter):
            self.notify("Select a dead letter first. Press Tab to go to the dead letters.", severity="warning")
            return
        text = f"This delivers the dead letter {letter.seq:,} (key {letter.key}) again. Its attempts count from zero."
        if letter.blocks:
            text += " It unblocks the key, and also delivers the other dead letters that block it."
        if not await self.app.push_screen_wait(Confirm("Redrive one", text, "Redrive")):
            return
        call = self.observer.admin.redrive(self._stream, self._consumer_name, seqs=[letter.seq])
        if await self.observer.apply_change(call, redrive_result):
            await self.update_after_change()


def _key(message: StoredMessage | DeadLetter) -> str:
    return str(message.seq)
