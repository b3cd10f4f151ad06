"""Bodies of the requests that receive and settle messages, and of their answers, with their checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from headrace.model.durations import MAX_WAIT, seconds
from headrace.model.errors import ConfigurationError
from headrace.server.data_plane.bounds import MAX_RECEIVED, MAX_SETTLED
from headrace.server.data_plane.publish_bodies import WireMessage
from headrace.server.data_plane.receive_request import Share
from headrace.server.errors import invalid_value
from headrace.server.http import parameters

RECEIVE_PARAMETERS = ("batch_size", "max_batch_size", "wait_for")
"""Query parameters of a receive request."""


_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")
_BATCH_SIZES = f"Give a whole number that is at least 1 and at most {MAX_RECEIVED:,}."

_OTHER_MARKS = 100
"""More quotation marks than a settle request has besides those of its ids."""


class Receive(msgspec.Struct, forbid_unknown_fields=True):
    """A receive request.

    `batch_size`, or `max_batch_size`, limits the number of messages. `wait_for` is the wait for the first one, in
    milliseconds or as text such as "60s". The messages of `ack_ids` and `nack_ids` are settled before.
    """

    batch_size: int | msgspec.UnsetType = msgspec.UNSET
    wait_for: float | str | msgspec.UnsetType = msgspec.UNSET
    max_batch_size: int | None = None
    ack_ids: list[str] | None = None
    nack_ids: list[str] | None = None


class ReceiveOptions(msgspec.Struct, frozen=True):
    """What a receive request asks for, checked.

    Attributes:
        batch_size: the largest number of messages.
        wait_for: seconds to wait for the first one.
        ack_ids, nack_ids: messages that the client has handled, to be settled before. None without the field.
    """

    batch_size: int
    wait_for: float
    ack_ids: list[str] | None = None
    nack_ids: list[str] | None = None

    @property
    def settles(self) -> bool:
        """Whether the request has a field of messages to settle, even an empty one."""
        return self.ack_ids is not None or self.nack_ids is not None


class Settle(msgspec.Struct, forbid_unknown_fields=True):
    """The messages to ack, nack or extend. `ack_ids` and `ack_tokens` are synonyms."""

    ack_ids: list[str] | None = None
    ack_tokens: list[str] | None = None
    strict: bool = False


class Nack(Settle, forbid_unknown_fields=True):
    """The messages that failed, the delay until their next attempt, and the error. `snooze`: nothing has
    failed, and the attempt doesn't count."""

    delay_ms: float | None = None
    error: str | None = None
    snooze: bool = False


class Delivery(msgspec.Struct):
    """A message, and the id to ack it by."""

    ack_id: str
    message: WireMessage


_decode_receive = msgspec.json.Decoder(Receive).decode
_decode_settle = msgspec.json.Decoder(Settle).decode
_decode_nack = msgspec.json.Decoder(Nack).decode


def encode_deliveries(share: Share) -> bytes:
    """Encode received messages for dialect A: the `data` is a list of `Delivery`. The body also has the `stale` ids if the
    request settled earlier messages, those whose leases were lost."""
    pieces: list[bytes] = [b'{"data":[']
    if share.stale is not None:
        pieces = [b'{"stale":', msgspec.json.encode(share.stale), b',"data":[']
    start = b'{"ack_id":"'
    for ack_id, message, attempt in zip(share.ack_ids, share.messages, share.attempts, strict=True):
        pieces += (start, ack_id.encode(), b'","message":{', message.encoded, b',"attempt":%d}}' % attempt)
        start = b',{"ack_id":"'
    pieces.append(b"]}")
    return b"".join(pieces)  # in one pass, since messages may be large


