"""The screen of one consumer: its messages in progress and its dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.widgets import DataTable, Footer, Static

from headrace.cli.observe.display.colors import BAD, FAINT, GOOD, STRONG, STUCK, WARN
from headrace.cli.observe.display.columns import STATE_WORDS, Column
from headrace.cli.observe.display.formats import format_duration
from headrace.cli.observe.display.live_table import LiveTable
from headrace.cli.observe.display.message_details import message_details
from headrace.cli.observe.screens.consumer_actions import ConsumerActions, redrive_result
from headrace.cli.observe.screens.dialogs import Confirm, TextPage
from headrace.cli.observe.screens.stream import BREAKPOINTS, data_preview
from headrace.cli.observe.snapshot import ConsumerRow, Snapshot
from headrace.cli.output.formats import printable
from headrace.model.records import DeadLetter, PeekedMessage, StoredMessage

MESSAGES_PER_STATE = 20
"""Number of messages read per state."""

MAX_DEAD_LETTERS = 100
"""Maximum number of dead letters read."""

_STATES = {"in_flight": ("in flight", GOOD), "parked": ("parked", WARN), "blocked": ("blocked", STUCK), "next": ("next", FAINT)}  # fmt: skip

IN_PROGRESS_COLUMNS: Sequence[Column[PeekedMessage]] = (
    Column(label="state", width=9, cell=lambda m, _: Text(*_STATES[m.state])),
    Column(
        label="seq",
        width=9,
        max_width=12,
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
    Column(label="tries", width=5, right=True, cell=lambda m, _: str(m.attempts)),
    Column(label="until", width=8, cell=lambda m, _: "" if m.until is None else f"{m.until:%H:%M:%S}"),
    Column(label="owner", width=8, drop_order=2, cell=lambda m, _: Text((m.owner or "")[:8], FAINT)),
    Column(label="data", width=12, max_width=400, drop_order=1, cell=lambda m, _: data_preview(m.data)),
)

DEAD_LETTER_COLUMNS: Sequence[Column[DeadLetter]] = (
    Column(
        label="seq",
        width=9,
        max_width=12,
        content_width=lambda d: len(str(d.seq)),
        right=True,
        cell=lambda d, _: str(d.seq),
    ),
    Column(
        label="key",
        width=14,
        max_width=40,
        content_width=lambda d: cell_len(d.key),
        cell=lambda d, _: Text(printable(d.key), STRONG),
    ),
    Column(label="tries", width=5, right=True, cell=lambda d, _: str(d.attempts)),
    Column(
        label="reason", width=9, max_width=12, cell=lambda d, _: Text(printable(d.reason), STUCK if d.blocks else "")
    ),
    Column(
        label="error", width=20, max_width=400, cell=lambda d, _: Text(printable((d.error or "").split("\n")[0]), BAD)
    ),
)


class ConsumerScreen(ConsumerActions):
    """The tables of messages in progress and of dead letters, and the message under the cursor.

    The tables are read on request and after each change.
    """

    HORIZONTAL_BREAKPOINTS = BREAKPOINTS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Back", key_display="esc"),
        Binding("u", "update", "Update"),
        Binding("r", "redrive_one", "Redrive one"),
        Binding("R", "redrive", "Redrive all", key_display="R"),
    ]

    def __init__(self, row: ConsumerRow) -> None:
        super().__init__()
        self._row = row
        self._stream, self._consumer_name = row.info.stream, row.info.name
        self._focused_table = "in_progress"  # the table that was focused last

    def compose(self) -> ComposeResult:
        yield Static("", id="bar")
        yield Static("", id="error")
        yield Static("", id="summary")
        with Container(classes="split"):
            with Container(classes="two"):
                yield LiveTable[PeekedMessage](
                    "In progress", IN_PROGRESS_COLUMNS, _key, lambda m: m.key, id="in_progress"
                )
                yield LiveTable[DeadLetter](
                    "Dead letters", DEAD_LETTER_COLUMNS, _key, lambda d: d.key, id="dead_letters"
                )
            with VerticalScroll(classes="detail small", can_focus=True) as detail:
                detail.border_title = "Message"
                yield Static("", id="details")
        yield Footer()

    async def on_mount(self) -> None:
        self._update_summary()
        self._table("dead_letters" if self._row.info.dead_letters else "in_progress").focus()
        await self.action_update()

    def _table(self, name: str) -> LiveTable[Any]:
        return self.query_one(f"#{name}", LiveTable)

    def selected_consumer(self) -> ConsumerRow:
        return self._row

    def show(self, snapshot: Snapshot) -> None:
        """Show the current snapshot."""
        row = snapshot.consumer(self._stream, self._consumer_name)
        if row is None:
            self.notify(f"The consumer {self._consumer_name} of {self._stream} was deleted.", severity="warning")
            self.dismiss(None)
            return
        self._row = row
        self._update_summary()

    def _update_summary(self) -> None:
        info, row = self._row.info, self._row
        oldest = info.oldest_unacked_at
        facts = {
            "lag": f"{info.lag:,}",
            "flight": f"{info.num_ack_pending:,}",
            "parked": f"{info.parked:,}",
            "blocked": f"{info.blocked:,}",
            "dead": f"{info.dead_letters:,}",
            "oldest": "" if oldest is None else format_duration((self.observer.now - oldest).total_seconds()),
            "actors": "" if row.actors is None else f"{row.busy}/{row.actors}",
            "position": f"{info.position:,}",
            "missed": f"{info.missed:,}" if info.missed else "",
        }
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{printable(self._consumer_name)} of {printable(self._stream)} ", STRONG)
        if row.state:
            word, style = STATE_WORDS[row.state]
            text.append(f" {word}", style)
        for name, value in facts.items():
            if value:
                text.append(f" {name} ", FAINT).append(value)
        self.query_one("#summary", Static).update(text)

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
        table = self._table("dead_letters")
        table.note = f"the first of {self._row.info.dead_letters:,}" if len(dead) == MAX_DEAD_LETTERS else ""
        table.show(dead)
        self._table("in_progress").show(peeked)
        self._show_details()

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        self._show_details()

    def on_descendant_focus(self) -> None:
        if isinstance(self.focused, LiveTable):
            self._focused_table = self.focused.id or self._focused_table
            self._show_details()

    def _row_at_cursor(self) -> StoredMessage | DeadLetter | None:
        """Return the message under the cursor of the table that was focused last."""
        found: StoredMessage | DeadLetter | None = self._table(self._focused_table).current_row
        return found

    def _show_details(self) -> None:
        message = self._row_at_cursor()
        text = Text("No message is selected.", FAINT) if message is None else message_details(message)
        self.query_one("#details", Static).update(text)

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        message = self._row_at_cursor()
        if message is not None:
            self.app.push_screen(
                TextPage(f"{self._consumer_name} of {self._stream}: {message.seq:,}", message_details(message))
            )

    @work
    async def action_redrive_one(self) -> None:
        """Deliver the dead letter under the cursor again."""
        letter = self._row_at_cursor()
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

    def action_leave(self) -> None:
        self.dismiss(None)


def _key(message: StoredMessage | DeadLetter) -> str:
    return str(message.seq)
