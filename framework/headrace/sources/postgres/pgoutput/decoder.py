"""Decodes pgoutput's bytes to messages, for protocol versions 1 to 4.

The layout is described at
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html. Inside a block
of a streamed transaction, every change carries the xid of its transaction. The decoder therefore has to know whether
a block is open.

Reading a row is the hot path. It uses slices, which never fail, and `decode` checks at the end that
exactly all bytes were used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from headrace.model.errors import HeadraceError
from headrace.sources.postgres.pgoutput.messages import (
    UNCHANGED,
    AnyMessage,
    Begin,
    BeginPrepare,
    Column,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    Row,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
)
from headrace.sources.postgres.pgoutput.short_changes import ShortChangeDecoder


class DecodeError(HeadraceError):
    """Raised when the server's data is not pgoutput, or not in the requested format."""

    exit_code = 76  # EX_PROTOCOL


Decoded = tuple[AnyMessage, int]
"""A message, and the index after its last byte."""

Reader = Callable[[bytes, int, int | None], Decoded]
"""Reads a message, given the index of its first field after kind and xid."""

_TEXT: Final = ord("t")
_NULL: Final = ord("n")
_UNCHANGED: Final = ord("u")
_BINARY: Final = ord("b")
_NEW: Final = ord("N")
_OLD: Final = ord("O")
_OLD_KEY: Final = ord("K")

_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_LSN = struct.Struct(">Q")
_OID = struct.Struct(">I")
_COLUMN = struct.Struct(">Ii")
_COUNT = struct.Struct(">H")
_TRUNCATE = struct.Struct(">IB")
_MESSAGE = struct.Struct(">BQ")
_STREAM_START = struct.Struct(">IB")
_STREAM_COMMIT = struct.Struct(">IBQQq")
_STREAM_ABORT = struct.Struct(">II")
_STREAM_ABORT_AT = struct.Struct(">IIQq")
_BEGIN_PREPARE = struct.Struct(">QQqI")
_PREPARE = struct.Struct(">BQQqI")
_ROLLBACK_PREPARED = struct.Struct(">BQQqqI")


class Decoder:
    """Decodes the messages of one connection, in the order in which they came.

    Args:
        short_changes: whether inserts and updates of short values become a `ShortChange`, which takes half of the time.
    """

    def __init__(self, *, short_changes: bool = False) -> None:
        self._in_block = False
        self._may_be_short = b"IU" if short_changes else b""
        self._decode_short_change = ShortChangeDecoder().decode

    def decode(self, data: bytes) -> AnyMessage:
        """Return the message in `data`, the content of one copy-data payload.

        Raises:
            DecodeError: it is no message, is cut off, has more bytes after it, or is not allowed
                here.
        """
        try:
            if self._in_block:
                message, end = self._decode_in_block(data)
            elif data[0] in self._may_be_short and (change := self._decode_short_change(data)) is not None:
                return change
            else:
                message, end = _READERS[data[0]](data, 1, None)
                if data[0] == _START:
                    self._in_block = end == len(data)
        except (LookupError, ValueError, struct.error):
            raise DecodeError(self._error_text(data)) from None
        if end != len(data):
            raise DecodeError(self._error_text(data))
        return message

    def _decode_in_block(self, data: bytes) -> Decoded:
        if data == b"E":
            self._in_block = False
            return StreamStop(), 1
        if data[0] == _ORIGIN:
            return _origin(data, 1, None)
        return _READERS_IN_BLOCK[data[0]](data, 5, _OID.unpack_from(data, 1)[0])

    def _error_text(self, data: bytes) -> str:
        if not data:
            return "The captured server sent an empty message."
        kind, place = chr(data[0]), "inside a stream block" if self._in_block else "outside of a stream block"
        known = (b"E"[0], _ORIGIN, *_READERS_IN_BLOCK) if self._in_block else _READERS
        if data[0] not in known:
            return f"The captured server sent a message of kind {kind!r} {place}. The protocols 1 to 4 of pgoutput do not have it there."
        shown = data[:32].hex(" ") + (" …" if len(data) > 32 else "")
        return f"The captured server sent an invalid message of kind {kind!r} {place}: {len(data)} bytes, {shown}."


