"""The spool buffers transactions that the server streams while they are still open, until they commit.

They may be as large as a disk, so larger ones go to a temporary file. Losing it loses no data,
since the server sends everything again that was not confirmed.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator

IN_MEMORY = 256 * 1024
"""Bytes of a transaction that are kept in memory before it goes to a file."""

_HEAD = struct.Struct("!II")  # the subtransaction's xid, and the length of the message
_READ = 1024 * 1024


class _Waiting:
    """One open transaction."""

    def __init__(self) -> None:
        self.file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, prefix="headrace-spool-")  # noqa: SIM115 - closed by `close`
        self.aborted: set[int] = set()


class Spool:
    """The pieces of open transactions, by xid."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, xid: int, payload: bytes) -> None:
        """Add a message of a streamed piece. Its first byte is followed by the xid of its subtransaction."""
        waiting = self._waiting.get(xid)
        if waiting is None:
            waiting = self._waiting[xid] = _Waiting()
        write = waiting.file.write
        write(payload[1:5])
        write((len(payload) - 4).to_bytes(4, "big"))
        write(payload[:1])
        write(payload[5:])

    def abort(self, xid: int, subxid: int) -> None:
        """Handle the rollback of a subtransaction, or of the whole transaction if both xids are the same."""
        if xid == subxid:
            self.drop(xid)
        elif xid in self._waiting:
            self._waiting[xid].aborted.add(subxid)

    def replay(self, xid: int) -> Iterator[bytes]:
        """Yield the messages that were not rolled back, in order, in the format of a transaction that
        is not streamed. Then drop the transaction.
        """
        waiting = self._waiting.get(xid)
        if waiting is None:
            return
        try:
            waiting.file.seek(0)
            rest = b""
            while more := waiting.file.read(_READ):
                rest += more
                place = 0
                while len(rest) - place >= _HEAD.size:
                    subxid, length = _HEAD.unpack_from(rest, place)
                    end = place + _HEAD.size + length
                    if end > len(rest):
                        break
                    if subxid not in waiting.aborted:
                        yield rest[place + _HEAD.size : end]
                    place = end
                rest = rest[place:]
        finally:
            self.drop(xid)

    def drop(self, xid: int) -> None:
        """Drop a transaction."""
        waiting = self._waiting.pop(xid, None)
        if waiting is not None:
            waiting.file.close()

    def close(self) -> None:
        """Drop all transactions."""
        for xid in list(self._waiting):
            self.drop(xid)
