"""Tables for people, printed with rich, which is imported only here."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table. A column whose name ends in `#` holds numbers, which stand to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name.removesuffix("#"), justify="right" if name.endswith("#") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # a Text, since a name may look like markup
    _print(table)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair to a line."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, Text(value))
    _print(grid)


def _print(printable: RenderableType) -> None:
    from rich.console import Console

    # Piped into another program, a table is not cut to the 80 columns of no terminal at all.
    Console(highlight=False, width=None if sys.stdout.isatty() else 200).print(printable)


def number(value: int | None) -> str:
    """A number for people: `12,345`, or a dash for none."""
    return "–" if value is None else f"{value:,}"


def size(count: int) -> str:
    """Bytes for people: `8 kB`, `1.2 MB`."""
    amount, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.3g} {units[0]}" if amount < 100 else f"{amount:.0f} {units[0]}"
