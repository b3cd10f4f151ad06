"""Request and answer bodies of the data plane, with their checks.

The data of a message is taken from the request and put into the answer as the JSON text that it is. It is not decoded in
between.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from headrace.model.durations import seconds
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.model.keys import check_key
from headrace.model.messages import payloads
from headrace.model.messages.payloads import RESERVED_MESSAGE_IDS
from headrace.model.messages.publish_options import PLAIN, PublishOptions
from headrace.model.settings import Setting, amount, settings_of
from headrace.server.data_plane.bounds import MAX_PUBLISHED, MAX_RECEIVED, MAX_SETTLED, MAX_WAIT
from headrace.server.data_plane.publish_batching import Incoming
from headrace.server.data_plane.receive_request import Share
from headrace.server.errors import Problem
from headrace.server.http import parameters

T = TypeVar("T", bound=msgspec.Struct)

RECEIVE_PARAMETERS = ("batch_size", "max_batch_size", "wait_for")
"""Query parameters of a receive request."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")
_BATCH_SIZES = f"Give a whole number that is at least 1 and at most {MAX_RECEIVED:,}."

_OTHER_MARKS = 100
"""More quotation marks than a settle request has besides those of its ids."""

_NULL = msgspec.Raw(b"null")
_MISSING = msgspec.Raw()


_SETTINGS = {setting.names[0]: setting for setting in settings_of(PublishOptions).values()}
"""The options of a message by their names in a request."""


def _with_options(cls: type[T]) -> type[T]:
    fields = [
        (name, (float if name.endswith("_ms") else one.kind) | None | msgspec.UnsetType, msgspec.UNSET)
        for name, one in _SETTINGS.items()
    ]
    return msgspec.defstruct(  # type: ignore[return-value]
        cls.__name__, fields, bases=(cls,), module=__name__, kw_only=True, forbid_unknown_fields=True
    )


@_with_options
class NewMessage(msgspec.Struct, kw_only=True):
    """A message to publish."""

    key: str
    data: msgspec.Raw
    headers: msgspec.Raw = _NULL


@_with_options
class Publish(msgspec.Struct, kw_only=True):
    """One message to publish, or several, all or none."""

    messages: list[NewMessage] | None = None
    key: str | None = None
    data: msgspec.Raw = _MISSING
    headers: msgspec.Raw = _NULL


class Receive(msgspec.Struct, forbid_unknown_fields=True):
    """A receive request.

    `batch_size`, or `max_batch_size`, limits the number of messages. `wait_for` is the wait for the first one, in
    milliseconds or as text such as "60s".
    """

    batch_size: int = 1
    wait_for: float | str = 0
    max_batch_size: int | None = None


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


class WireMessage(msgspec.Struct):
    """A delivered message."""

    key: str
    data: msgspec.Raw
    seq: int
    stream_id: str
    headers: msgspec.Raw
    inserted_at: datetime
    updated_at: datetime
    attempt: int
    expires_at: datetime | msgspec.UnsetType = msgspec.UNSET


class Delivery(msgspec.Struct):
    """A message, and the id to ack it by."""

    ack_id: str
    message: WireMessage


class Deliveries(msgspec.Struct):
    """The messages that were received."""

    data: list[Delivery]


_ONE = {one.name: one.default for one in msgspec.structs.fields(Publish) if one.name != "messages"}
"""The fields of a request with one message, and their defaults."""


def _with_fields_of_answers(cls: type[T], **fields: Any) -> type[T]:
    """Make the type that also has the fields of received messages. Their values are ignored."""
    more = [name for name in WireMessage.__struct_fields__ if name not in cls.__struct_fields__]
    made = [*((name, Any, None) for name in more), *((name, type_, None) for name, type_ in fields.items())]
    return msgspec.defstruct(  # type: ignore[return-value]
        cls.__name__, made, bases=(cls,), module=__name__, kw_only=True, forbid_unknown_fields=True
    )


_ReceivedMessage = _with_fields_of_answers(NewMessage)

_decode_publish = msgspec.json.Decoder(Publish).decode
_decode_received = msgspec.json.Decoder(
    _with_fields_of_answers(Publish, messages=list[_ReceivedMessage] | None)  # type: ignore[valid-type]
).decode
_decode_receive = msgspec.json.Decoder(Receive).decode
_decode_settle = msgspec.json.Decoder(Settle).decode
_decode_nack = msgspec.json.Decoder(Nack).decode


