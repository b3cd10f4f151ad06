"""Converts single values other than dates and times: numbers, text, bytes, JSON."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

Converter = Callable[[bytes], bytes]
"""Converts the text of a value, in UTF-8 and not null, to JSON text."""

_NINE: Final = ord("9")
_INVALID: Final = rb"\ufffd"
_encode = msgspec.json.Encoder().encode

_ESCAPE = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u(0000|[dD][89a-fA-F]..)|\\.")


def text(value: bytes) -> bytes:
    """Return a string. Invalid UTF-8, which a database in SQL_ASCII may hold, becomes U+FFFD."""
    try:
        return _encode(value.decode())
    except UnicodeDecodeError:
        return _encode(value.decode(errors="replace"))


def boolean(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def integer(value: bytes) -> bytes:
    """Return a number. The text of an integer is valid JSON."""
    return value


def number(value: bytes) -> bytes:
    """Return a number with all its digits. NaN and the infinities become strings, since JSON lacks them."""
    return value if value[-1] <= _NINE else b'"' + value + b'"'


def floating(value: bytes) -> bytes:
    """Like `number`, but negative zero keeps its sign. JSON parsers read `-0` as an integer, which has
    no sign at zero.
    """
    return number(value) if value != b"-0" else b"-0.0"


def quoted(value: bytes) -> bytes:
    """Return a string of text that never needs escaping, such as digits or a UUID."""
    return b'"' + value + b'"'


def hexadecimal(value: bytes) -> bytes:
    """Return bytes as Postgres's hex text, such as `\\\\x6869`."""
    return b'"\\' + value + b'"'


def json(value: bytes) -> bytes:
    """Return JSON unchanged. `json` may hold escapes that are no characters, which parsers reject.
    These become U+FFFD.
    """
    if b"\\u" in value:
        value = _ESCAPE.sub(_readable, value)
    if not value.isascii():
        try:
            value.decode()
        except UnicodeDecodeError:
            return value.decode(errors="replace").encode()
    return value


def _readable(escape: re.Match[bytes]) -> bytes:
    return _INVALID if escape[1] else escape[0]


def vector(value: bytes) -> bytes:
    """Return an array for the catalog's `int2vector` and `oidvector`, which are written with spaces."""
    return b"[" + value.replace(b" ", b",") + b"]"
