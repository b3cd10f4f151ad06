"""The bases of the screens of `headrace observe`."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.console import Group
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Static

from headrace.cli.observe.display.colors import FAINT, WARN
from headrace.cli.observe.display.live_table import LiveTable
from headrace.cli.observe.live_app import LiveApp
from headrace.model.text.printing import printable

BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]
"""From 110 columns on, details are shown next to the tables instead of below them."""


class ObserveScreen(Screen[None]):
    """A screen of `headrace observe`."""

    @property
    def observer(self) -> LiveApp:
        """The application, which calls the server or the database."""
        app = self.app
        assert isinstance(app, LiveApp)
        return app

    def table(self, name: str) -> LiveTable[Any]:
        """The table with this id."""
        return self.query_one(f"#{name}", LiveTable)


class DetailsScreen(ObserveScreen):
    """A screen with tables, and beside them the details of the row under the cursor.

    Attributes:
        focused_table: the id of the table that was focused last.
    """

    HORIZONTAL_BREAKPOINTS = BREAKPOINTS
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "leave", "Back", key_display="esc")]

    def __init__(self, first_table: str) -> None:
        super().__init__()
        self.focused_table = first_table

    def compose_with_details(self, *tables: LiveTable[Any]) -> ComposeResult:
        """Compose the tables and the place of the details."""
        several = len(tables) > 1
        with Container(classes="split"):
            yield from [Container(*tables, classes="two")] if several else tables
            with VerticalScroll(classes="detail small" if several else "detail", can_focus=True):
                yield Static("", id="details")

    def row_at_cursor(self) -> Any | None:
        """Return the row under the cursor of the table that was focused last."""
        return self.table(self.focused_table).current_row

    def details(self) -> tuple[str, Text]:
        """Return the title and the text of the details."""
        raise NotImplementedError

    def show_details(self) -> None:
        """Update the details."""
        title, text = self.details()
        self.query_one(".detail", VerticalScroll).border_title = title
        self.query_one("#details", Static).update(text)

    def show_summary(self, text: Text, facts: dict[str, str], sentence: str = "") -> None:
        """Update the lines above the tables. Facts without a value are left out."""
        for name, value in facts.items():
            if value:
                text.append(f" {name} ", FAINT).append(value)
        lines = [text, Text(printable(sentence), WARN)] if sentence else [text]
        self.query_one("#summary", Static).update(Group(*lines))

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        self.show_details()

    def on_descendant_focus(self) -> None:
        if isinstance(self.focused, LiveTable):
            self.focused_table = self.focused.id or self.focused_table
            self.show_details()

    def action_leave(self) -> None:
        self.dismiss(None)
