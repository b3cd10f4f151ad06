"""The columns of tables, and the selection of those that fit a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from rich.text import Text

from headrace.cli.observe.display.colors import FAINT
from headrace.cli.observe.display.formats import format_count, sparkline

Row = TypeVar("Row")


class Column(msgspec.Struct, Generic[Row], frozen=True, kw_only=True):
    """A column of a table.

    Args:
        label: the heading.
        width: the minimum width, in columns of the terminal.
        cell: returns the content for a row, given the width.
        sort_key: returns the sort key of a row. Numbers sort with the largest first, texts from A to Z.
            None if the column is not sortable.
        max_width: the maximum width, if there is room.
        content_width: returns the width that a row needs. If it is set, the column doesn't grow beyond
            the widest row.
        right: whether the column is aligned to the right, as numbers are.
        drop_order: columns with a higher number are left out first and grow last. 0 is never left out.
    """

    label: str
    width: int
    cell: Callable[[Row, int], str | Text]
    sort_key: Callable[[Row], Any] | None = None
    max_width: int = 0
    content_width: Callable[[Row], int] | None = None
    right: bool = False
    drop_order: int = 0


def fit_columns(columns: Sequence[Column[Row]], width: int, rows: Sequence[Row] = ()) -> list[tuple[Column[Row], int]]:
    """Return the columns that fit `width`, with their widths. Columns that can grow share the remaining width."""
    kept = list(columns)
    while sum(column.width + 1 for column in kept) > width and any(column.drop_order for column in kept):
        kept.remove(max(kept, key=lambda column: column.drop_order))
    widths = {column.label: column.width for column in kept}
    left = width - sum(each + 1 for each in widths.values())
    for column in sorted(kept, key=lambda column: column.drop_order):
        max_width = column.max_width
        if column.content_width is not None:
            max_width = min(max_width, max(map(column.content_width, rows), default=0))
        growth = max(0, min(left, max_width - column.width))
        widths[column.label] += growth
        left -= growth
    return [(column, widths[column.label]) for column in kept]


def count_cell(value: float, style: str = "") -> Text:
    """Format a count. Zero is faint."""
    return Text(format_count(value), style if value else FAINT)


def sparkline_cell(values: Sequence[float], width: int, style: str) -> Text:
    """Format recent values as a sparkline. It is faint if all are zero."""
    return Text(sparkline(values, width), style if any(list(values)[-width:]) else FAINT)
