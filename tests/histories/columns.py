"""Numbers by seq, in a few bytes each."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

_CHUNK = 4096


class Column:
    """A number for each seq, 0 at first.

    Args:
        kind: the type of the numbers, as of `array`.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._chunks: dict[int, array[int]] = {}

    def __getitem__(self, seq: int) -> int:
        chunk = self._chunks.get(seq // _CHUNK)
        return 0 if chunk is None else chunk[seq % _CHUNK]

    def __setitem__(self, seq: int, value: int) -> None:
        chunk = self._chunks.get(seq // _CHUNK)
        if chunk is None:
            chunk = self._chunks[seq // _CHUNK] = array(self._kind, [0]) * _CHUNK
        chunk[seq % _CHUNK] = value

    def items(self) -> Iterator[tuple[int, int]]:
        """Yield each seq whose number is not 0, in their order, with it."""
        for place in sorted(self._chunks):
            for offset, value in enumerate(self._chunks[place]):
                if value:
                    yield place * _CHUNK + offset, value
