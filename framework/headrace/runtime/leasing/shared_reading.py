"""Consumers of one stream in one process read each message once.

They lease for themselves. But a lease call is told which messages another consumer of the process has just read, and
leaves out the contents of these. Of those that have read all that is kept, one leads. The others wait until its call has
returned, if such calls bring much, and then leave out what it has read. This is for consumers without filters and
conditions, which all read the same messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from headrace import store
from headrace.model.records import Batch
from headrace.model.specs import ConsumerSpec
from headrace.runtime.leasing.kept_messages import KeptMessages, Origin

MAX_KEPT = 32_000_000
"""Largest size of what a process keeps, in bytes. Its streams with several consumers have equal shares of it."""

NEAR = 5_000
"""Messages that two consumers may be apart, for one to keep what the other will read."""

MUCH = 100_000
"""Characters of a batch from which on the next call waits for the leader's. Smaller ones are read sooner than waited for."""

LONGEST_WAIT = 0.05
"""Seconds for which it waits at most. So a call that is slow delays those of other consumers by that."""

Call = Callable[..., Awaitable[Batch]]
"""A lease call. It takes the largest number of messages, and `known` and `history` as `store.lease` does."""


class SharedReading:
    """The consumers of a process, by their streams.

    Args:
        max_kept: the largest size of what is kept, in bytes.
    """

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._streams: dict[str, _Stream] = {}

    def reader(self, database: store.Database, consumer: int) -> Reader:
        """Return what leases for a consumer. It begins with `join`."""
        return Reader(self, database, consumer)

    def join(self, reader: Reader, name: str) -> _Stream:
        """Add a consumer of the stream with this name."""
        stream = self._streams.setdefault(name, _Stream())
        stream.readers.append(reader)
        self._divide()
        return stream

    def leave(self, reader: Reader, name: str) -> None:
        """Remove a consumer. What is kept for the only one that is left is dropped."""
        stream = self._streams[name]
        stream.readers.remove(reader)
        if len(stream.readers) < 2:
            stream.kept.clear()
        if not stream.readers:
            del self._streams[name]
        self._divide()

    def _divide(self) -> None:
        shared = [one.kept for one in self._streams.values() if len(one.readers) > 1]
        for kept in shared:
            kept.max_size = self._max_kept // len(shared)
            if kept.size > kept.max_size:
                kept.clear()


class _Stream:
    """A stream, and its consumers in this process."""

    def __init__(self) -> None:
        self.kept = KeptMessages(0)
        self.readers: list[Reader] = []
        self.leading: anyio.Event | None = None  # set when the leader's call has returned


class Reader:
    """Makes the lease calls of one consumer."""

    def __init__(self, reading: SharedReading, database: store.Database, consumer: int) -> None:
        self._reading = reading
        self._database = database
        self._consumer = consumer
        self._name = ""
        self._stream: _Stream | None = None
        self._origin: Origin | None = None
        self._brought = 0  # messages, by the last call, if it brought much
        self.seq: int | None = None  # the last that it has read
        self.follows = False  # whether the last call left to the leader what is not kept

    def join(self, name: str) -> None:
        """Begin to read the stream with this name."""
        self._name = name
        self._stream = self._reading.join(self, name)

    def leave(self) -> None:
        """End reading."""
        if self._stream is not None:
            self._reading.leave(self, self._name)
            self._stream = self.seq = None

    async def lease(self, spec: ConsumerSpec, want: int, call: Call) -> Batch:
        """Make a lease call for up to `want` messages. Raises what it raises, and `StoreUnavailable`."""
        stream = self._stream
        self.follows = False
        if stream is None or len(stream.readers) < 2 or spec.where is not None or spec.filters != (">",):
            self.seq = None
            return await call(want)
        if not self._has_company(stream):
            return await self._read(stream, None, want, call)
        if not self._brought:
            return await self._read(stream, self._origin, want, call)
        if self._is_ahead(stream) and stream.leading is not None:
            with anyio.move_on_after(LONGEST_WAIT):
                await stream.leading.wait()
        if not self._is_ahead(stream):  # it leaves what is not kept to the leader
            kept = self._kept_for_it(stream)
            self.follows = kept < want
            return await self._read(stream, self._origin, min(want, kept), call)
        if stream.leading is not None:
            return await self._read(stream, self._origin, want, call)
        stream.leading = leading = anyio.Event()
        try:
            return await self._read(stream, self._origin, want, call)
        finally:
            stream.leading = None
            leading.set()

    async def _read(self, stream: _Stream, origin: Origin | None, want: int, call: Call) -> Batch:
        """Make a lease call that leaves out what was read there, and keep what it reads itself."""
        view = stream.kept.view(origin)
        batch = await call(want, known=view.ranges, history=view.history)
        if batch.seqs:
            await self._share(stream, batch, view.complete(batch))
        return batch

    async def _share(self, stream: _Stream, batch: Batch, read: list[int]) -> None:
        """Keep those messages of a batch that were read, for the other consumers."""
        self.seq = max(batch.seqs)
        self._brought = len(batch.seqs) if sum(map(len, batch.data)) >= MUCH else 0
        if read and self._has_company(stream):
            if self._origin is None or batch.history != self._origin.history:
                self._origin = await self._find_origin()
            if self._origin is not None and batch.history == self._origin.history:
                stream.kept.put(self._origin, batch, read)

    def _is_ahead(self, stream: _Stream) -> bool:
        """Whether most of what it will read is not kept."""
        return 2 * self._kept_for_it(stream) < self._brought

    def _kept_for_it(self, stream: _Stream) -> int:
        """About how many messages are kept that it has not read."""
        return 0 if self.seq is None else stream.kept.last - self.seq

    def _has_company(self, stream: _Stream) -> bool:
        """Whether another consumer reads at about the same place."""
        mine = self.seq
        return mine is not None and any(
            one is not self and one.seq is not None and abs(one.seq - mine) <= NEAR for one in stream.readers
        )

    async def _find_origin(self) -> Origin | None:
        """Return what the consumer reads. A name doesn't say, since a stream may be deleted and made anew, and the id of a
        consumer may be given to another one after a failover."""
        history, stream = await store.history_and_stream(self._database, self._consumer)
        return None if history is None or stream is None else Origin(history, stream)
