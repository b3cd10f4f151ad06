"""Bodies of publish requests, with their checks, and messages as answers show them.

The data of a message is taken from the request and put into the answer as the JSON text that it is. It is not decoded in
between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from headrace.model.errors import InvalidInput
from headrace.model.keys import check_key
from headrace.model.messages import payloads
from headrace.model.messages.payloads import RESERVED_MESSAGE_IDS
from headrace.model.messages.publish_options import PLAIN, PublishOptions
from headrace.model.settings import Setting, amount, settings_of
from headrace.server.data_plane.bounds import MAX_PUBLISHED
from headrace.server.data_plane.publish_batching import Incoming
from headrace.server.errors import Problem, invalid_value

T = TypeVar("T", bound=msgspec.Struct)


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


@_with_options
class StreamMessage(msgspec.Struct, kw_only=True):
    """A message to publish, and its stream by id or name."""

    stream: str
    key: str
    data: msgspec.Raw
    headers: msgspec.Raw = _NULL


class PublishToStreams(msgspec.Struct, forbid_unknown_fields=True):
    """Messages to publish to their streams, all or none."""

    messages: list[StreamMessage]


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
_decode_to_streams = msgspec.json.Decoder(PublishToStreams).decode
_decode_received = msgspec.json.Decoder(
    _with_fields_of_answers(Publish, messages=list[_ReceivedMessage] | None)  # type: ignore[valid-type]
).decode


def read_messages(body: bytes, *, received: bool = False) -> Incoming:
    """Decode and check a publish request. Raises errors that `error_response` converts.

    Args:
        received: whether its messages may have all fields of received ones.
    """
    publish = (_decode_received if received else _decode_publish)(body)
    messages = _messages(publish)
    _check_count(len(messages))
    incoming = Incoming()
    for number, message in enumerate(messages):
        _add(incoming, message, None if publish.messages is None else number)
    return incoming


def read_messages_of_streams(body: bytes) -> list[tuple[str, Incoming]]:
    """Decode and check a request that publishes to several streams. Returns each message with its stream, in their order.
    Raises errors that `error_response` converts."""
    messages = _decode_to_streams(body).messages
    _check_count(len(messages))
    found = []
    for number, message in enumerate(messages):
        incoming = Incoming()
        _add(incoming, message, number)
        try:
            check_key(message.key)  # the store can't name the invalid one
        except InvalidInput as error:
            error.field = f"messages[{number}].key"
            raise
        found.append((message.stream, incoming))
    return found


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_PUBLISHED:
        raise InvalidInput(f"A request has {count:,} messages. Send 1 to {MAX_PUBLISHED:,}.", field="messages")


def _add(incoming: Incoming, message: NewMessage | Publish | StreamMessage, number: int | None) -> None:
    """Add a message of a request. An error names its field, and its number among several."""
    field = "data"
    try:
        data = payloads.encode(message.data)
        field = "headers"
        incoming.add(message.key or "", data, _headers(message.headers), _options(message))
    except InvalidInput as error:
        error.field = error.field or field
        if number is not None:
            error.field = f"messages[{number}].{error.field}"
        raise
    except Problem as problem:
        if number is not None and problem.validation_errors is not None:
            problem.validation_errors = {
                f"messages[{number}].{name}": texts for name, texts in problem.validation_errors.items()
            }
        raise


_values = attrgetter(*_SETTINGS)
_UNSET = msgspec.UNSET
_NO_VALUES = (_UNSET,) * len(_SETTINGS)
_DURATIONS = {name: setting for name, setting in _SETTINGS.items() if name.endswith("_ms")}


def _options(message: NewMessage | Publish | StreamMessage) -> PublishOptions:
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
        raise invalid_value(
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
            raise invalid_value(
                "messages", f"messages is given with {', '.join(beside)}", "Give each of the messages its own fields."
            )
        return publish.messages
    if publish.key is None:
        raise invalid_value(
            "key", "key is missing", 'Give a text such as "orders.us.42", or "messages": [{"key", "data"}, …].'
        )
    if publish.data == _MISSING:
        raise invalid_value("data", "data is missing", "Give any JSON value.")
    return [publish]


def _headers(raw: msgspec.Raw) -> str | None:
    text = payloads.encode(raw)
    if text == "null":
        return None
    if not text.lstrip().startswith("{"):
        raise InvalidInput('headers is not a JSON object. Give an object such as {"trace": "abc"}.')
    return text
