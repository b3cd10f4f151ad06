"""Cache of recently read messages, encoded for the API. Consumers of a stream usually read the same
messages at about the same time.

A message at a seq never changes, unless the database loses what it had committed and assigns the
seq again. So the cache holds messages of one history at a time. Each lease call returns the history
that it read. If that differs from the last one, the cache is cleared. Behind a pooler there is no
other sign of it.

A message with a time to live is not cached. The lease call decides from its headers whether it has expired,
so it must read them.

A lease call is given the cached seqs, and returns the contents of the others only. So these are
read, sent, decoded and encoded once, for any number of consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from datetime import datetime
from uuid import UUID

import msgspec

from headrace import store
from headrace.flow.seq_ranges import SeqRanges
from headrace.model.errors import StoreUnavailable
from headrace.model.messages.payloads import expiry, time_to_live
from headrace.model.records import Batch

MAX_RANGES = 32
"""Largest number of seq ranges of a `MessageCache`. Above it, the lowest are removed."""

Key = tuple[int, tuple[str, ...], str]

_encode = msgspec.json.Encoder().encode


class CachedMessage(msgspec.Struct, frozen=True, gc=False):
    """A cached message. `encoded` has its JSON fields as in dialect A, without the braces and the attempt."""

    key: str
    data: str
    headers: str | None
    created_at: datetime
    encoded: bytes


def encode(seq: int, stream_id: str, key: str, data: str, headers: str | None, created_at: datetime) -> CachedMessage:
    """Make a cached message with its encoded fields."""
    at = _encode(created_at).decode()
    expires_at = expiry(headers, created_at)
    end = "" if expires_at is None else f',"expires_at":{_encode(expires_at).decode()}'
    encoded = (
        f'"key":{_encode(key).decode()},"data":{data},"seq":{seq},"stream_id":"{stream_id}",'
        f'"headers":{headers or "null"},"inserted_at":{at},"updated_at":{at}{end}'
    )
    return CachedMessage(key, data, headers, created_at, encoded.encode())


class MessageCaches:
    """The message cache of a process. It has a `MessageCache` per stream and filters, since other filters
    leave out other messages.

    Args:
        max_size: the largest size of the encoded messages in bytes. They use two to three times the memory, since data is
            also kept apart, and small ones are several objects.

    Attributes:
        history: the database's history from which all messages were read. None before the first
            read.
        size: bytes of the encoded messages.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._caches: dict[Key, MessageCache] = {}
        self.history: UUID | None = None
        self.size = 0

    def of(self, key: Key) -> MessageCache:
        """Return the cache of a stream and filters."""
        cache = self._caches.get(key)
        if cache is None:
            cache = self._caches[key] = MessageCache(self)
        return cache

    def __len__(self) -> int:
        """The number of streams and filters with a cache."""
        return len(self._caches)

    def keep(self, used: Set[MessageCache]) -> None:
        """Remove the caches that nothing uses any more."""
        for key, cache in list(self._caches.items()):
            if cache not in used:
                cache.remove()
                del self._caches[key]

    def use_history(self, history: UUID | None) -> None:
        """Set the history of the next messages. Messages of another history are removed."""
        if history != self.history:
            self.clear()
            self.history = history

    def clear(self) -> None:
        """Remove all messages."""
        for cache in self._caches.values():
            cache.clear()

    def changed(self, by: int) -> None:
        """Change the size. Above the limit, the messages with the lowest seqs are removed, cache by cache."""
        self.size += by
        for key in list(self._caches):
            if self.size <= self._max_size:
                return
            cache = self._caches[key]
            cache.make_room(self.size - self._max_size)
            # Moved to the end, so that the caches make room in turn.
            self._caches[key] = self._caches.pop(key)


class MessageCache:
    """Cached messages of a stream."""

    def __init__(self, caches: MessageCaches) -> None:
        self._caches = caches
        self._messages: dict[int, CachedMessage] = {}
        self._removed = False
        self._seqs = SeqRanges()

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The inclusive ranges of seqs, in ascending order."""
        return self._seqs.ranges

    def get(self, seq: int) -> CachedMessage | None:
        """Return the message at a seq, or None."""
        return self._messages.get(seq)

    def put(self, seqs: Sequence[int], messages: Iterable[CachedMessage]) -> None:
        """Cache messages, except those below all that are cached. Their reader is behind all others."""
        if self._removed:
            return
        lowest = self.ranges[0][0] if self.ranges else 0
        grown = 0
        new: list[int] = []
        for seq, message in zip(seqs, messages, strict=True):
            if seq >= lowest and seq not in self._messages:
                self._messages[seq] = message
                new.append(seq)
                grown += len(message.encoded)
        self._seqs.add(new)
        while len(self.ranges) > MAX_RANGES:
            grown -= self._drop(*self.ranges.pop(0))
        self._caches.changed(grown)

    def remove(self) -> None:
        """Remove all messages, and cache no more of them."""
        self.clear()
        self._removed = True

    def clear(self) -> None:
        """Remove all messages."""
        self._caches.size -= sum(len(one.encoded) for one in self._messages.values())
        self._messages.clear()
        self._seqs = SeqRanges()

    def make_room(self, size: int) -> None:
        """Remove the lowest messages until `size` bytes and a quarter more are free, so that
        this is not done for each message."""
        size += size // 4
        freed = 0
        while self.ranges and freed < size:
            first, last = self.ranges.pop(0)
            seq = first
            while seq <= last and freed < size:
                freed += len(self._messages.pop(seq).encoded)
                seq += 1
            if seq <= last:
                self.ranges.insert(0, (seq, last))
        self._caches.size -= freed

    def _drop(self, first: int, last: int) -> int:
        return sum(len(self._messages.pop(seq).encoded) for seq in range(first, last + 1))


async def complete(
    database: store.Database, stream: int, stream_id: str, batch: Batch, caches: MessageCaches, cache: MessageCache
) -> list[CachedMessage | None]:
    """Return the messages of a batch. Its lease call left out the contents that were cached when it
    was made.

    None for a message that has since gone from the cache and from the stream.

    Raises:
        StoreUnavailable: messages are missing, and the database has another history by now than the
            batch.
    """
    caches.use_history(batch.history)
    found: list[CachedMessage | None] = []
    new: list[int] = []
    missing: list[int] = []
    for seq, key, data, headers, created_at in zip(
        batch.seqs, batch.keys, batch.data, batch.headers, batch.created_at, strict=True
    ):
        message = cache.get(seq)
        if message is None:
            if key is None:
                missing.append(seq)
            else:
                message = encode(seq, stream_id, key, data, headers, created_at)
                if time_to_live(headers) is None:
                    new.append(seq)
        found.append(message)
    if missing:
        history, rows = await store.messages_at(database, stream, missing)
        if history != batch.history:
            raise StoreUnavailable(
                "The database was restored or failed over between a lease and the reading of its messages. Try again."
            )
        read = {row[0]: encode(row[0], stream_id, *row[1:]) for row in rows}
        found = [read.get(seq) if message is None else message for seq, message in zip(batch.seqs, found, strict=True)]
    if new and caches.history == batch.history:  # a batch of another history may have come meanwhile
        by_seq = dict(zip(batch.seqs, found, strict=True))
        cache.put(new, [message for seq in new if (message := by_seq[seq]) is not None])
    return found
