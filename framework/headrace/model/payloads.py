"""Encode payloads as the JSON text that the store takes. A payload is anything that msgspec can encode, or a
pydantic model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.model.errors import InvalidData
from headrace.model.text.pydantic_json import encode_model

MAX_MESSAGE_ID_BYTES = 256
"""Largest size of a message id in bytes of UTF-8."""

RESERVED_MESSAGE_IDS = "headrace:"
"""What the message ids begin with that Headrace itself gives. Clients of the HTTP API can't publish under them, so they
can't use up the id of a webhook delivery beforehand.
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
