"""Converts dates and times to ISO 8601.

Years that don't have four digits get a sign, as the standard's "expanded representation" requires:
`+10000-01-01`. The standard has a year 0, unlike the calendar with BC, so 44 BC is `-0043`. The
infinities stay words.
"""

from __future__ import annotations

from typing import Final

_SPACE: Final = ord(" ")
_INFINITE: Final = (b"infinity", b"-infinity")
_BC: Final = b" BC"


def date(value: bytes) -> bytes:
    """Return a date, such as `2023-10-15`."""
    return b'"' + (value if len(value) == 10 else _date(value)) + b'"'


def timestamp(value: bytes) -> bytes:
    """Return a timestamp without time zone, such as `2023-10-15T14:30:00.5`."""
    if value[10:11] == b" " and value[-1] != _BC[-1]:
        return b'"' + value[:10] + b"T" + value[11:] + b'"'
    return b'"' + _timestamp(value) + b'"'


def timestamptz(value: bytes) -> bytes:
    """Return a timestamp with time zone, such as `2023-10-15T14:30:00.5Z`. It is in UTC, as the
    session's timezone is.
    """
    if value[10:11] == b" " and value[-3:] == b"+00":
        return b'"' + value[:10] + b"T" + value[11:-3] + b'Z"'
    if value in _INFINITE:
        return b'"' + value + b'"'
    era = _BC if value.endswith(_BC) else b""
    return b'"' + _timestamp(value.removesuffix(era).removesuffix(b"+00") + era) + b'Z"'


def timetz(value: bytes) -> bytes:
    """Return a time with time zone, such as `14:30:00+02:00`."""
    return b'"' + value + (b':00"' if value[-3] in b"+-" else b'"')


def _timestamp(value: bytes) -> bytes:
    if value in _INFINITE:
        return value
    day, _, time = value.removesuffix(_BC).partition(b" ")
    return _date(day + value[len(day) + 1 + len(time) :]) + b"T" + time


def _date(value: bytes) -> bytes:
    if value in _INFINITE:
        return value
    year, _, rest = value.removesuffix(_BC).partition(b"-")
    if value.endswith(_BC):
        astronomical_year = int(year) - 1
        return (b"-%04d-" if astronomical_year else b"%04d-") % astronomical_year + rest
    return (b"+" if len(year) > 4 else b"") + year + b"-" + rest
