"""The outbox: shaped messages that wait to be appended, cut at the ends of transactions.

The capturer fills it while the previous portion is being written. So under load an append carries
more messages, and with little traffic each transaction is appended at once.
"""

from __future__ import annotations

import anyio
import msgspec

from headrace.sources.postgres.pgoutput import positions
from headrace.sources.postgres.shaping.shaped import ShapedChanges

MOST_MESSAGES = 5000
MOST_BYTES = 8 * 1024 * 1024
"""Largest number of messages and bytes that wait before the capturer stops reading."""


class Outbox:
    """The buffer between the capturer, which fills `portion`, and the appender, which takes portions.

    Args:
        captured: number of changes captured before.
        position: the position of those changes. With None it is not checked when the first portion
            is appended.

    Attributes:
        portion: the portion that is being filled.
        busy: whether a portion was taken and is not appended yet.
    """

    def __init__(self, captured: int, position: int | None = None) -> None:
        self.shaped_changes = ShapedChanges()
        self.busy = False
        self._captured = captured
        self._after = position
        self._bytes = 0
        self._mark: Mark | None = None  # where the open transaction began
        self._end: int | None = None  # end of the last complete transaction
        self._news = anyio.Event()
        self._room = anyio.Event()

    # --- the capturer's side

    def begin(self) -> None:
        """Note that a transaction begins."""
        self._mark = Mark(self.shaped_changes)

    def changed(self, messages: int, size: int) -> None:
        """Count a change that has become this many messages, of about this many bytes."""
        self._captured += messages
        self._bytes += size

    def end(self, position: int) -> None:
        """Note that everything up to this position is in the portion, because a transaction ended or
        none is open.
        """
        self._mark = None
        self._end = position

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting or being appended."""
        return not self.busy and self._end is None and self._mark is None and not self.shaped_changes.keys

    async def offer(self) -> None:
        """Offer the appender what there is. Waits while the outbox is full."""
        while True:
            if self._end is not None or self.full:
                self._news.set()
            if not self.full:
                return
            self._room = anyio.Event()
            await self._room.wait()

    @property
    def full(self) -> bool:
        """Whether `offer` must be called before anything is added."""
        return (
            len(self.shaped_changes.keys) + len(self.shaped_changes.failures) >= MOST_MESSAGES
            or self._bytes >= MOST_BYTES
        )

    # --- the appender's side

    async def take(self) -> ShapedChanges:
        """Wait for a portion up to the end of a transaction, and return it. If a transaction is larger
        than the outbox, return a part of it without a position.
        """
        while True:
            shaped_changes = self._cut()
            if shaped_changes is not None:
                self.busy = True
                self._room.set()
                return shaped_changes
            self._news = anyio.Event()
            await self._news.wait()

    def appended(self) -> None:
        """Note that the portion taken last is appended."""
        self.busy = False

    def _cut(self) -> ShapedChanges | None:
        if self._end is None and not self.full:
            return None
        self._bytes = 0
        if self._end is None:
            whole, self.shaped_changes = self.shaped_changes, ShapedChanges()
            self._mark = Mark(self.shaped_changes)
            return whole
        whole, self.shaped_changes = self.shaped_changes, ShapedChanges()
        begun = 0
        if self._mark is not None:
            self.shaped_changes = self._mark.split(whole)
            begun = len(self.shaped_changes.keys)
            self._mark = Mark(ShapedChanges())
        whole.position = positions.text(self._end)
        whole.after = None if self._after is None else positions.text(self._after)
        self._after = self._end
        whole.captured = self._captured - begun
        self._end = None
        return whole


class Mark:
    """A place in a portion."""

    def __init__(self, shaped_changes: ShapedChanges) -> None:
        self._keys = len(shaped_changes.keys)
        self._failures = len(shaped_changes.failures)
        self._chunks = len(shaped_changes.chunks)
        self._incomplete = len(shaped_changes.incomplete)
        self._emptied = len(shaped_changes.emptied)

    def split(self, shaped_changes: ShapedChanges) -> ShapedChanges:
        """Cut off what comes after the mark, and return it."""
        keys = self._keys
        rest = ShapedChanges(
            keys=shaped_changes.keys[keys:],
            data=shaped_changes.data[keys:],
            failures=[
                msgspec.structs.replace(one, place=one.place - keys)
                for one in shaped_changes.failures[self._failures :]
            ],
            chunks=shaped_changes.chunks[self._chunks :],
            incomplete=[
                msgspec.structs.replace(one, place=one.place - keys)
                for one in shaped_changes.incomplete[self._incomplete :]
            ],
            emptied=[
                msgspec.structs.replace(one, place=one.place - keys) for one in shaped_changes.emptied[self._emptied :]
            ],
        )
        del shaped_changes.keys[keys:], shaped_changes.data[keys:]
        del shaped_changes.failures[self._failures :], shaped_changes.chunks[self._chunks :]
        del shaped_changes.incomplete[self._incomplete :], shaped_changes.emptied[self._emptied :]
        return rest
