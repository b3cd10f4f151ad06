"""Tables for people, printed with rich, which is imported only when something is printed.

Characters in keys or data that could control the terminal are escaped. An escape character is printed
as `\\x1b`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headrace.cli.output.formats import text_of
from headrace.model.text.printing import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_GAP = 2
_MIN_CUT_WIDTH = 20
_UNLIMITED_WIDTH = 10_000_000


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table with one row per line. A line that is too long for the terminal wraps, like any
    other output.

    A `#` at the end of a column's name marks numbers, which are aligned to the right. A `…` marks the
    column that is cut to the remaining width of the terminal. At most one column has it.

    Cells are texts, or other values, which are formatted by `text_of`.
    """
    from rich.table import Table
    from rich.text import Text

    width = _console().width
    cells = [[printable(text_of(cell)) for cell in row] for row in rows]
    for position in (position for position, name in enumerate(columns) if name.endswith("…")):
        _cut_column(columns, cells, position, width)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name.rstrip("#…"), justify="right" if name.endswith("#") else "left", no_wrap=True)
    for row in cells:
        table.add_row(*map(Text, row))  # a Text, because a name may look like markup
    _print(_console(_UNLIMITED_WIDTH), table)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair per line. A value may have several lines."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, _GAP))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, Text("\n".join(printable(line.expandtabs(4)) for line in value.split("\n"))))
    _print(_console(), grid)


def _console(width: int | None = None) -> Console:
    from rich.console import Console

    # If the output is piped into another program, nothing is cut or folded to rich's default width of
    # 80 columns.
    return Console(highlight=False, width=width if width or sys.stdout.isatty() else _UNLIMITED_WIDTH)


def _print(console: Console, printable: RenderableType) -> None:
    # We write the output, because rich would end the process if the reader has closed the pipe.
    with console.capture() as captured:
        console.print(printable)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().split("\n")[:-1])


def _cut_column(columns: Sequence[str], rows: list[list[str]], position: int, width: int) -> None:
    """Cut the cells of one column to the width that the other columns leave."""
    from rich.cells import cell_len

    others = [
        [name.rstrip("#…"), *(row[other] for row in rows)] for other, name in enumerate(columns) if other != position
    ]
    room = max(width - sum(_GAP + max(map(cell_len, cells)) for cells in others), _MIN_CUT_WIDTH)
    for row in rows:
        row[position] = _shortened(row[position], room)


def _shortened(text: str, room: int) -> str:
    from rich.cells import cell_len, set_cell_size

    if len(text) <= room and cell_len(text) <= room:
        return text
    return set_cell_size(text[:room], room - 1).rstrip() + "…"
