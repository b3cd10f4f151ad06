"""Encode payloads as the JSON text that the store takes. A payload is anything that msgspec can encode, or a
pydantic model. The headers that Headrace itself gives to messages are described here, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from headrace.model.durations import Duration, seconds
from headrace.model.errors import InvalidData, InvalidInput
from headrace.model.text.pydantic_json import encode_model

RESERVED_MESSAGE_IDS = "headrace:"
"""The prefix of message ids that Headrace itself gives. Clients of the HTTP API can't publish under them, so they
can't use up the id of a webhook delivery beforehand.
"""

VERSION_HEADER = "headrace-version"
"""The version of a message's data, a number. A message without it has version 1."""

CODEC_HEADER = "headrace-codec"
"""The description that a codec returned about a payload that it has encoded. Such a payload is a JSON string, in
base64."""

EXPIRES_IN_HEADER = "headrace-expires-in"
"""The time to live of a message in seconds, from its publication: a number, or one as text. See
`functions/messages/expiry.sql`, which has the same rules as `time_to_live`."""

MIN_EXPIRES_IN, MAX_EXPIRES_IN = 0.001, 3_153_600_000
"""Shortest and longest time to live in seconds: a millisecond, and a hundred years."""

_EXPIRES_IN = f'"{EXPIRES_IN_HEADER}"'
_SECONDS = re.compile(r"[0-9]{1,10}([.][0-9]{1,9})?")
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])

_encoder = msgspec.json.Encoder(enc_hook=encode_model)


def encode(data: Any) -> str:
    """Encode `data` as JSON text. `msgspec.Raw` must be JSON already, and the store checks it.

    Raises:
        InvalidData: JSON can't represent the data, or it contains a NUL, which Postgres can't return as text.
    """
    try:
        text = str(data, "utf-8") if isinstance(data, msgspec.Raw) else _encoder.encode(data).decode()
    except (TypeError, ValueError, RecursionError, UnicodeError) as error:
        raise InvalidData(f"The data can't be written as JSON: {error}.") from error
    # Pairs of backslashes are escaped ones. Without them, a backslash before the digits begins the escape of a NUL.
    # Most texts have no backslash, and to look for one character takes a small part of the time.
    if "\\" in text and "\\u0000" in text and "\\u0000" in text.replace("\\\\", ""):
        raise InvalidData(
            "The data has a string with a NUL character, which Postgres can't hand out as text: leave it out."
        )
    return text


def encode_headers(headers: Mapping[str, Any] | None) -> str | None:
    """Encode headers as the text of a JSON object. Returns None if there are none. Raises `InvalidData`."""
    if not headers:
        return None
    if not isinstance(headers, Mapping) or not all(isinstance(name, str) for name in headers):
        raise InvalidData("Headers are a mapping from names to JSON values, such as {'trace': 'abc'}.")
    return encode(headers)


def with_expiry(headers: str | None, expires_in: Duration | None) -> str | None:
    """Add a time to live to encoded headers.

    Args:
        headers: the JSON text of an object, or None. A time to live that it has is replaced.
        expires_in: the time to live, or None for no change. It is rounded to milliseconds.

    Raises:
        ConfigurationError: it is no duration.
        InvalidInput: it is less than a millisecond, or more than a hundred years.
    """
    if expires_in is None:
        return headers
    alive = round(seconds(expires_in, "expires_in"), 3)
    if not MIN_EXPIRES_IN <= alive <= MAX_EXPIRES_IN:
        raise InvalidInput(
            f"expires_in={expires_in!r} is out of range. Give at least a millisecond and at most a hundred years.",
            field="expires_in",
        )
    others = "" if headers is None else headers.strip()[1:-1].strip()
    # Of two members with one name the last one counts.
    return f"{{{others}{',' if others else ''}{_EXPIRES_IN}:{alive:.13g}}}"


def time_to_live(headers: str | None) -> float | None:
    """The time to live in seconds of a message with these encoded headers. None if it has none, or none that can be
    read."""
    if headers is None or _EXPIRES_IN not in headers:
        return None
    try:
        given = bytes(_members.decode(headers).get(EXPIRES_IN_HEADER, b"")).decode().strip('"')
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    alive = float(given) if _SECONDS.fullmatch(given) else 0.0
    return alive if 0 < alive <= MAX_EXPIRES_IN else None


def expiry(headers: str | None, created_at: datetime) -> datetime | None:
    """When a message with these encoded headers expires. None if it doesn't."""
    alive = time_to_live(headers)
    return None if alive is None else created_at + timedelta(seconds=alive)


def parallel(messages: Iterable[tuple[Any, ...]]) -> tuple[list[str], list[str], list[str | None]]:
    """Convert (key, data) or (key, data, headers) tuples into the three lists that the store takes. Raises
    `InvalidData`.
    """
    keys: list[str] = []
    data: list[str] = []
    headers: list[str | None] = []
    for place, message in enumerate(messages):
        if message.__class__ is tuple and len(message) == 2:  # as mostly
            key, payload = message
            given = None
        else:
            key, payload, given = _parts(place, message)
        keys.append(key)
        data.append(encode(payload))
        headers.append(encode_headers(given))
    return keys, data, headers


def _parts(place: int, message: Any) -> tuple[Any, Any, Any]:
    try:
        key, payload, *rest = message
        if len(rest) > 1:
            raise ValueError
    except (TypeError, ValueError):
        raise InvalidData(
            f"Message {place} is not a (key, data) or (key, data, headers) tuple: {message!r:.80}"
        ) from None
    return key, payload, rest[0] if rest else None
