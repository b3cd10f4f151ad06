"""The change reader decodes one replication stream, and hands each change to the capturers that capture its table.

A capturer with its own slot has its own reader. The sources of a shared slot have one reader, so the server
decodes the WAL once for all of them. A capturer is touched only by transactions that have something for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import anyio
import anyio.lowlevel

from headrace.sources.postgres.capture.spool import Spool
from headrace.sources.postgres.connection.replication_stream import ReceivedPayloads
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.pgoutput.decoder import Decoder
from headrace.sources.postgres.pgoutput.messages import (
    CHANGES,
    AnyMessage,
    Begin,
    BeginPrepare,
    Change,
    Commit,
    CommitPrepared,
    LogicalMessage,
    Prepare,
    Relation,
    RollbackPrepared,
    ShortChange,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
)
from headrace.sources.postgres.shaping.shaped_changes import Transaction

REPLAY_PAUSE_EVERY = 500
"""Changes of a streamed transaction to replay before other tasks may run."""

_STREAM_STOP, _ORIGIN = ord("E"), ord("O")


class Taker(Protocol):
    """A capturer, as its reader sees it. `transaction` is the one that it has begun, and not committed."""

    transaction: Transaction | None

    @property
    def full(self) -> bool:
        """Whether `offer` must be awaited before the next change."""

    async def relation(self, relation: Relation) -> bool:
        """Note the current definition of a relation. Returns whether its changes are captured."""

    async def look(self) -> None:
        """Look at what the next changes depend on, and the WAL does not announce."""

    def begin(self, transaction: Transaction) -> None:
        """Begin a transaction. It is called before the first change or message that the capturer takes."""

    def change(self, change: Change, size: int) -> bool:
        """Take a change of its relations, which had `size` bytes on the wire. Returns whether other tasks should run
        before the next one, since it may take long or `full` is true."""

    def takes_message(self, message: LogicalMessage) -> bool:
        """Whether a message in the WAL is for this capturer."""

    def message(self, message: LogicalMessage) -> None:
        """Take such a message."""

    def commit(self, end: int) -> None:
        """End the transaction, whose commit ends at this position."""

    def idle(self, end: int) -> None:
        """Note that everything that was committed up to this position has been handed out."""

    async def offer(self) -> None:
        """Offer the appender what there is. Waits while there is no room."""


class ChangeReader:
    """Hands the changes of one replication connection to capturers, in the order of the WAL.

    Args:
        takers: the capturers.

    Attributes:
        position: everything that was committed up to here has been handed out.
        stops: whether to stop at the end of the current transaction. Later changes of the same batch are skipped.
    """

    def __init__(self, takers: Iterable[Taker]) -> None:
        self._takers = list(takers)
        self._decoder = Decoder(short_changes=True)
        self._spool = Spool()
        self._open_block: int | None = None  # xid of the streamed transaction that is arriving
        self._by_relation: dict[int, list[Taker]] = {}
        self._transaction: Transaction | None = None
        self._touched: list[Taker] = []
        self.position = 0
        self.stops = False

    @property
    def between_transactions(self) -> bool:
        """Whether no capturer has a part of a transaction."""
        return not self._touched

    def close(self) -> None:
        """Drop the transactions that are not committed."""
        self._spool.close()

    def remove(self, taker: Taker) -> None:
        """Hand nothing to a capturer any more."""
        self._takers = [one for one in self._takers if one is not taker]
        self._touched = [one for one in self._touched if one is not taker]
        for oid, takers in self._by_relation.items():
            self._by_relation[oid] = [one for one in takers if one is not taker]

    async def handle(self, received: ReceivedPayloads) -> None:
        """Hand out what was received. Waits while a capturer has no room.

        Raises:
            DecodeError, SourceStopped: the data is not usable.
        """
        decode = self._decoder.decode
        if received.payloads:
            for taker in self._takers:
                try:
                    await taker.look()
                except Exception as error:
                    self._failed(taker, error)
        for payload in received.payloads:
            if self._open_block is not None and payload[0] != _STREAM_STOP:
                if payload[0] != _ORIGIN:  # it has no xid, unlike the others in a block, and is not needed
                    self._spool.add(self._open_block, payload)
                continue
            message = decode(payload)
            if type(message) in CHANGES:
                if self._change(message, len(payload)):  # type: ignore[arg-type]
                    await self._make_room()
            elif type(message) is Begin:
                self._transaction = Transaction(message.lsn, message.at, message.xid)
            elif type(message) is Commit:
                self._commit(message.end)
                if self.stops:
                    return
            else:
                await self._handle_other(message)
                if self.stops and self._transaction is None:
                    return
        if self._transaction is None:
            self.position = max(self.position, received.end)
        for taker in self._takers:
            try:
                taker.idle(received.end)
                await self._offer(taker)
            except Exception as error:
                self._failed(taker, error)

    async def _handle_other(self, message: AnyMessage) -> None:
        match message:
            case Relation():
                await self._relation(message)
            case LogicalMessage():
                self._message(message)
            case StreamStart():
                self._open_block = message.xid
            case StreamStop():
                self._open_block = None
            case StreamAbort():
                self._spool.abort(message.xid, message.subxid)
            case StreamCommit():
                await self._replay(message)
            case BeginPrepare() | Prepare() | CommitPrepared() | RollbackPrepared():
                raise SourceStopped(
                    "The replication slot has two_phase on. It sends transactions before they are committed. Use a slot without two_phase."
                )

    async def _replay(self, commit: StreamCommit) -> None:
        """Hand out a streamed transaction that has committed."""
        self._transaction = Transaction(commit.lsn, commit.at, commit.xid)
        for count, payload in enumerate(self._spool.replay(commit.xid)):
            message = self._decoder.decode(payload)
            if type(message) in CHANGES:
                if self._change(message, len(payload)):  # type: ignore[arg-type]
                    await self._make_room()
            else:
                await self._handle_other(message)
            if count % REPLAY_PAUSE_EVERY == 0:
                await anyio.lowlevel.checkpoint()
        self._commit(commit.end)

    # --- to the capturers

    def _change(self, change: Change, size: int) -> bool:
        """Hand out a change. Returns whether `_make_room` must be awaited."""
        waits = False
        for taker in self._takers_of(change):
            try:
                if taker.transaction is None:
                    self._begin(taker)
                if taker.change(change, size):
                    waits = True
            except Exception as error:
                self._failed(taker, error)
        return waits

    def _takers_of(self, change: Change) -> Sequence[Taker]:
        if type(change) is ShortChange:  # the most frequent one
            return self._by_relation.get(change.layout.relation, ())
        if not isinstance(change, Truncate):
            return self._by_relation.get(change.relation, ())
        if len(self._takers) == 1:
            return self._takers
        truncated = [self._by_relation.get(oid, ()) for oid in change.relations]
        return [one for one in self._takers if any(one in takers for takers in truncated)]

    def _begin(self, taker: Taker) -> None:
        assert self._transaction is not None
        taker.begin(self._transaction)
        self._touched.append(taker)

    def _commit(self, end: int) -> None:
        self._transaction = None
        self.position = max(self.position, end)
        touched, self._touched = self._touched, []
        for taker in touched:
            try:
                taker.commit(end)
            except Exception as error:
                self._failed(taker, error)

    async def _relation(self, relation: Relation) -> None:
        captured = []
        for taker in self._takers:
            try:
                if await taker.relation(relation):
                    captured.append(taker)
            except Exception as error:
                self._failed(taker, error)
        self._by_relation[relation.oid] = [one for one in captured if one in self._takers]

    def _message(self, message: LogicalMessage) -> None:
        if self._transaction is None:
            return
        for taker in self._takers:
            try:
                if taker.takes_message(message):
                    if taker.transaction is None:
                        self._begin(taker)
                    taker.message(message)
            except Exception as error:
                self._failed(taker, error)

    async def _make_room(self) -> None:
        await anyio.lowlevel.checkpoint()
        for taker in self._full():
            try:
                await self._offer(taker)
            except Exception as error:
                self._failed(taker, error)

    def _full(self) -> Iterator[Taker]:
        return (taker for taker in self._takers if taker.full)

    # --- what a shared slot does differently

    async def _offer(self, taker: Taker) -> None:
        await taker.offer()

    def _failed(self, taker: Taker, error: Exception) -> None:
        """Handle the failure of one capturer."""
        raise error
