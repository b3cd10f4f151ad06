"""Request and answer bodies of the data plane, with their checks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from headrace.model import payloads
from headrace.model.durations import seconds
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.server.data_plane.publish_batching import Incoming
from headrace.server.data_plane.receive_request import Share
from headrace.server.engine import LONGEST_WAIT, MOST_RECEIVED
from headrace.server.errors import Problem
from headrace.server.transport.http import Call

MOST_ACK_IDS = 10_000
"""Largest number of messages that one request may settle."""

_NULL = msgspec.Raw(b"null")
_MISSING = msgspec.Raw()


class NewMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message to publish."""

    key: str
    data: msgspec.Raw
    headers: msgspec.Raw = _NULL
    message_id: str | None = None
    deliver_at: datetime | None = None
    delay_ms: float | None = None


class Publish(msgspec.Struct, forbid_unknown_fields=True):
    """One message to publish, or several, all or none."""

    messages: list[NewMessage] | None = None
    key: str | None = None
    data: msgspec.Raw = _MISSING
    headers: msgspec.Raw = _NULL
    message_id: str | None = None
    deliver_at: datetime | None = None
    delay_ms: float | None = None


class Receive(msgspec.Struct, forbid_unknown_fields=True):
    """A receive request.

    `batch_size` limits the number of messages. `wait_for` is the wait for the first one, in
    milliseconds or as text such as "60s".
    """

    batch_size: int = 1
    wait_for: float | str = 0


class Settle(msgspec.Struct, forbid_unknown_fields=True):
    """The messages to ack, nack or extend. `ack_ids` and `ack_tokens` are synonyms."""

    ack_ids: list[str] = []
    ack_tokens: list[str] = []
    strict: bool = False


class Nack(Settle, forbid_unknown_fields=True):
    """The messages that failed, the delay until their next attempt, and the error."""

    delay_ms: float | None = None
    error: str | None = None


class WireMessage(msgspec.Struct):
    """A delivered message."""

    key: str
    data: msgspec.Raw
    seq: int
    stream_id: str
    headers: msgspec.Raw
    inserted_at: datetime
    attempt: int


class Delivery(msgspec.Struct):
    """A message, and the id to ack it by."""

    ack_id: str
    message: WireMessage


class Deliveries(msgspec.Struct):
    """The messages that were received."""

    data: list[Delivery]


_publish = msgspec.json.Decoder(Publish)
_receive = msgspec.json.Decoder(Receive)


def told(share: Share) -> bytes:
    """Encode received messages for dialect A, as `Deliveries`."""
    return b'{"data":[%b]}' % b",".join([
        b'{"ack_id":"%b","message":{%b,"attempt":%d}}' % (ack_id.encode(), message.told, attempt)
        for ack_id, message, attempt in zip(share.ack_ids, share.messages, share.attempts, strict=True)
    ])  # fmt: skip


def read_messages(body: bytes) -> Incoming:
    """Decode and check a publish request. Raises errors that `reply_of` converts."""
    asked = _publish.decode(body)
    incoming = Incoming()
    for number, message in enumerate(_messages(asked)):
        try:
            incoming.add(
                message.key, payloads.encode(message.data), _headers(message.headers), message.message_id, _due(message)
            )
        except InvalidInput as error:
            place = "message" if asked.messages is None else f"messages[{number}]"
            raise Problem(422, "invalid", str(error), validation_errors={place: [str(error)]}) from error
    return incoming


def _messages(asked: Publish) -> list[NewMessage]:
    if asked.messages is not None:
        if asked.key is not None or len(bytes(asked.data)):
            raise _refused("messages", "…", "given alone, or else key and data are")
        return asked.messages
    if asked.key is None:
        raise _refused("key", None, 'a text such as "orders.us.42"; or give "messages": [{"key", "data"}, …]')
    if not len(bytes(asked.data)):
        raise _refused("data", None, "any JSON value")
    return [NewMessage(asked.key, asked.data, asked.headers, asked.message_id, asked.deliver_at, asked.delay_ms)]


def _headers(raw: msgspec.Raw) -> str | None:
    text = payloads.encode(raw)
    if text == "null":
        return None
    if not text.lstrip().startswith("{"):
        raise InvalidInput('headers must be a JSON object, such as {"trace": "abc"}.')
    return text


def _due(message: NewMessage) -> datetime | None:
    if message.delay_ms is not None:
        if message.deliver_at is not None:
            raise InvalidInput("deliver_at and delay_ms say the same thing: give one of them.")
        return datetime.now(UTC) + timedelta(seconds=delay_of(message.delay_ms))
    due = message.deliver_at
    return due.replace(tzinfo=UTC) if due is not None and due.tzinfo is None else due


def delay_of(milliseconds: float) -> float:
    """Convert milliseconds to seconds. Raises a `Problem` for a delay out of range."""
    if not 0 <= milliseconds <= 365 * 86_400_000:
        raise Problem(
            422, "invalid", f"delay_ms={milliseconds:g} must be from 0 to a year.", validation_errors={"delay_ms": ["from 0 to a year"]}
        )  # fmt: skip
    return milliseconds / 1000


def read_receive(call: Call) -> tuple[int, float]:
    """Return the batch size and the seconds to wait, from the query and the body. The body takes precedence."""
    asked = _receive.decode(call.body) if call.body.strip() else Receive()
    query = call.query
    if query:
        if "batch_size" in query and b"batch_size" not in call.body:
            asked.batch_size = _number("batch_size", query["batch_size"])
        if "wait_for" in query and b"wait_for" not in call.body:
            asked.wait_for = query["wait_for"]
    if not 1 <= asked.batch_size <= MOST_RECEIVED:
        raise _refused("batch_size", asked.batch_size, f"from 1 to {MOST_RECEIVED:,}")
    return asked.batch_size, _seconds(asked.wait_for)


def _seconds(wait_for: float | str) -> float:
    """Return the seconds to wait, from milliseconds or text such as "60s"."""
    try:
        wait = _milliseconds(wait_for) if isinstance(wait_for, str) else wait_for / 1000
    except (ConfigurationError, ValueError):
        wait = -1
    if not 0 <= wait <= LONGEST_WAIT:
        raise _refused("wait_for", wait_for, 'from 0 to 3,600,000 milliseconds, or as "60s", "500ms", "5m"')
    return wait


def _milliseconds(text: str) -> float:
    """Return seconds, from a number of milliseconds or a duration with a unit."""
    return float(text) / 1000 if text.replace(".", "", 1).isdecimal() else seconds(text, "wait_for")


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise _refused(name, text, "a whole number")
    return int(text)


def _refused(field: str, value: object, right: str) -> Problem:
    what = f"{field} is missing" if value is None else f"{field}={value!r} can't be"
    return Problem(422, "invalid", f"{what}: it is {right}.", validation_errors={field: [f"it is {right}"]})


def named(asked: Settle) -> list[str]:
    """Return the ids of a settle request. Raises a `Problem` if there are none or too many."""
    ack_ids = asked.ack_ids + asked.ack_tokens
    if not 1 <= len(ack_ids) <= MOST_ACK_IDS:
        raise Problem(
            422, "invalid", f"There are {len(ack_ids)} ack_ids: name 1 to {MOST_ACK_IDS:,} messages.",
            validation_errors={"ack_ids": [f"1 to {MOST_ACK_IDS:,}"]},
        )  # fmt: skip
    return ack_ids
