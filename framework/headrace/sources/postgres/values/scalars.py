"""Single values that are not about time: numbers, text, bytes, JSON."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

Converter = Callable[[bytes], bytes]
"""The text of a value, in UTF-8 and not null, to its JSON text."""

_NINE: Final = ord("9")
_INVALID: Final = rb"\ufffd"
_encode = msgspec.json.Encoder().encode

_ESCAPE = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u(0000|[dD][89a-fA-F]..)|\\.")


def text(value: bytes) -> bytes:
    """A string. What is no UTF-8, as a database in SQL_ASCII may hold, becomes U+FFFD."""
    try:
        return _encode(value.decode())
    except UnicodeDecodeError:
        return _encode(value.decode(errors="replace"))


def boolean(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def integer(value: bytes) -> bytes:
    """A number: the text of an integer is JSON as it is."""
    return value


def number(value: bytes) -> bytes:
    """A number with all its digits; NaN and the infinities, which JSON does not have, as strings."""
    return value if value[-1] <= _NINE else b'"' + value + b'"'


def floating(value: bytes) -> bytes:
    """As `number`, and zero keeps its sign: a reader takes `-0` for an integer, which has none."""
    return number(value) if value != b"-0" else b"-0.0"


def quoted(value: bytes) -> bytes:
    """A string of what never holds anything to be escaped, such as digits or a UUID."""
    return b'"' + value + b'"'


def hexadecimal(value: bytes) -> bytes:
    """Bytes, as Postgres' own hex text: `\\\\x6869`."""
    return b'"\\' + value + b'"'


def json(value: bytes) -> bytes:
    """JSON as it is. `json` may hold escapes that stand for no character, and no consumer could read: those become U+FFFD."""
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
    """The catalog's own `int2vector` and `oidvector`: an array, counted from 0 and written with spaces."""
    return b"[" + value.replace(b" ", b",") + b"]"
