"""Messages of a stream that were read a moment ago, for other consumers of the process.

They are cached in two generations. When the younger one is full, it replaces the older one. A lease call omits the
messages of the generations that it is given, and holds both until it has returned. None of them can be dropped by then,
and the cache stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof
from uuid import UUID

import msgspec

from headrace.flow.seq_ranges import SeqRanges
from headrace.model.messages.payloads import time_to_live
from headrace.model.records import Batch

MAX_RANGES = 32
"""Largest number of ranges of seqs in a generation. A lease call is given all of them."""

OVERHEAD = 500
"""Memory of a message beside its data, in bytes."""

Content = tuple[str, str, str | None, int]
"""The key, data, headers and time of a message, which is in microseconds as Postgres counts them."""


class Origin(msgspec.Struct, frozen=True):
    """Where messages were read. The same seq is the same message in it.

    Attributes:
        history: the history of the database, see `Batch.history`.
        stream: the number of the stream in that history.
    """

    history: UUID
    stream: int


class Generation:
    """Messages that are cached and dropped together."""

    def __init__(self) -> None:
        self.messages: dict[int, Content] = {}
        self.seqs = SeqRanges()
        self.size = 0


class Omission:
    """The messages that a lease call may omit, because this process has them.

    Args:
        generations: where the messages are.
        history: the history that they are from. None if there are none.
    """

    def __init__(self, generations: tuple[Generation, ...] = (), history: UUID | None = None) -> None:
        self._generations = generations
        self.history = history

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The inclusive ranges of their seqs, which don't overlap."""
        return [seqs for generation in self._generations for seqs in generation.seqs.ranges]

    def complete(self, batch: Batch) -> list[int]:
        """Put the omitted contents into a lease call's batch. Returns the indexes of the messages that the call has read."""
        read, times = [], batch.created_at.microseconds
        for index, (seq, key) in enumerate(zip(batch.seqs, batch.keys, strict=True)):
            if key is not None:
                read.append(index)
                continue
            content = next(part.messages[seq] for part in self._generations if seq in part.messages)
            batch.keys[index], batch.data[index], batch.headers[index], times[index] = content
        return read


class RecentMessages:
    """The cached messages of one stream.

    Args:
        max_size: the largest size of all of them, in bytes. Messages larger than an eighth of it are not cached.

    Attributes:
        origin: where they were read. None before the first.
    """

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self.origin: Origin | None = None
        self._young = Generation()
        self._old = Generation()

    @property
    def size(self) -> int:
        """The size of the messages, in bytes."""
        return self._young.size + self._old.size

    @property
    def last(self) -> int:
        """The largest seq. -1 if there are no messages."""
        generations = (self._young, self._old)
        return max((part.seqs.ranges[-1][1] for part in generations if part.seqs.ranges), default=-1)

    def clear(self) -> None:
        """Drop all messages."""
        self._young, self._old = Generation(), Generation()

    def omission(self, origin: Origin | None) -> Omission:
        """Return the messages of an origin."""
        if origin is None or origin != self.origin:
            return Omission()
        return Omission((self._young, self._old), origin.history)

    def put(self, origin: Origin, batch: Batch, indexes: Iterable[int]) -> None:
        """Cache the messages at these indexes of a batch.

        Messages with a time to live are not cached. The lease call decides from their headers whether they have expired, so
        it must read them.
        """
        if origin != self.origin:
            self.clear()
            self.origin = origin
        new: list[int] = []
        times = batch.created_at.microseconds
        for index in indexes:
            seq, data, headers = batch.seqs[index], batch.data[index], batch.headers[index]
            size = getsizeof(data) + OVERHEAD
            if size * 8 > self.max_size or self._has(seq) or time_to_live(headers) is not None:
                continue
            self._young.messages[seq] = (batch.keys[index], data, headers, times[index])
            self._young.size += size
            new.append(seq)
            if self._young.size * 2 > self.max_size:
                self._end_put(new)
                new = []
        self._end_put(new)

    def _has(self, seq: int) -> bool:
        return seq in self._young.messages or seq in self._old.messages

    def _end_put(self, new: list[int]) -> None:
        """Add new messages to the ranges of the younger generation, and begin another if it is full."""
        self._young.seqs.add(new)
        if self._young.size * 2 > self.max_size or len(self._young.seqs.ranges) > MAX_RANGES:
            self._young, self._old = Generation(), self._young