def encode_deliveries(share: Share) -> bytes:
    """Encode received messages for dialect A, as `Deliveries`."""
    pieces: list[bytes] = [b'{"data":[']
    start = b'{"ack_id":"'
    for ack_id, message, attempt in zip(share.ack_ids, share.messages, share.attempts, strict=True):
        pieces += (start, ack_id.encode(), b'","message":{', message.encoded, b',"attempt":%d}}' % attempt)
        start = b',{"ack_id":"'
    pieces.append(b"]}")
    return b"".join(pieces)  # in one pass, since messages may be large


def read_messages(body: bytes, *, received: bool = False) -> Incoming:
    """Decode and check a publish request. Raises errors that `error_response` converts.

    Args:
        received: whether its messages may have all fields of received ones.
    """
    publish = (_decode_received if received else _decode_publish)(body)
    messages = _messages(publish)
    if not 1 <= len(messages) <= MAX_PUBLISHED:
        raise InvalidInput(f"A request has {len(messages):,} messages. Send 1 to {MAX_PUBLISHED:,}.", field="messages")
    incoming = Incoming()
    for number, message in enumerate(messages):
        field = "data"
        try:
            data = payloads.encode(message.data)
            field = "headers"
            incoming.add(message.key or "", data, _headers(message.headers), _options(message))
        except InvalidInput as error:
            error.field = error.field or field
            if publish.messages is not None:
                error.field = f"messages[{number}].{error.field}"
            raise
    return incoming


_values = attrgetter(*_SETTINGS)
_UNSET = msgspec.UNSET
_NO_VALUES = (_UNSET,) * len(_SETTINGS)
_DURATIONS = {name: setting for name, setting in _SETTINGS.items() if name.endswith("_ms")}


def _options(message: NewMessage | Publish) -> PublishOptions:
    values = _values(message)
    if values == _NO_VALUES:  # as mostly
        return PLAIN
    sent = zip(_SETTINGS, values, strict=True)
    found: dict[str, Any] = {name: value for name, value in sent if value is not _UNSET and value is not None}
    for name in found.keys() & _DURATIONS.keys():
        setting = _DURATIONS[name]
        found[setting.name] = _in_seconds(name, found.pop(name), setting)
    message_id = found.get("message_id")
    if message_id is not None and message_id.startswith(RESERVED_MESSAGE_IDS):
        raise InvalidInput(
            f"The message id {message_id!r:.80} is reserved, since it begins with {RESERVED_MESSAGE_IDS!r}. Give another one.",
            field="message_id",
        )
    if "delay" in found and "deliver_at" in found:
        raise InvalidInput("A message has deliver_at and delay_ms. Give one of them.", field="delay_ms")
    return PublishOptions.of(**found) if "delay" in found or "deliver_at" in found else PublishOptions(**found)


def _in_seconds(name: str, milliseconds: float, setting: Setting) -> float:
    low, high = setting.limits or (0, math.inf)
    if not low * 1000 <= milliseconds <= high * 1000:
        raise _invalid(
            name,
            f"{name}={milliseconds:g} is out of range",
            f"Give {low * 1000:g} to {high * 1000:,.0f} milliseconds, which is {amount(high, 'seconds')}.",
        )
    return milliseconds / 1000


def delay_in_seconds(milliseconds: float) -> float:
    """Convert the delay of a nack to seconds. Raises a `Problem` if it is out of range."""
    return _in_seconds("delay_ms", milliseconds, _SETTINGS["delay_ms"])


def invalid_field(messages: Incoming) -> str:
    """Return the field of a publish request that an error of the store is about."""
    for number, key in enumerate(messages.keys):
        try:
            check_key(key)
        except InvalidInput:
            return "key" if len(messages) == 1 else f"messages[{number}].key"
    return "data" if len(messages) == 1 else "messages"


