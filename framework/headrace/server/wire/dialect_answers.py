"""Answers of dialects B (pull consumers) and C (consume API).

Messages are decoded no more than necessary. Their parts are sliced out as raw JSON and reassembled.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headrace.server.data_plane.receive_request import Share
from headrace.server.data_plane.registry import CachedConsumer
from headrace.server.wire.filters import FILLED
from headrace.server.wire.messages import Settled
from headrace.sources.postgres.settings import Action

_encode = msgspec.json.Encoder().encode


class _Captured(Struct):
    """Data that was captured from a table."""

    record: Raw
    metadata: dict[str, Raw]
    changes: Raw | UnsetType = UNSET
    action: Raw | UnsetType = UNSET


class ConsumerNamed(Struct):
    """The consumer that received the message."""

    id: str
    name: str


class _Data(Struct):
    record: Raw
    changes: Raw | UnsetType
    action: Raw | UnsetType
    metadata: dict[str, Any]


class _Change(_Data):
    ack_id: str
    ack_token: str


class _ChangeInData(Struct):
    ack_id: str
    ack_token: str
    data: _Data


_captured = msgspec.json.Decoder(_Captured)
_object = msgspec.json.Decoder(dict[str, Raw])


def changes(consumer: CachedConsumer, share: Share, *, in_data: bool = False) -> bytes:
    """Return the answer of dialect B.

    Data that is an object with `record` and `metadata` is a captured change or row. Any other data
    is the record itself, and its table is null.

    Args:
        in_data: whether the parts of a change are in `data`, instead of beside the ids.
    """
    named = ConsumerNamed(consumer.id, consumer.name)
    found = [_data(data, at, named) for data, at in zip(share.data, share.created_at, strict=True)]
    with_ids = _ChangeInData if in_data else _with_ids
    return _answer(share, [with_ids(ack_id, ack_id, one) for ack_id, one in zip(share.ack_ids, found, strict=True)])


def _answer(share: Share, data: list[Any], **more: Any) -> bytes:
    settled = {} if share.stale is None else {"stale": share.stale}
    return _encode({"data": data, **settled, **more})


def change(data: str | bytes, consumer: ConsumerNamed, ack_id: str) -> Struct | None:
    """Return a captured change or row as dialect B does, or None if a message's data is of another shape."""
    found = _captured_in(data, consumer)
    return None if found is None else _with_ids(ack_id, ack_id, found)


def _with_ids(ack_id: str, ack_token: str, found: _Data) -> _Change:
    return _Change(found.record, found.changes, found.action, found.metadata, ack_id, ack_token)


def _data(data: str, at: datetime, consumer: ConsumerNamed) -> _Data:
    found = _captured_in(data, consumer)
    if found is not None:
        return found
    metadata = {
        "table_schema": None,
        "table_name": None,
        "commit_timestamp": at,
        "commit_lsn": None,
        "commit_idx": None,
        "consumer": consumer,
    }
    return _Data(Raw(data), UNSET, UNSET, metadata)


def _captured_in(data: str | bytes, consumer: ConsumerNamed) -> _Data | None:
    try:
        found = _captured.decode(data)
    except (msgspec.DecodeError, RecursionError):  # of another shape, or JSON that only Postgres accepts
        return None
    return _Data(found.record, found.changes, found.action, {**found.metadata, "consumer": consumer})


def records(consumer: CachedConsumer, share: Share, pending: int, ack_pending: int) -> bytes:
    """Return the answer of dialect C.

    Data that is an object with a `data` member is the record. Any other data is the record's `data`.
    Members that the data lacks or has as null are filled from the message, see `FILLED`.
    """
    stream = consumer.stream.name
    found = [
        {"ack_token": ack_id, "record": _record(data, seq, stream, key, at)}
        for ack_id, data, seq, key, at in zip(
            share.ack_ids, share.data, share.seqs, share.keys, share.created_at, strict=True
        )
    ]
    return _answer(share, found, info={"num_pending": pending, "num_ack_pending": ack_pending})


def _record(data: str, seq: int, stream: str, key: str, at: datetime) -> dict[str, Any]:
    own = {"id": str(seq), "collection_id": stream, "resource_id": key, "data": None, "upstream_updated_at": at}
    try:
        given = _object.decode(data)
    except (msgspec.DecodeError, RecursionError):
        given = {}
    given = {name: value for name, value in given.items() if name not in FILLED or bytes(value) != b"null"}
    if "data" in given:
        return {**own, **given}
    return {**own, **{name: given[name] for name in FILLED if name in given}, "data": Raw(data)}


# --- the same answers, typed for OpenAPI


class Metadata(Struct, kw_only=True):
    """The origin of a change or row. Null members mean that the message did not come from a table."""

    table_schema: str | None
    table_name: str | None
    commit_timestamp: Annotated[datetime | None, Meta(description="Without a table, when it was published.")]
    commit_lsn: Any
    commit_idx: Any
    consumer: ConsumerNamed


class Change(Struct, kw_only=True):
    """A captured change or row. For any other message, its data is the `record`. If the request has `max_batch_size`, all but
    the ids is in `data`."""

    ack_id: str
    ack_token: Annotated[str, Meta(description="The same as `ack_id`.")]
    record: Any
    metadata: Metadata
    changes: Annotated[Any, Meta(description="Of an update, the old values of what has changed; else null.")] = None
    action: Annotated[
        Literal[Action, "read"] | UnsetType,
        Meta(description="`read` for a row of a backfill. Absent for a row and for any other message."),
    ] = UNSET


class Changes(Settled, kw_only=True):
    """The changes or rows that were received."""

    data: list[Change]


class Record(Struct, kw_only=True):
    """A record. Members that its data lacks are filled from the message."""

    id: Any
    collection_id: Any
    resource_id: Any
    data: Any
    upstream_updated_at: Any


class Next(Struct):
    """A record, and the token to ack it by."""

    ack_token: str
    record: Record


class NextInfo(Struct):
    """The consumer's backlog."""

    num_pending: Annotated[int, Meta(description="Messages that wait; as of a second ago at most.")]
    num_ack_pending: Annotated[int, Meta(description="Messages that are out and not settled.")]


class NextAnswer(Struct):
    """The records that were received."""

    data: list[Next]
    info: NextInfo
