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

from headrace.cli.observe.actions import Actions, told_of_redriving
from headrace.cli.observe.board import Board
from headrace.cli.observe.columns import WORDS, Column
from headrace.cli.observe.details import about
from headrace.cli.observe.dialogs import Confirm, Page
from headrace.cli.observe.figures import BAD, FAINT, GOOD, STRONG, STUCK, WARN, lasting
from headrace.cli.observe.history import ConsumerLine, Picture
from headrace.cli.observe.stream_screen import NARROW_OR_WIDE, preview
from headrace.cli.output.tables import printable
from headrace.model.records import DeadLetter, PeekedMessage, StoredMessage

OF_EACH = 20
"""Number of messages read per state."""

DEAD_LETTERS = 100

_STATES = {"in_flight": ("in flight", GOOD), "parked": ("parked", WARN), "blocked": ("blocked", STUCK), "next": ("next", FAINT)}  # fmt: skip

AT_WORK: Sequence[Column[PeekedMessage]] = (
    Column(label="state", width=9, cell=lambda m, _: Text(*_STATES[m.state])),
    Column(label="seq", width=9, most=12, needs=lambda m: len(str(m.seq)), right=True, cell=lambda m, _: str(m.seq)),
    Column(
        label="key",
        width=16,
        most=40,
        needs=lambda m: cell_len(m.key),
        cell=lambda m, _: Text(printable(m.key), STRONG),
    ),
    Column(label="tries", width=5, right=True, cell=lambda m, _: str(m.attempts)),
    Column(label="until", width=8, cell=lambda m, _: "" if m.until is None else f"{m.until:%H:%M:%S}"),
    Column(label="owner", width=8, rank=2, cell=lambda m, _: Text((m.owner or "")[:8], FAINT)),
    Column(label="data", width=12, most=400, rank=1, cell=lambda m, _: preview(m.data)),
)

DEAD: Sequence[Column[DeadLetter]] = (
    Column(label="seq", width=9, most=12, needs=lambda d: len(str(d.seq)), right=True, cell=lambda d, _: str(d.seq)),
    Column(
        label="key",
        width=14,
        most=40,
        needs=lambda d: cell_len(d.key),
        cell=lambda d, _: Text(printable(d.key), STRONG),
    ),
    Column(label="tries", width=5, right=True, cell=lambda d, _: str(d.attempts)),
    Column(label="reason", width=9, most=12, cell=lambda d, _: Text(printable(d.reason), STUCK if d.blocks else "")),
    Column(label="error", width=20, most=400, cell=lambda d, _: Text(printable((d.error or "").split("\n")[0]), BAD)),
)


class ConsumerScreen(Actions):
    """Two tables, and the message under the cursor. They are read on request and after each change."""

    HORIZONTAL_BREAKPOINTS = NARROW_OR_WIDE
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Back", key_display="esc"),
        Binding("u", "update", "Update"),
        Binding("r", "redrive_one", "Redrive one"),
        Binding("R", "redrive", "all", key_display="R"),
    ]

    def __init__(self, line: ConsumerLine) -> None:
        super().__init__()
        self._line = line
        self._stream, self._consumer_name = line.info.stream, line.info.name
        self._last = "at_work"  # the table that was focused last

    def compose(self) -> ComposeResult:
        yield Static("", id="bar")
        yield Static("", id="away")
        yield Static("", id="summary")
        with Container(classes="split"):
            with Container(classes="two"):
                yield Board[PeekedMessage]("At work", AT_WORK, _key, lambda m: m.key, id="at_work")
                yield Board[DeadLetter]("Dead letters", DEAD, _key, lambda d: d.key, id="dead_letters")
            with VerticalScroll(classes="detail small", can_focus=True) as detail:
                detail.border_title = "Message"
                yield Static("", id="about")
        yield Footer()

    async def on_mount(self) -> None:
        self._summarize()
        self._board("dead_letters" if self._line.info.dead_letters else "at_work").focus()
        await self.action_update()

    def _board(self, name: str) -> Board[Any]:
        return self.query_one(f"#{name}", Board)

    def chosen(self) -> ConsumerLine:
        return self._line

    def show(self, picture: Picture) -> None:
        """Show the current picture."""
        found = picture.consumer(self._stream, self._consumer_name)
        if found is None:
            self.notify(f"{self._consumer_name} of {self._stream} is not there any more.", severity="warning")
            self.dismiss(None)
            return
        self._line = found
        self._summarize()

    def _summarize(self) -> None:
        info, line = self._line.info, self._line
        oldest = info.oldest_unacked_at
        said = {
            "lag": f"{info.lag:,}",
            "flight": f"{info.num_ack_pending:,}",
            "parked": f"{info.parked:,}",
            "blocked": f"{info.blocked:,}",
            "dead": f"{info.dead_letters:,}",
            "oldest": "" if oldest is None else lasting((self.observer.now - oldest).total_seconds()),
            "actors": "" if line.actors is None else f"{line.busy}/{line.actors}",
            "position": f"{info.position:,}",
            "missed": f"{info.missed:,}" if info.missed else "",
        }
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{printable(self._consumer_name)} of {printable(self._stream)} ", STRONG)
        if line.state:
            word, style = WORDS[line.state]
            text.append(f" {word}", style)
        for name, value in said.items():
            if value:
                text.append(f" {name} ", FAINT).append(value)
        self.query_one("#summary", Static).update(text)

    async def after(self) -> None:
        await super().after()
        await self.action_update()

    async def action_update(self) -> None:
        """Read both tables."""
        admin = self.observer.admin
        peeked = await self.observer.asked(admin.peek(self._stream, self._consumer_name, limit=OF_EACH))
        if peeked is None:
            return
        dead = await self.observer.asked(admin.dead_letters(self._stream, self._consumer_name, limit=DEAD_LETTERS))
        if dead is None:
            return
        board = self._board("dead_letters")
        board.note = f"the first of {self._line.info.dead_letters:,}" if len(dead) == DEAD_LETTERS else ""
        board.show(dead)
        self._board("at_work").show(peeked)
        self._tell()

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        self._tell()

    def on_descendant_focus(self) -> None:
        if isinstance(self.focused, Board):
            self._last = self.focused.id or self._last
            self._tell()

    def _at(self) -> StoredMessage | DeadLetter | None:
        """The message under the cursor of the table that was focused last."""
        found: StoredMessage | DeadLetter | None = self._board(self._last).current
        return found

    def _tell(self) -> None:
        message = self._at()
        text = Text("There is no message.", FAINT) if message is None else about(message)
        self.query_one("#about", Static).update(text)

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        message = self._at()
        if message is not None:
            self.app.push_screen(Page(f"{self._consumer_name} of {self._stream}: {message.seq:,}", about(message)))

    @work
    async def action_redrive_one(self) -> None:
        """Deliver the dead letter under the cursor again."""
        letter = self._at()
        if not isinstance(letter, DeadLetter):
            self.notify("Choose a dead letter first: Tab goes to their table.", severity="warning")
            return
        text = f"The dead letter {letter.seq:,}, of the key {letter.key}, is delivered again, its attempts counted from zero."
        if letter.blocks:
            text += " Its key goes on from there; other dead letters that block the key are delivered again with it."
        if not await self.app.push_screen_wait(Confirm("Redrive one", text, "Redrive")):
            return
        call = self.observer.admin.redrive(self._stream, self._consumer_name, seqs=[letter.seq])
        if await self.observer.attempt(call, told_of_redriving):
            await self.after()

    def action_leave(self) -> None:
        self.dismiss(None)


def _key(message: StoredMessage | DeadLetter) -> str:
    return str(message.seq)