def _messages(publish: Publish) -> Sequence[NewMessage | Publish]:
    if publish.messages is not None:
        beside = [name for name, default in _ONE.items() if getattr(publish, name) != default]
        if beside:
            raise _invalid(
                "messages", f"messages is given with {', '.join(beside)}", "Give each of the messages its own fields."
            )
        return publish.messages
    if publish.key is None:
        raise _invalid(
            "key", "key is missing", 'Give a text such as "orders.us.42", or "messages": [{"key", "data"}, …].'
        )
    if publish.data == _MISSING:
        raise _invalid("data", "data is missing", "Give any JSON value.")
    return [publish]


def _headers(raw: msgspec.Raw) -> str | None:
    text = payloads.encode(raw)
    if text == "null":
        return None
    if not text.lstrip().startswith("{"):
        raise InvalidInput('headers is not a JSON object. Give an object such as {"trace": "abc"}.')
    return text


def read_receive(body: bytes, query_string: bytes) -> tuple[int, float]:
    """Return the batch size and the seconds to wait, from the query and the body. The body takes precedence."""
    if not body:
        return _read_query(query_string)
    receive = _decode_receive(body) if body.strip() else Receive()
    query = parameters(query_string)
    if query:
        if "batch_size" in query and b"batch_size" not in body:
            receive.batch_size = _batch_size(query["batch_size"])
        if "wait_for" in query and b"wait_for" not in body:
            receive.wait_for = query["wait_for"]
        if "max_batch_size" in query and b"batch_size" not in body:
            receive.max_batch_size = _batch_size(query["max_batch_size"])
    return _checked(receive)


@lru_cache(maxsize=100)
def _read_query(text: bytes) -> tuple[int, float]:
    """Read the query of a request without a body. A client usually sends the same one again."""
    query = parameters(text)
    size = query.get("batch_size", query.get("max_batch_size", "1"))
    return _checked(Receive(_batch_size(size), query.get("wait_for", 0)))


def _checked(receive: Receive) -> tuple[int, float]:
    if receive.max_batch_size is not None:
        receive.batch_size = receive.max_batch_size
    if not 1 <= receive.batch_size <= MAX_RECEIVED:
        raise _invalid("batch_size", f"batch_size={receive.batch_size} is out of range", _BATCH_SIZES)
    return receive.batch_size, _seconds(receive.wait_for)


def _seconds(wait_for: float | str) -> float:
    """Return the seconds to wait, from milliseconds or text such as "60s"."""
    try:
        wait = _milliseconds(wait_for) if isinstance(wait_for, str) else wait_for / 1000
    except (ConfigurationError, ValueError):
        wait = -1
    if not 0 <= wait <= MAX_WAIT:
        raise _invalid(
            "wait_for",
            f"wait_for={wait_for!r} is invalid",
            f'Give 0 to {MAX_WAIT * 1000:,.0f} milliseconds, or a duration such as "60s", "500ms" or "5m".',
        )
    return wait


def _milliseconds(text: str) -> float:
    """Return seconds, from a number of milliseconds or a duration with a unit."""
    return float(text) / 1000 if text.replace(".", "", 1).isdecimal() else seconds(text, "wait_for")


def _batch_size(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise _invalid("batch_size", f"batch_size={text[:40]!r} is not a whole number", _BATCH_SIZES)
    return int(text)


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
        raise _invalid("ack_ids", f"There are about {found // 2:,} ack_ids", f"Give at most {MAX_SETTLED:,}.")


def ack_ids_field(body: Settle) -> str:
    """Return the field in which a settle request has its ids."""
    return "ack_tokens" if body.ack_tokens and not body.ack_ids else "ack_ids"


def ack_ids_of(body: Settle) -> list[str]:
    """Return the ids of a settle request, which may be none. Raises a `Problem` if they are missing or too many."""
    if body.ack_ids is None and body.ack_tokens is None:
        raise _invalid("ack_ids", "ack_ids is missing", "Give the list of the ack_ids that came with the messages.")
    ack_ids = (body.ack_ids or []) + (body.ack_tokens or [])
    if len(ack_ids) > MAX_SETTLED:
        raise _invalid(ack_ids_field(body), f"There are {len(ack_ids):,} ack_ids", f"Give at most {MAX_SETTLED:,}.")
    return ack_ids


def _invalid(field: str, problem: str, remedy: str) -> Problem:
    return Problem(422, "invalid", f"{problem}. {remedy}", validation_errors={field: [remedy]})
