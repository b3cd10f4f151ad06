"""pgoutput's messages as bytes, written from its documentation and independent of the decoder."""

from __future__ import annotations

from headrace.sources.postgres.pgoutput import messages as m


def int8(value: int) -> bytes:
    return value.to_bytes(1, "big")


def int16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def int32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=value < 0)


def int64(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=value < 0)


def string(value: str) -> bytes:
    return value.encode() + b"\0"


def tuple_data(row: m.Row) -> bytes:
    return int16(len(row)) + b"".join(map(_value, row))


def _value(value: m.Value) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, bytes):
        return b"t" + int32(len(value)) + value
    return b"u"


def xid(message: m.Change | m.Relation | m.Type | m.LogicalMessage) -> bytes:
    return b"" if message.xid is None else int32(message.xid)


def encode(message: m.AnyMessage) -> bytes:
    """Encode one message. A change with an xid is encoded as inside a streamed piece."""
    match message:
        case m.Begin():
            return b"B" + int64(message.lsn) + int64(message.at) + int32(message.xid)
        case m.Commit():
            return b"C" + int8(0) + int64(message.lsn) + int64(message.end) + int64(message.at)
        case m.Origin():
            return b"O" + int64(message.lsn) + string(message.name)
        case m.Relation():
            names = string("" if message.schema == "pg_catalog" else message.schema) + string(message.name)
            columns = b"".join(map(_column, message.columns))
            count = int16(len(message.columns))
            return b"R" + xid(message) + int32(message.oid) + names + message.identity.encode() + count + columns
        case m.Type():
            names = string("" if message.schema == "pg_catalog" else message.schema) + string(message.name)
            return b"Y" + xid(message) + int32(message.oid) + names
        case m.Insert():
            return b"I" + xid(message) + int32(message.relation) + b"N" + tuple_data(message.new)
        case m.Update():
            old = b"" if message.old is None else (b"K" if message.key_only else b"O") + tuple_data(message.old)
            return b"U" + xid(message) + int32(message.relation) + old + b"N" + tuple_data(message.new)
        case m.Delete():
            mark = b"K" if message.key_only else b"O"
            return b"D" + xid(message) + int32(message.relation) + mark + tuple_data(message.old)
        case m.Truncate():
            options = int8(message.cascade + 2 * message.restart_identity)
            relations = b"".join(map(int32, message.relations))
            return b"T" + xid(message) + int32(len(message.relations)) + options + relations
        case m.LogicalMessage():
            head = int8(message.transactional) + int64(message.lsn) + string(message.prefix)
            return b"M" + xid(message) + head + int32(len(message.content)) + message.content
        case _:
            return _transaction(message)


def _column(column: m.Column) -> bytes:
    return int8(column.identity) + string(column.name) + int32(column.type_oid) + int32(column.type_modifier)


def _transaction(message: m.AnyMessage) -> bytes:
    match message:
        case m.StreamStart():
            return b"S" + int32(message.xid) + int8(message.first)
        case m.StreamStop():
            return b"E"
        case m.StreamCommit():
            return b"c" + int32(message.xid) + int8(0) + int64(message.lsn) + int64(message.end) + int64(message.at)
        case m.StreamAbort(lsn=None):
            return b"A" + int32(message.xid) + int32(message.subxid)
        case m.StreamAbort():
            assert message.lsn is not None
            assert message.at is not None
            return b"A" + int32(message.xid) + int32(message.subxid) + int64(message.lsn) + int64(message.at)
        case m.BeginPrepare():
            return b"b" + _prepared(message)
        case m.Prepare():
            return (b"p" if message.streamed else b"P") + int8(0) + _prepared(message)
        case m.CommitPrepared():
            return b"K" + int8(0) + _prepared(message)
        case m.RollbackPrepared():
            places = int64(message.prepare_end) + int64(message.end)
            times = int64(message.prepared_at) + int64(message.at)
            return b"r" + int8(0) + places + times + int32(message.xid) + string(message.gid)
    raise AssertionError(message)


def _prepared(message: m.BeginPrepare | m.Prepare | m.CommitPrepared) -> bytes:
    places = int64(message.lsn) + int64(message.end)
    return places + int64(message.at) + int32(message.xid) + string(message.gid)
