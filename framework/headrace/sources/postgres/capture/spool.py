"""The spool buffers transactions that the server streams while they are still open, until they commit.

They may be as large as a disk, so larger ones go to a temporary file. Losing it loses no data,
since the server sends everything again that was not confirmed.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator

MAX_MEMORY_BYTES = 256 * 1024
"""Bytes of a transaction that are kept in memory before it goes to a file."""

_HEADER = struct.Struct("!II")  # the subtransaction's xid, and the length of the message
READ_BYTES = 128 * 1024
"""Bytes of a file that are read at a time."""


class _OpenTransaction:
    """One open transaction."""

    def __init__(self, max_memory_bytes: int) -> None:
        self.file = tempfile.SpooledTemporaryFile(max_size=max_memory_bytes, prefix="headrace-spool-")  # noqa: SIM115 - closed by `close`
        self.aborted: set[int] = set()


class Spool:
    """The blocks of open transactions, by xid.

    Args:
        max_memory_bytes: bytes of a transaction that are kept in memory before it goes to a file.
        read_bytes: bytes of a file that are read at a time.
    """

    def __init__(self, *, max_memory_bytes: int = MAX_MEMORY_BYTES, read_bytes: int = READ_BYTES) -> None:
        self._max_memory_bytes = max_memory_bytes
        self._read_bytes = read_bytes
        self._transactions: dict[int, _OpenTransaction] = {}

    def __len__(self) -> int:
        return len(self._transactions)

    def add(self, xid: int, payload: bytes) -> None:
        """Add a message of a stream block. Its first byte is followed by the xid of its subtransaction."""
        transaction = self._transactions.get(xid)
        if transaction is None:
            transaction = self._transactions[xid] = _OpenTransaction(self._max_memory_bytes)
        write = transaction.file.write
        write(payload[1:5])
        write((len(payload) - 4).to_bytes(4, "big"))
        write(payload[:1])
        write(payload[5:])

    def abort(self, xid: int, subxid: int) -> None:
        """Handle the rollback of a subtransaction, or of the whole transaction if both xids are the same."""
        if xid == subxid:
            self.drop(xid)
        elif xid in self._transactions:
            self._transactions[xid].aborted.add(subxid)

    def replay(self, xid: int) -> Iterator[bytes]:
        """Yield the messages that were not rolled back, in order, in the format of a transaction that
        is not streamed. Then drop the transaction.
        """
        transaction = self._transactions.get(xid)
        if transaction is None:
            return
        try:
            transaction.file.seek(0)
            buffer = b""
            while data := transaction.file.read(self._read_bytes):
                buffer += data
                start = 0
                while len(buffer) - start >= _HEADER.size:
                    subxid, length = _HEADER.unpack_from(buffer, start)
                    end = start + _HEADER.size + length
                    if end > len(buffer):
                        break
                    if subxid not in transaction.aborted:
                        yield buffer[start + _HEADER.size : end]
                    start = end
                buffer = buffer[start:]
        finally:
            self.drop(xid)

    def drop(self, xid: int) -> None:
        """Drop a transaction."""
        transaction = self._transactions.pop(xid, None)
        if transaction is not None:
            transaction.file.close()

    def close(self) -> None:
        """Drop all transactions."""
        for xid in list(self._transactions):
            self.drop(xid)