def _row(data: bytes, at: int) -> tuple[Row, int]:
    count = data[at] << 8 | data[at + 1]
    at += 2
    row: Row = []
    add = row.append
    for _ in range(count):
        kind = data[at]
        if kind == _TEXT:
            start = at + 5
            # Nearly all values are short, with their length in the last byte alone.
            if data[at + 1 : at + 4] == b"\0\0\0":
                at = start + data[at + 4]
            else:
                at = start + int.from_bytes(data[at + 1 : start], "big")
            add(data[start:at])
        elif kind == _NULL:
            add(None)
            at += 1
        elif kind == _UNCHANGED:
            add(UNCHANGED)
            at += 1
        elif kind == _BINARY:
            raise DecodeError("The captured server sent a binary value. The option binary must be off.")
        else:
            raise ValueError(kind)
    return row, at


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    # A database in SQL_ASCII may hold any bytes.
    return data[at:end].decode(errors="replace"), end + 1


def _begin(data: bytes, at: int, xid: int | None) -> Decoded:
    return Begin(*_BEGIN.unpack_from(data, at)), at + _BEGIN.size


def _commit(data: bytes, at: int, xid: int | None) -> Decoded:
    _, lsn, end, committed_at = _COMMIT.unpack_from(data, at)
    return Commit(lsn, end, committed_at), at + _COMMIT.size


def _origin(data: bytes, at: int, xid: int | None) -> Decoded:
    (lsn,) = _LSN.unpack_from(data, at)
    name, end = _string(data, at + _LSN.size)
    return Origin(lsn, name), end


def _insert(data: bytes, at: int, xid: int | None) -> Decoded:
    if data[at + 4] != _NEW:
        raise ValueError(data[at + 4])
    new, end = _row(data, at + 5)
    return Insert(int.from_bytes(data[at : at + 4], "big"), new, xid), end


def _update(data: bytes, at: int, xid: int | None) -> Decoded:
    relation = int.from_bytes(data[at : at + 4], "big")
    at += 4
    kind = data[at]
    old: Row | None = None
    if kind in (_OLD, _OLD_KEY):
        old, at = _row(data, at + 1)
    if data[at] != _NEW:
        raise ValueError(data[at])
    new, at = _row(data, at + 1)
    return Update(relation, new, old, kind == _OLD_KEY, xid), at


def _delete(data: bytes, at: int, xid: int | None) -> Decoded:
    kind = data[at + 4]
    if kind not in (_OLD, _OLD_KEY):
        raise ValueError(kind)
    old, end = _row(data, at + 5)
    return Delete(int.from_bytes(data[at : at + 4], "big"), old, kind == _OLD_KEY, xid), end


def _truncate(data: bytes, at: int, xid: int | None) -> Decoded:
    count, options = _TRUNCATE.unpack_from(data, at)
    at += _TRUNCATE.size
    if count * 4 != len(data) - at:
        raise ValueError(count)
    relations = struct.unpack_from(f">{count}I", data, at)
    return Truncate(relations, bool(options & 1), bool(options & 2), xid), len(data)


def _relation(data: bytes, at: int, xid: int | None) -> Decoded:
    (oid,) = _OID.unpack_from(data, at)
    schema, at = _string(data, at + 4)
    name, at = _string(data, at)
    identity = chr(data[at])
    if identity not in "dnfi":
        raise ValueError(identity)
    (count,) = _COUNT.unpack_from(data, at + 1)
    at += 3
    columns: list[Column] = []
    for _ in range(count):
        flags = data[at]
        column, at = _string(data, at + 1)
        type_oid, modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(Column(column, type_oid, modifier, bool(flags & 1)))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns), xid), at


