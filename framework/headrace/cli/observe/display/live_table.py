"""A table that can be updated, filtered and sorted, with the columns that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.events import Resize
from textual.widgets import DataTable

from headrace.cli.observe.display.columns import Column, fit_columns
from headrace.cli.observe.display.formats import fit_cell
from headrace.model.text.printing import printable

Row = TypeVar("Row")

MAX_ROWS = 1000
"""Maximum number of rows shown. The title says how many there are."""


class LiveTable(DataTable[Text], Generic[Row]):
    """A table of rows of one kind.

    Args:
        heading: the name of the rows in the title.
        columns: the columns of the table.
        key: returns the identity of a row, which stays the same from one update to the next.
        name_of_row: returns the name of a row, which a filter searches.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Open", key_display="⏎")]

    def __init__(
        self,
        heading: str,
        columns: Sequence[Column[Row]],
        key: Callable[[Row], str],
        name_of_row: Callable[[Row], str],
        *,
        id: str,  # noqa: A002 - as textual has it
    ) -> None:
        super().__init__(id=id, cursor_type="row", cell_padding=0, cursor_foreground_priority="renderable")
        self._heading = heading
        self._all_columns = columns
        self._key = key
        self._name_of_row = name_of_row
        self._all_rows: list[Row] = []
        self._shown: list[Row] = []
        self._fitted: list[tuple[Column[Row], int]] = []
        self._sort: Column[Row] | None = None
        self.filter_text = ""
        """Only rows with this text in their name are shown."""
        self.note = ""
        """Additional text in the title."""

    @property
    def current_row(self) -> Row | None:
        """The row under the cursor."""
        return self._shown[self.cursor_row] if 0 <= self.cursor_row < len(self._shown) else None

    @property
    def all_rows(self) -> Sequence[Row]:
        """All rows, including those that a filter hides."""
        return self._all_rows

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows. The cursor stays on its current row."""
        self._all_rows = list(rows)
        self._draw()

    def sort_next(self) -> str:
        """Sort by the next shown column that is sortable. After the last one, rows are unsorted.
        Returns the column's label, or `not sorted`.
        """
        choices = [None, *(column for column, _ in self._fitted if column.sort_key is not None)]
        current = choices.index(self._sort) if self._sort in choices else 0
        self._sort = choices[(current + 1) % len(choices)]
        self._fitted = []
        self._draw()
        return "not sorted" if self._sort is None else self._sort.label

    def show_matching(self, text: str) -> None:
        """Show only the rows with this text in their name."""
        self.filter_text = text
        self._draw()

    def _on_resize(self, event: Resize) -> None:
        super()._on_resize(event)
        self._draw()

    # --- drawing

    def _draw(self) -> None:
        width = self.size.width - 1  # minus the scrollbar
        if width <= 0:
            return
        before, position = self.current_row, self.cursor_row
        rows = self._matching_rows()
        fitted = fit_columns(self._all_columns, width, rows)
        unchanged = fitted == self._fitted and [*map(self._key, rows)] == [*map(self._key, self._shown)]
        self._shown = rows
        if unchanged:
            self._refresh_cells()
        else:
            self._rebuild(fitted)
            self._restore_cursor(None if before is None else self._key(before), position)
        self._update_title()

    def _matching_rows(self) -> list[Row]:
        text = self.filter_text.lower()
        rows = [row for row in self._all_rows if text in self._name_of_row(row).lower()]
        if (column := self._sort) is not None and (sort_key := column.sort_key) is not None:
            rows.sort(key=sort_key, reverse=column.right)
        return rows[:MAX_ROWS]

    def _rebuild(self, fitted: list[tuple[Column[Row], int]]) -> None:
        self._fitted = fitted
        self.clear(columns=True)
        for column, width in fitted:
            mark = "" if column is not self._sort else "▾" if column.right else "▴"
            label = fit_cell(Text(f"{column.label}{mark}"), width, right=column.right)
            self.add_column(label, width=width + 1)
        for row in self._shown:
            self.add_row(*self._cells(row), key=self._key(row))

    def _refresh_cells(self) -> None:
        for y, row in enumerate(self._shown):
            for x, value in enumerate(self._cells(row)):
                coordinate = Coordinate(y, x)
                if self.get_cell_at(coordinate) != value:
                    self.update_cell_at(coordinate, value)

    def _cells(self, row: Row) -> list[Text]:
        return [fit_cell(column.cell(row, width), width, right=column.right) for column, width in self._fitted]

    def _restore_cursor(self, key: str | None, position: int) -> None:
        keys = [self._key(row) for row in self._shown]
        self.move_cursor(row=keys.index(key) if key in keys else min(position, max(len(keys) - 1, 0)))

    def _update_title(self) -> None:
        """Set the title: what the rows are, and how many."""
        shown, total = len(self._shown), len(self._all_rows)
        count = f"{total:,}" if shown == total else f"{shown:,} of {total:,}"
        parts: list[Any] = [
            f"{self._heading} {count}",
            self.note,
            f"filter “{self.filter_text}”" if self.filter_text else "",
        ]
        self.border_title = Text(printable("  ".join(part for part in parts if part))).markup
