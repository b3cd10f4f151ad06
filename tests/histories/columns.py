"""Numbers by seq, in a few bytes each."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

_CHUNK = 4096


class Contents:
    """The keys and the digests of the messages of a stream. A consumer whose process has read a message before doesn't say
    them again."""

    def __init__(self) -> None:
        self._digests = Column("L")
        self._keys = Column("L")
        self._names: list[str] = [""]
        self._numbers: dict[str, int] = {}

    def learn(self, seq: int, key: str | None, digest: int | None) -> tuple[str, int]:
        """Return the key and the digest of a message, of which one line says them."""
        if key is not None:
            if (number := self._numbers.get(key)) is None:
                number = self._numbers[key] = len(self._names)
                self._names.append(key)
            self._keys[seq] = number
        if digest is not None:
            self._digests[seq] = digest
        return self._names[self._keys[seq]], self._digests[seq]


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
