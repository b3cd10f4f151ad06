"""Consumers of one stream in one process read each message once.

Each consumer makes its own lease calls. A call is given the seqs that another consumer of the process has just read, and
omits the contents of these. Of the consumers that have read all recent messages, one leads. If such calls return much
data, the others wait until the leader's call has returned, and then omit the messages that it has read. This is for
consumers without filters and conditions, which all read the same messages.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import anyio

from headrace.model.records import Batch
from headrace.model.specs import ConsumerSpec
from headrace.runtime.leasing.lease_calls import LeaseCalls
from headrace.runtime.leasing.recent_messages import Origin, RecentMessages

MAX_RECENT = 32_000_000
"""Largest size of the recent messages of a process, in bytes. Its streams with several consumers have equal shares of it."""

NEAR = 5_000
"""Largest distance of two consumers, in messages, at which one caches for the other."""

MUCH = 100_000
"""Characters of a batch from which on the next call waits for the leader's. Smaller ones are read sooner than waited for."""

LONGEST_WAIT = 0.05
"""Largest wait for the leader's call, in seconds. A slow call delays those of other consumers by that."""


class SharedReads:
    """The consumers of a process, by their streams.

    Args:
        max_recent: the largest size of all recent messages, in bytes.
    """

    def __init__(self, max_recent: int = MAX_RECENT) -> None:
        self._max_recent = max_recent
        self._streams: dict[str, _Stream] = {}

    def reader(self, calls: LeaseCalls) -> Reader:
        """Return the reader of a consumer, which begins with `join`."""
        return Reader(self, calls)

    def join(self, reader: Reader, name: str) -> _Stream:
        """Add a consumer of the stream with this name."""
        stream = self._streams.setdefault(name, _Stream())
        stream.readers.append(reader)
        self._divide()
        return stream

    def leave(self, reader: Reader, name: str) -> None:
        """Remove a consumer. A single remaining consumer needs no recent messages."""
        stream = self._streams[name]
        stream.readers.remove(reader)
        if len(stream.readers) < 2:
            stream.recent.clear()
        if not stream.readers:
            del self._streams[name]
        self._divide()

    def _divide(self) -> None:
        shared = [stream.recent for stream in self._streams.values() if len(stream.readers) > 1]
        for recent in shared:
            recent.max_size = self._max_recent // len(shared)
            if recent.size > recent.max_size:
                recent.clear()


class _Stream:
    """A stream, and its consumers in this process."""

    def __init__(self) -> None:
        self.recent = RecentMessages(0)
        self.readers: list[Reader] = []
        self.leading: anyio.Event | None = None  # set when the leader's call has returned


class Reader:
    """Reads for one consumer. It decides which contents each of the consumer's lease calls omits."""

    def __init__(self, reads: SharedReads, calls: LeaseCalls) -> None:
        self._reads = reads
        self._calls = calls
        self._name = ""
        self._stream: _Stream | None = None
        self._origin: Origin | None = None
        self._returned = 0  # messages of the last call, if it returned much data
        self.seq: int | None = None  # the last that it has read
        self.follows = False  # whether the last call asked only for recent messages, and left the others to the leader

    def join(self, name: str) -> None:
        """Begin to read the stream with this name."""
        self._name = name
        self._stream = self._reads.join(self, name)

    def leave(self) -> None:
        """End reading."""
        if self._stream is not None:
            self._reads.leave(self, self._name)
            self._stream = self.seq = None

    async def lease(
        self, owner: UUID, want: int, spec: ConsumerSpec, *, now: datetime | None, free_keys: bool = False
    ) -> Batch:
        """Make a lease call, see `LeaseCalls.lease`. One for free keys reads farther ahead than other consumers, and shares
        nothing."""
        stream = self._stream
        self.follows = False
        if free_keys or stream is None or len(stream.readers) < 2 or spec.where is not None or spec.filters != (">",):
            self.seq = None
            return await self._calls.lease(owner, want, spec, now=now, free_keys=free_keys)

        async def read(origin: Origin | None, want: int) -> Batch:
            """Make a lease call that omits the recent messages of an origin, and cache the messages that it reads."""
            omission = stream.recent.omission(origin)
            batch = await self._calls.lease(owner, want, spec, now=now, known=omission.ranges, history=omission.history)
            if batch.seqs:
                await self._share(stream, batch, omission.complete(batch))
            return batch

        if not self._has_company(stream):
            return await read(None, want)
        if not self._returned:
            return await read(self._origin, want)
        if self._is_ahead(stream) and stream.leading is not None:
            with anyio.move_on_after(LONGEST_WAIT):
                await stream.leading.wait()
        if not self._is_ahead(stream):  # it leaves the other messages to the leader
            ready = self._recent_for_it(stream)
            self.follows = ready < want
            return await read(self._origin, min(want, ready))
        if stream.leading is not None:
            return await read(self._origin, want)
        stream.leading = leading = anyio.Event()
        try:
            return await read(self._origin, want)
        finally:
            stream.leading = None
            leading.set()

    async def _share(self, stream: _Stream, batch: Batch, read: list[int]) -> None:
        """Cache those messages of a batch that were read, for the other consumers."""
        self.seq = max(batch.seqs)
        self._returned = len(batch.seqs) if sum(map(len, batch.data)) >= MUCH else 0
        if read and self._has_company(stream):
            if self._origin is None or batch.history != self._origin.history:
                self._origin = await self._find_origin()
            if self._origin is not None and batch.history == self._origin.history:
                stream.recent.put(self._origin, batch, read)

    def _is_ahead(self, stream: _Stream) -> bool:
        """Whether most of the messages that it will read are not cached."""
        return 2 * self._recent_for_it(stream) < self._returned

    def _recent_for_it(self, stream: _Stream) -> int:
        """About how many of the recent messages it has not read."""
        return 0 if self.seq is None else stream.recent.last - self.seq

    def _has_company(self, stream: _Stream) -> bool:
        """Whether another consumer reads at about the same position."""
        mine = self.seq
        return mine is not None and any(
            other is not self and other.seq is not None and abs(other.seq - mine) <= NEAR for other in stream.readers
        )

    async def _find_origin(self) -> Origin | None:
        """Return the origin of the consumer's messages. A name doesn't identify it, since a stream may be deleted and created
        again, and another consumer may have the id after a failover."""
        history, stream = await self._calls.history_and_stream()
        return None if history is None or stream is None else Origin(history, stream)