def _type(data: bytes, at: int, xid: int | None) -> Decoded:
    (oid,) = _OID.unpack_from(data, at)
    schema, at = _string(data, at + 4)
    name, at = _string(data, at)
    return Type(oid, schema or "pg_catalog", name, xid), at


def _message(data: bytes, at: int, xid: int | None) -> Decoded:
    flags, lsn = _MESSAGE.unpack_from(data, at)
    prefix, at = _string(data, at + _MESSAGE.size)
    (length,) = _OID.unpack_from(data, at)
    at += 4
    return LogicalMessage(bool(flags & 1), lsn, prefix, data[at : at + length], xid), at + length


def _stream_start(data: bytes, at: int, xid: int | None) -> Decoded:
    of, first = _STREAM_START.unpack_from(data, at)
    return StreamStart(of, first == 1), at + _STREAM_START.size


def _stream_commit(data: bytes, at: int, xid: int | None) -> Decoded:
    of, _, lsn, end, committed_at = _STREAM_COMMIT.unpack_from(data, at)
    return StreamCommit(of, lsn, end, committed_at), at + _STREAM_COMMIT.size


def _stream_abort(data: bytes, at: int, xid: int | None) -> Decoded:
    if len(data) - at > _STREAM_ABORT.size:
        return StreamAbort(*_STREAM_ABORT_AT.unpack_from(data, at)), at + _STREAM_ABORT_AT.size
    return StreamAbort(*_STREAM_ABORT.unpack_from(data, at)), at + _STREAM_ABORT.size


def _begin_prepare(data: bytes, at: int, xid: int | None) -> Decoded:
    lsn, end, committed_at, of = _BEGIN_PREPARE.unpack_from(data, at)
    gid, at = _string(data, at + _BEGIN_PREPARE.size)
    return BeginPrepare(lsn, end, committed_at, of, gid), at


def _prepare(data: bytes, at: int, xid: int | None) -> Decoded:
    _, lsn, end, committed_at, of = _PREPARE.unpack_from(data, at)
    gid, end_of_gid = _string(data, at + _PREPARE.size)
    return Prepare(lsn, end, committed_at, of, gid, data[0] == _STREAM_PREPARE), end_of_gid


def _commit_prepared(data: bytes, at: int, xid: int | None) -> Decoded:
    _, lsn, end, committed_at, of = _PREPARE.unpack_from(data, at)
    gid, at = _string(data, at + _PREPARE.size)
    return CommitPrepared(lsn, end, committed_at, of, gid), at


def _rollback_prepared(data: bytes, at: int, xid: int | None) -> Decoded:
    _, prepare_end, end, prepared_at, committed_at, of = _ROLLBACK_PREPARED.unpack_from(data, at)
    gid, at = _string(data, at + _ROLLBACK_PREPARED.size)
    return RollbackPrepared(prepare_end, end, prepared_at, committed_at, of, gid), at


_START: Final = ord("S")
_ORIGIN: Final = ord("O")
_STREAM_PREPARE: Final = ord("p")

_READERS_IN_BLOCK: dict[int, Reader] = {
    ord("R"): _relation,
    ord("Y"): _type,
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("T"): _truncate,
    ord("M"): _message,
}
"""Readers of the messages that have an xid inside a block. The xid is read before the reader is called."""

_READERS: dict[int, Reader] = {
    **_READERS_IN_BLOCK,
    ord("B"): _begin,
    ord("C"): _commit,
    _ORIGIN: _origin,
    _START: _stream_start,
    ord("c"): _stream_commit,
    ord("A"): _stream_abort,
    ord("b"): _begin_prepare,
    ord("P"): _prepare,
    ord("K"): _commit_prepared,
    ord("r"): _rollback_prepared,
    _STREAM_PREPARE: _prepare,
}
