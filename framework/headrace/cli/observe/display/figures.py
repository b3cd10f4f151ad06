"""The figures of rows, as `headrace.model.watching.live` describes them, in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from rich.text import Text

from headrace.cli.observe.display.colors import BAD, FAINT, GOOD, STUCK, WARN
from headrace.cli.observe.display.columns import Column
from headrace.cli.observe.display.formats import format_bytes, format_count, format_rate
from headrace.cli.options.times import roughly
from headrace.model.watching.live import Figure, Unit, figures

TONES = {"": "", "warn": WARN, "bad": BAD, "stuck": STUCK}
"""The colors of values other than 0."""

_FORMATS: Mapping[Unit, Callable[[Any], str]] = {
    "count": format_count,
    "seq": format_count,
    "rate": format_rate,
    "bytes": format_bytes,
    "seconds": roughly,
}
_WIDTHS: Mapping[Unit, int] = {"count": 6, "seq": 9, "rate": 6, "bytes": 7, "seconds": 6}


def figure_columns(kind: type[msgspec.Struct], **cells: Callable[[Any], Text]) -> Sequence[Column[Any]]:
    """Return the columns of the figures of a kind of rows.

    Args:
        cells: makes the cells of figures that have more to say than their value, by the figures' names.
    """
    return [
        Column(
            label=figure.short,
            width=max(len(figure.short), _WIDTHS[figure.unit]),
            right=True,
            drop_order=figure.drop,
            cell=partial(_cell, cells.get(name) or partial(figure_cell, figure, name)),
            sort_key=partial(_sort_key, name),
        )
        for name, figure in figures(kind).items()
    ]


def figure_cell(figure: Figure, name: str, row: Any) -> Text:
    """Format the value of a figure. Zero is faint."""
    value = getattr(row, name)
    if value is None:
        return Text("–" if figure.unit == "bytes" else "", FAINT)
    style = GOOD if figure.unit == "rate" else TONES[figure.tone]
    return Text(_FORMATS[figure.unit](value), style if value else FAINT)


def figure_texts(row: msgspec.Struct) -> dict[str, str]:
    """Return the figures of a row that are known, by their names in a terminal, counts in full."""
    found = {}
    for name, figure in figures(type(row)).items():
        value = getattr(row, name)
        if value is not None:
            found[figure.short] = f"{value:,}" if figure.unit in ("count", "seq") else _FORMATS[figure.unit](value)
    return found


def _cell(make: Callable[[Any], Text], row: Any, width: int) -> Text:
    return make(row)


def _sort_key(name: str, row: Any) -> Any:
    return getattr(row, name) or 0