def read_receive(body: bytes, query_string: bytes) -> ReceiveOptions:
    """Return what a receive request asks for, from the query and the body. The body takes precedence."""
    if not body or not body.strip():
        return _read_query(query_string)
    _check_count(body)
    receive = _decode_receive(body)
    size, wait_for = receive.batch_size, receive.wait_for
    if receive.max_batch_size is not None:
        size = receive.max_batch_size
    if size is msgspec.UNSET and wait_for is msgspec.UNSET:
        options = _read_query(query_string)
    else:
        query = parameters(query_string)
        options = _checked(
            _size_in(query) if size is msgspec.UNSET else size,
            query.get("wait_for", 0) if wait_for is msgspec.UNSET else wait_for,
        )
    if receive.ack_ids is None and receive.nack_ids is None:
        return options
    _check_settled("ack_ids", len(receive.ack_ids or ()) + len(receive.nack_ids or ()))
    return ReceiveOptions(options.batch_size, options.wait_for, receive.ack_ids, receive.nack_ids)


@lru_cache(maxsize=100)
def _read_query(text: bytes) -> ReceiveOptions:
    """Read the query of a request. A client usually sends the same one again."""
    query = parameters(text)
    return _checked(_size_in(query), query.get("wait_for", 0))


def _size_in(query: Mapping[str, str]) -> int:
    text = query.get("batch_size", query.get("max_batch_size", "1"))
    if not _INTEGER.fullmatch(text):
        raise invalid_value("batch_size", f"batch_size={text[:40]!r} is not a whole number", _BATCH_SIZES)
    return int(text)


@lru_cache(maxsize=100)
def _checked(batch_size: int, wait_for: float | str) -> ReceiveOptions:
    if not 1 <= batch_size <= MAX_RECEIVED:
        raise invalid_value("batch_size", f"batch_size={batch_size} is out of range", _BATCH_SIZES)
    return ReceiveOptions(batch_size, _seconds(wait_for))


def _seconds(wait_for: float | str) -> float:
    """Return the seconds to wait, from milliseconds or text such as "60s"."""
    try:
        wait = _milliseconds(wait_for) if isinstance(wait_for, str) else wait_for / 1000
    except (ConfigurationError, ValueError):
        wait = -1
    if not 0 <= wait <= MAX_WAIT:
        raise invalid_value(
            "wait_for",
            f"wait_for={wait_for!r} is invalid",
            f'Give 0 to {MAX_WAIT * 1000:,.0f} milliseconds, or a duration such as "60s", "500ms" or "5m".',
        )
    return wait


def _milliseconds(text: str) -> float:
    """Return seconds, from a number of milliseconds or a duration with a unit."""
    return float(text) / 1000 if text.replace(".", "", 1).isdecimal() else seconds(text, "wait_for")


def decode_settle(body: bytes) -> Settle:
    """Decode an ack or extend request. Raises errors that `error_response` converts."""
    _check_count(body)
    return _decode_settle(body)


def decode_nack(body: bytes) -> Nack:
    """Decode a nack request. Raises errors that `error_response` converts."""
    _check_count(body)
    return _decode_nack(body)


def _check_count(body: bytes) -> None:
    """Refuse a body with too many ids before it is decoded. Each id has two quotation marks, and those in other texts are
    escaped."""
    if len(body) > MAX_SETTLED and (found := body.count(b'"') - body.count(b'\\"')) > 2 * MAX_SETTLED + _OTHER_MARKS:
        raise invalid_value("ack_ids", f"There are about {found // 2:,} ack_ids", f"Give at most {MAX_SETTLED:,}.")


def ack_ids_field(body: Settle) -> str:
    """Return the field in which a settle request has its ids."""
    return "ack_tokens" if body.ack_tokens and not body.ack_ids else "ack_ids"


def ack_ids_of(body: Settle) -> list[str]:
    """Return the ids of a settle request, which may be none. Raises a `Problem` if they are missing or too many."""
    if body.ack_ids is None and body.ack_tokens is None:
        raise invalid_value(
            "ack_ids", "ack_ids is missing", "Give the list of the ack_ids that came with the messages."
        )
    ack_ids = (body.ack_ids or []) + (body.ack_tokens or [])
    _check_settled(ack_ids_field(body), len(ack_ids))
    return ack_ids


def _check_settled(field: str, count: int) -> None:
    if count > MAX_SETTLED:
        raise invalid_value(field, f"There are {count:,} {field}", f"Give at most {MAX_SETTLED:,}.")
