"""Decodes inserts and updates of short values, by one regular expression or one split of their bytes.

Before each value is a `t`, and its length in four bytes. The text of a value never contains a NUL. A `t` and three
NULs are therefore always the start of a value of less than 256 bytes. What is around the values is the change's layout.
There are few layouts, since most rows of a table have a value in the same columns, so each one is analyzed once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from headrace.sources.postgres.pgoutput.messages import UNCHANGED, Layout, ShortChange

MAX_LAYOUTS = 2_000
"""Number of layouts that are remembered."""

MAX_MISSES = 1_000
"""Number of changes of other layouts after which a relation's pattern is replaced by that of a more frequent layout."""

_START_OF_VALUE: Final = b"t\0\0\0"
_ANY_VALUE: Final = rb"t\0\0\0.([^\0]*)"
_RELATION_END: Final = 5  # of the kind in one byte, and the relation in four
_ABSENT: Final = (UNCHANGED, None)  # the last values of each change


class ShortChangeDecoder:
    """Decodes inserts and updates outside of stream blocks."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[bytes, ...], Layout] = {}
        self._patterns: dict[bytes, _Pattern] = {}  # by the kind of change and the relation

    def decode(self, data: bytes) -> ShortChange | None:
        """Return the change, or None if it has to be decoded in another way, or is invalid."""
        pattern = self._patterns.get(data[:_RELATION_END])
        if pattern is not None and (change := pattern.decode(data)) is not None:
            return change
        head, *pieces = data.split(_START_OF_VALUE)
        if not pieces or len(pieces[-1]) <= pieces[-1][0]:  # without values, or cut off
            return None
        try:
            around = (head, *[piece[piece[0] + 1 :] for piece in pieces])
        except IndexError:
            return None
        layout = self._layouts.get(around) or self._new_layout(around)
        if layout is None:
            return None
        if pattern is None or pattern.misses >= MAX_MISSES:
            self._patterns[data[:_RELATION_END]] = _Pattern(layout, around)
        return ShortChange(layout, (*[piece[1 : piece[0] + 1] for piece in pieces], *_ABSENT))

    def _new_layout(self, around: tuple[bytes, ...]) -> Layout | None:
        layout = _layout(around)
        if layout is not None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
                self._patterns.clear()
            self._layouts[around] = layout
        return layout


class _Pattern:
    """Decodes the changes of one layout by one regular expression, in a third of the time.

    The expression takes everything before the next NUL for a value, whatever the value's length is. Nulls and unchanged
    values that follow a value could thus be taken for its end. A change of another layout with as many values has more of
    them after one value, and fewer after another one, where this layout has some. The lengths of such values are
    compared, and the length of the last value.

    Attributes:
        misses: number of changes of other layouts.
    """

    def __init__(self, layout: Layout, around: Sequence[bytes]) -> None:
        self._layout = layout
        self._match = re.compile(
            b"".join([re.escape(around[0]), *[_ANY_VALUE + re.escape(part) for part in around[1:]]]), re.DOTALL
        ).fullmatch
        has_absent = min((*layout.new, *(layout.old or ()))) < 0
        last = len(around) - 1
        self._compared = [number for number in range(1, last + 1) if number == last or (has_absent and around[number])]
        self.misses = 0

    def decode(self, data: bytes) -> ShortChange | None:
        """Return the change, or None if it has another layout."""
        match = self._match(data)
        if match is None:
            self.misses += 1
            return None
        for number in self._compared:
            start, end = match.span(number)
            if end - start != data[start - 1]:
                self.misses += 1
                return None
        return ShortChange(self._layout, match.groups() + _ABSENT)


def _layout(around: tuple[bytes, ...]) -> Layout | None:
    """Return the layout of a change, given what is before, between and after its values. None if that is invalid."""
    marks = b"t".join(around)
    kind, relation, at, values = marks[:1], int.from_bytes(marks[1:5], "big"), 5, 0
    rows: dict[bytes, tuple[int, ...]] = {}
    while at + 3 <= len(marks):
        end = at + 3 + int.from_bytes(marks[at + 1 : at + 3], "big")
        columns = []
        for mark in marks[at + 3 : end]:
            if mark == _VALUE:
                columns.append(values)
                values += 1
            elif mark in _INDEXES:
                columns.append(_INDEXES[mark])
            else:
                return None
        rows[marks[at : at + 1]] = tuple(columns)
        at = end
    if at != len(marks) or values != len(around) - 1 or (kind, *rows) not in _ROWS:
        return None
    return Layout(relation, rows[b"N"], rows.get(b"O", rows.get(b"K")), b"K" in rows, kind == b"I")


_VALUE: Final = ord("t")
_INDEXES: Final = {ord("n"): -1, ord("u"): -2}
_ROWS: Final = {(b"I", b"N"), (b"U", b"N"), (b"U", b"O", b"N"), (b"U", b"K", b"N")}
"""The kinds of changes, each with the rows that it may have."""
