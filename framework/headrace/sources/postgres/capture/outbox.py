"""The outbox: shaped messages that wait to be appended, cut at the ends of transactions.

The capturer fills it while the previous batch is being written. Under load an append thus carries more messages, and
with little traffic each transaction is appended immediately.
"""

from __future__ import annotations

from typing import Any

import anyio
import msgspec

from headrace.sources.postgres.limits import DEFAULTS, CaptureLimits
from headrace.sources.postgres.pgoutput import positions
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges


class Outbox:
    """The buffer between the capturer, which fills `shaped_changes`, and the appender, which takes batches.

    Args:
        captured: number of changes captured before.
        position: the position of those changes. With None it is not checked when the first batch
            is appended.
        limits: the sizes at which it is full.

    Attributes:
        shaped_changes: the batch that is being filled.
        busy: whether a batch was taken and is not appended yet.
        full: whether `offer` must be called before anything is added.
    """

    def __init__(self, captured: int, position: int | None = None, limits: CaptureLimits = DEFAULTS) -> None:
        self._limits = limits
        self.shaped_changes = ShapedChanges()
        self.busy = self.full = False
        self._captured = captured
        self._previous_end = position
        self._messages = self._bytes = 0
        self._transaction_start: BatchMark | None = None  # where the open transaction began
        self._end: int | None = None  # end of the last complete transaction
        self._ready = anyio.Event()
        self._has_room = anyio.Event()

    # --- the capturer's side

    def begin(self) -> None:
        """Note that a transaction begins."""
        self._transaction_start = _mark(self.shaped_changes)

    def changed(self, messages: int, size: int) -> None:
        """Count a change that has become this many messages, of about this many bytes."""
        self._captured += messages
        self._messages += messages
        self._bytes += size
        if self._messages >= self._limits.outbox_messages or self._bytes >= self._limits.outbox_bytes:
            self.full = True

    def end(self, position: int) -> None:
        """Note that everything up to this position is in the batch, because a transaction ended or
        none is open.
        """
        self._transaction_start = None
        self._end = position

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting or being appended."""
        return not self.busy and self._end is None and self._transaction_start is None and not self.shaped_changes.keys

    async def offer(self) -> None:
        """Offer the appender what there is. Waits while the outbox is full."""
        while True:
            if self._end is not None or self.full:
                self._ready.set()
            if not self.full:
                return
            self._has_room = anyio.Event()
            await self._has_room.wait()

    # --- the appender's side

    async def take(self) -> ShapedChanges:
        """Wait for a batch up to the end of a transaction, and return it. If a transaction is larger
        than the outbox, return a part of it without a position.
        """
        while True:
            shaped_changes = self._cut()
            if shaped_changes is not None:
                self.busy = True
                self._has_room.set()
                return shaped_changes
            self._ready = anyio.Event()
            await self._ready.wait()

    def appended(self) -> None:
        """Note that the batch taken last is appended."""
        self.busy = False

    def _cut(self) -> ShapedChanges | None:
        if self._end is None and not self.full:
            return None
        self._messages = self._bytes = 0
        self.full = False
        if self._end is None:
            batch, self.shaped_changes = self.shaped_changes, ShapedChanges()
            self._transaction_start = _mark(self.shaped_changes)
            return batch
        batch, self.shaped_changes = self.shaped_changes, ShapedChanges()
        unfinished = 0
        if self._transaction_start is not None:
            self.shaped_changes = _split(batch, self._transaction_start)
            unfinished = len(self.shaped_changes.keys)
            self._transaction_start = _mark(ShapedChanges())
        batch.position = positions.as_text(self._end)
        batch.after = None if self._previous_end is None else positions.as_text(self._previous_end)
        self._previous_end = self._end
        batch.captured = self._captured - unfinished
        self._messages = unfinished
        self._end = None
        return batch


BatchMark = tuple[int, int, int, int, int]
"""A place in a batch: the lengths of its lists."""


def _mark(batch: ShapedChanges) -> BatchMark:
    return len(batch.keys), len(batch.failures), len(batch.chunks), len(batch.incomplete), len(batch.truncated)


def _split(batch: ShapedChanges, mark: BatchMark) -> ShapedChanges:
    """Cut off what comes after the mark, and return it."""
    keys, failures, chunks, incomplete, truncated = mark

    def moved(values: list[Any]) -> list[Any]:
        return [msgspec.structs.replace(one, index=one.index - keys) for one in values]

    rest = ShapedChanges(
        keys=batch.keys[keys:],
        data=batch.data[keys:],
        failures=moved(batch.failures[failures:]),
        chunks=batch.chunks[chunks:],
        incomplete=moved(batch.incomplete[incomplete:]),
        truncated=moved(batch.truncated[truncated:]),
    )
    del batch.keys[keys:], batch.data[keys:], batch.failures[failures:], batch.chunks[chunks:]
    del batch.incomplete[incomplete:], batch.truncated[truncated:]
    return rest
