"""A table of current lines, filtered and sorted, with the columns that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.events import Resize
from textual.widgets import DataTable

from headrace.cli.observe.columns import Column, fit
from headrace.cli.observe.figures import cell

Line = TypeVar("Line")

MOST = 1000
"""Maximum number of lines shown. The title says how many there are."""


class Board(DataTable[Text], Generic[Line]):
    """A table of the lines of one kind.

    Args:
        what: their name in the title.
        columns: the columns of the table.
        key: the identity of a line from one picture to the next.
        name_of: the name of a line, which a filter searches.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Open", key_display="⏎")]

    def __init__(
        self, what: str, columns: Sequence[Column[Line]], key: Callable[[Line], str], name_of: Callable[[Line], str],
        *, id: str,  # noqa: A002 - as textual has it
    ) -> None:  # fmt: skip
        super().__init__(id=id, cursor_type="row", cell_padding=0, cursor_foreground_priority="renderable")
        self._what = what
        self._all_columns = columns
        self._key = key
        self._name_of = name_of
        self._lines: list[Line] = []
        self._shown: list[Line] = []
        self._laid_out: list[tuple[Column[Line], int]] = []
        self._sort: Column[Line] | None = None
        self.text = ""
        """Only lines with this text in their name are shown."""
        self.note = ""
        """Additional text in the title."""

    @property
    def current(self) -> Line | None:
        """The line under the cursor."""
        return self._shown[self.cursor_row] if 0 <= self.cursor_row < len(self._shown) else None

    @property
    def lines(self) -> Sequence[Line]:
        """All lines, including those that a filter hides."""
        return self._lines

    def show(self, lines: Sequence[Line]) -> None:
        """Show these lines. The cursor stays on its current line."""
        self._lines = list(lines)
        self._draw()

    def sort_next(self) -> str:
        """Sort by the next shown column that is sortable. After the last one, lines are unsorted.
        Returns the column's label.
        """
        choices = [None, *(column for column, _ in self._laid_out if column.by is not None)]
        place = choices.index(self._sort) if self._sort in choices else 0
        self._sort = choices[(place + 1) % len(choices)]
        self._laid_out = []
        self._draw()
        return "as they come" if self._sort is None else self._sort.label

    def look_for(self, text: str) -> None:
        """Show only the lines with this text in their name."""
        self.text = text
        self._draw()

    def _on_resize(self, event: Resize) -> None:
        super()._on_resize(event)
        self._draw()

    # --- drawing

    def _draw(self) -> None:
        width = self.size.width - 1  # minus the scrollbar
        if width <= 0:
            return
        before, at = self.current, self.cursor_row
        chosen = self._chosen()
        laid_out = fit(self._all_columns, width, chosen)
        same = laid_out == self._laid_out and [*map(self._key, chosen)] == [*map(self._key, self._shown)]
        self._shown = chosen
        if same:
            self._refresh_cells()
        else:
            self._lay_out(laid_out)
            self._put_cursor(None if before is None else self._key(before), at)
        self._tell()

    def _chosen(self) -> list[Line]:
        text = self.text.lower()
        found = [line for line in self._lines if text in self._name_of(line).lower()]
        if (column := self._sort) is not None and (by := column.by) is not None:
            found.sort(key=by, reverse=column.right)
        return found[:MOST]

    def _lay_out(self, laid_out: list[tuple[Column[Line], int]]) -> None:
        self._laid_out = laid_out
        self.clear(columns=True)
        for column, width in laid_out:
            mark = "" if column is not self._sort else "▾" if column.right else "▴"
            label = cell(Text(f"{column.label}{mark}"), width, right=column.right)
            self.add_column(label, width=width + 1)
        for line in self._shown:
            self.add_row(*self._cells(line), key=self._key(line))

    def _refresh_cells(self) -> None:
        for row, line in enumerate(self._shown):
            for place, value in enumerate(self._cells(line)):
                coordinate = Coordinate(row, place)
                if self.get_cell_at(coordinate) != value:
                    self.update_cell_at(coordinate, value)

    def _cells(self, line: Line) -> list[Text]:
        return [cell(column.cell(line, width), width, right=column.right) for column, width in self._laid_out]

    def _put_cursor(self, key: str | None, at: int) -> None:
        keys = [self._key(line) for line in self._shown]
        self.move_cursor(row=keys.index(key) if key in keys else min(at, max(len(keys) - 1, 0)))

    def _tell(self) -> None:
        """Set the title: what the lines are, and how many."""
        shown, there = len(self._shown), len(self._lines)
        count = f"{there:,}" if shown == there else f"{shown:,} of {there:,}"
        parts: list[Any] = [f"{self._what} {count}", self.note, f"with “{self.text}”" if self.text else ""]
        self.border_title = Text("  ".join(part for part in parts if part)).markup
