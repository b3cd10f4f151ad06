"""Divides a micro-batch between streams, and ranges between tasks, in plain code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def shares(available: Mapping[str, int], rows: int, turn: int = 0) -> dict[str, int]:
    """Divide a number of rows between streams, in proportion to what each has.

    A stream that has something gets at least one row, so that a slow one is not starved by a fast one. If there are more
    streams than rows, they take turns.

    Args:
        available: how many rows each stream has at most.
        rows: maximum number of all rows.
        turn: a number that grows with each call.

    Returns:
        The maximum number of rows of each stream that gets any. Their sum is at most `rows`.
    """
    names = sorted(name for name, count in available.items() if count > 0)
    total = sum(available[name] for name in names)
    if total <= rows:
        return {name: available[name] for name in names}
    if rows <= len(names):
        first = turn * rows % len(names)
        return dict.fromkeys([*names[first:], *names[:first]][:rows], 1)
    left = rows - len(names)
    return {name: 1 + (available[name] - 1) * left // (total - len(names)) for name in names}


def packed(parts: Sequence[tuple[int, T]], bins: int) -> list[list[T]]:
    """Pack sized parts into at most so many bins of about the same size. Each bin keeps the order of the parts.

    Args:
        parts: the size of each part, and the part.
    """
    if len(parts) <= bins:
        return [[part] for _, part in parts]
    sizes = [0] * bins
    chosen: list[list[int]] = [[] for _ in sizes]
    for place in sorted(range(len(parts)), key=lambda one: -parts[one][0]):
        smallest = sizes.index(min(sizes))
        sizes[smallest] += parts[place][0]
        chosen[smallest].append(place)
    return [[parts[place][1] for place in sorted(places)] for places in chosen if places]
