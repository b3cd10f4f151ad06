"""The shelf: messages read lately, as the API tells them. Several consumers of a stream mostly read the same ones within a moment.

A message at a seq never changes, unless the database forgets what it had committed and gives the seq again. So the shelves hold messages of
one history at a time: each lease call says from which one it read, and when that is another one than before, everything is let go. Behind a
pooler nothing else says so.

A lease call is told which seqs are at hand, and brings only the contents of the others; they are read from the stream, sent, decoded and
written as JSON once, however many consumers there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from headrace import store
from headrace.model.errors import StoreUnavailable
from headrace.model.records import Batch

LARGEST = 32_000_000
"""Characters that the shelves of a process hold together; in memory it is twice that, as data and as what is told of it."""

MOST_RANGES = 32
"""Ranges of seqs on a shelf. What comes in more pieces than that is let go from below."""

Key = tuple[int, tuple[str, ...], str]

_encode = msgspec.json.Encoder().encode


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A message. `told`: its fields as dialect A has them, between the braces, but for the attempt."""

    key: str
    data: str
    headers: str | None
    created_at: datetime
    told: bytes


def kept(seq: int, stream_id: str, key: str, data: str, headers: str | None, created_at: datetime) -> Kept:
    """A message, with what is told of it."""
    told = (
        f'"key":{_encode(key).decode()},"data":{data},"seq":{seq},"stream_id":"{stream_id}",'
        f'"headers":{headers or "null"},"inserted_at":{_encode(created_at).decode()}'
    )
    return Kept(key, data, headers, created_at, told.encode())


class Shelves:
    """The shelves of a process, one for each stream and the filters of its consumers: with others, others are missing.

    Attributes:
        history: the history that all that is kept was read from; None before anything was.
        size: characters that are kept.
    """

    def __init__(self, largest: int = LARGEST) -> None:
        self._largest = largest
        self._shelves: dict[Key, Shelf] = {}
        self.history: UUID | None = None
        self.size = 0

    def of(self, key: Key) -> Shelf:
        """The shelf for a stream and filters."""
        shelf = self._shelves.get(key)
        if shelf is None:
            shelf = self._shelves[key] = Shelf(self)
        return shelf

    def go_by(self, history: UUID | None) -> None:
        """What comes now was read from this history. If what is kept is from another one, let it go."""
        if history != self.history:
            self.clear()
            self.history = history

    def clear(self) -> None:
        """Let everything go."""
        for shelf in self._shelves.values():
            shelf.clear()

    def changed(self, by: int) -> None:
        """A shelf holds more, or less. When they all hold too much, what has been there for longest goes, shelf by shelf."""
        self.size += by
        for key in list(self._shelves):
            if self.size <= self._largest:
                return
            shelf = self._shelves[key]
            shelf.make_room(self.size - self._largest)
            # At the end of the queue, so that not always the same one has to make room.
            self._shelves[key] = self._shelves.pop(key)


class Shelf:
    """Messages of a stream.

    Attributes:
        ranges: which ones: from this seq to that, inclusive, in ascending order.
    """

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self._kept: dict[int, Kept] = {}
        self.ranges: list[tuple[int, int]] = []

    def get(self, seq: int) -> Kept | None:
        """The message at a seq, if it is here."""
        return self._kept.get(seq)

    def put(self, seqs: Sequence[int], messages: Iterable[Kept]) -> None:
        """Keep messages, but for those from below all that is here: somebody reads history, and nobody with him."""
        lowest = self.ranges[0][0] if self.ranges else 0
        grown = 0
        new: list[int] = []
        for seq, message in zip(seqs, messages, strict=True):
            if seq >= lowest and seq not in self._kept:
                self._kept[seq] = message
                new.append(seq)
                grown += len(message.told)
        for first, last in _runs(sorted(new)):
            self._join(first, last)
        while len(self.ranges) > MOST_RANGES:
            grown -= self._drop(*self.ranges.pop(0))
        self._shelves.changed(grown)

    def clear(self) -> None:
        """Let everything go."""
        self._shelves.size -= sum(len(one.told) for one in self._kept.values())
        self._kept.clear()
        self.ranges = []

    def make_room(self, size: int) -> None:
        """Let the lowest go, until so many characters are free, and some more: not one message at a time."""
        size += size // 4
        freed = 0
        while self.ranges and freed < size:
            first, last = self.ranges.pop(0)
            seq = first
            while seq <= last and freed < size:
                freed += len(self._kept.pop(seq).told)
                seq += 1
            if seq <= last:
                self.ranges.insert(0, (seq, last))
        self._shelves.size -= freed

    def _join(self, first: int, last: int) -> None:
        """Add a range of which nothing was here."""
        place = bisect_left(self.ranges, (first, last))
        if place and self.ranges[place - 1][1] == first - 1:
            place -= 1
            first = self.ranges.pop(place)[0]
        if place < len(self.ranges) and self.ranges[place][0] == last + 1:
            last = self.ranges.pop(place)[1]
        self.ranges.insert(place, (first, last))

    def _drop(self, first: int, last: int) -> int:
        return sum(len(self._kept.pop(seq).told) for seq in range(first, last + 1))


def _runs(seqs: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Ascending seqs as ranges without gaps, inclusive."""
    start = 0
    for place in range(1, len(seqs) + 1):
        if place == len(seqs) or seqs[place] != seqs[place - 1] + 1:
            yield seqs[start], seqs[place - 1]
            start = place


async def complete(
    database: store.Database, stream: int, stream_id: str, batch: Batch, shelves: Shelves, shelf: Shelf
) -> list[Kept | None]:
    """The messages of a batch that brought only what was not on the shelf when it was asked for.

    None for one that went from the shelf meanwhile and is no longer in the stream either.

    Raises:
        StoreUnavailable: some are missing that only the history knows which the batch is from, and the database has another one by now.
    """
    shelves.go_by(batch.history)
    found: list[Kept | None] = []
    new: list[int] = []
    missing: list[int] = []
    for seq, key, data, headers, created_at in zip(
        batch.seqs, batch.keys, batch.data, batch.headers, batch.created_at, strict=True
    ):
        message = shelf.get(seq)
        if message is None:
            if key is None:
                missing.append(seq)
            else:
                message = kept(seq, stream_id, key, data, headers, created_at)
                new.append(seq)
        found.append(message)
    if missing:
        history, rows = await store.messages_at(database, stream, missing)
        if history != batch.history:
            raise StoreUnavailable(
                "The database was restored, or failed over, between a lease and the reading of its messages: try again."
            )
        there = {row[0]: kept(row[0], stream_id, *row[1:]) for row in rows}
        found = [there.get(seq) if message is None else message for seq, message in zip(batch.seqs, found, strict=True)]
    if new and shelves.history == batch.history:  # another batch may have come from another history meanwhile
        by_seq = dict(zip(batch.seqs, found, strict=True))
        shelf.put(new, [message for seq in new if (message := by_seq[seq]) is not None])
    return found
