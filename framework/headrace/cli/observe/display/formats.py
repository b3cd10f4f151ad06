"""Compact formats of numbers, rates, sizes and durations for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from headrace.model.text.printing import printable
from headrace.model.text.sizes import format_size

_BARS = "▁▂▃▄▅▆▇█"
_COUNT_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_count(value: float | None) -> str:
    """Format a count in at most six characters: `0`, `9,876`, `98,765`, `987k`, `1.23M`. None is empty."""
    if value is None:
        return ""
    whole = round(value)
    if abs(whole) < 100_000:
        return f"{whole:,}"
    factor, unit = next(one for one in _COUNT_UNITS if abs(whole) >= one[0])
    amount = whole / factor
    return f"{amount:.0f}{unit}" if amount >= 100 else f"{amount:.3g}{unit}"


def format_rate(rate: float | None) -> str:
    """Format a rate per second like `short`, with one decimal below ten."""
    if rate is None or rate >= 9.95 or rate == 0:
        return format_count(rate)
    return f"{rate:.1f}" if rate >= 0.05 else "<0.1"


def format_bytes(count: int) -> str:
    """Format bytes: `8 kB`, `1.2 MB`."""
    return format_size(count, "B")


def sparkline(values: Sequence[float], width: int) -> str:
    """Format the last `width` values as bars. The highest is a full bar. Columns without a value are blank."""
    shown = list(values)[-width:] if width > 0 else []
    highest = max(shown, default=0)
    bars = "".join(_BARS[0 if highest <= 0 else min(7, round(value / highest * 7))] for value in shown)
    return bars.rjust(width)


def fit_cell(text: str | Text, width: int, *, right: bool = False) -> Text:
    """Return one line of exactly `width` columns and a gap. Longer text ends in `…`. Control characters are escaped."""
    found = Text(printable(text)) if isinstance(text, str) else text.copy()
    if width:
        found.truncate(width, overflow="ellipsis")
    else:
        found = Text()
    space = width - cell_len(found.plain)
    if right:
        found.pad_left(space)
    else:
        found.pad_right(space)
    found.pad_right(1)
    return found
