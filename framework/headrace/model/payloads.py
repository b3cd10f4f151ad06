"""Encode payloads as the JSON text that the store takes. A payload is anything that msgspec can encode, or a
pydantic model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from headrace.model.errors import InvalidData, InvalidInput
from headrace.model.text.pydantic_json import encode_model

MAX_MESSAGE_ID_BYTES = 256
"""Largest size of a message id in bytes of UTF-8."""

RESERVED_MESSAGE_IDS = "headrace:"
"""What the message ids begin with that Headrace itself gives. Clients of the HTTP API can't publish under them, so they
can't use up the id of a webhook delivery beforehand.
"""

MAX_UNIQUE_KEY_BYTES = 256
"""Largest size of a unique key in bytes of UTF-8."""

UniqueWhile = Literal["pending", "waiting"]
"""How long a message keeps others with its unique key from being published: until all consumers are done with it, or
until they have it in flight.
"""

VERSION_HEADER = "headrace-version"
"""The version of a message's data, a number. A message without it has version 1."""

CODEC_HEADER = "headrace-codec"
"""What a codec returned about a payload that it has encoded. Such a payload is a JSON string, in base64."""

_encoder = msgspec.json.Encoder(enc_hook=encode_model)
_NUL = re.compile(rb"(?:^|[^\\])(?:\\\\)*\\u0000")


def encode(data: Any) -> str:
    """Encode `data` as JSON text. `msgspec.Raw` must be JSON already, and the store checks it.

    Raises:
        InvalidData: JSON can't represent the data, or it contains a NUL, which Postgres can't return as text.
    """
    try:
        encoded = _encoder.encode(data)
        text = encoded.decode()
    except (TypeError, ValueError, RecursionError, UnicodeError) as error:
        raise InvalidData(f"The data can't be written as JSON: {error}.") from error
    if b"\\u0000" in encoded and _NUL.search(encoded):
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


def parallel(messages: Iterable[tuple[Any, ...]]) -> tuple[list[str], list[str], list[str | None]]:
    """Convert (key, data) or (key, data, headers) tuples into the three lists that the store takes. Raises
    `InvalidData`.
    """
    keys: list[str] = []
    data: list[str] = []
    headers: list[str | None] = []
    for place, message in enumerate(messages):
        try:
            key, payload, *rest = message
            if len(rest) > 1:
                raise ValueError
        except (TypeError, ValueError):
            raise InvalidData(
                f"Message {place} is not a (key, data) or (key, data, headers) tuple: {message!r:.80}"
            ) from None
        keys.append(key)
        data.append(encode(payload))
        headers.append(encode_headers(rest[0]) if rest else None)
    return keys, data, headers


def check_unique(unique_keys: Sequence[str | None], unique_while: str, message_ids: Sequence[str | None] = ()) -> None:
    """Check the unique keys of messages, and what goes with them.

    Raises:
        InvalidInput: with its `field`.
    """
    if unique_while not in get_args(UniqueWhile):
        raise InvalidInput(
            f"unique_while can't be {unique_while!r:.80}. Use 'pending', or 'waiting' to publish while a message of the"
            " unique key is in flight.",
            field="unique_while",
        )
    given = [key for key in unique_keys if key is not None]
    if not given:
        if unique_while != "pending":
            raise InvalidInput(f"unique_while={unique_while!r} needs a unique key. Pass both.", field="unique_while")
        return
    for key in given:
        if not isinstance(key, str) or not 1 <= len(key.encode()) <= MAX_UNIQUE_KEY_BYTES:
            raise InvalidInput(
                f"The unique key {key!r:.80} is invalid. It must have 1 to {MAX_UNIQUE_KEY_BYTES} bytes of UTF-8.",
                field="unique_key",
            )
    if any(one is not None for one in message_ids):
        raise InvalidInput(
            "Messages with unique keys can't have message ids in the same call. Pass one of the two.",
            field="unique_key",
        )


def check_lengths(count: int, **given: Sequence[Any] | None) -> None:
    """Check that arguments that are parallel to messages have as many items. Raises `InvalidInput`."""
    for name, values in given.items():
        if values is not None and len(values) != count:
            raise InvalidInput(
                f"There are {count} messages and {len(values)} {name}. Pass one, or None, for each message.", field=name
            )
