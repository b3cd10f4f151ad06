"""Converts values that consist of others: arrays, composites, ranges and multiranges.

Their text form and its quoting are described at
https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO, rowtypes.html#ROWTYPES-IO-SYNTAX and
rangetypes.html#RANGETYPES-IO. The server's text is assumed to be well-formed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.sources.postgres.values.scalars import Converter, integer, text

# The regular expression engine keeps a position for each escape, not for each character. A value
# may have many megabytes.
_QUOTED = rb'"([^"]*(?:""[^"]*)*)"'
_QUOTED_IN_ARRAY = rb'"([^"\\]*(?:\\.[^"\\]*)*)"'

_FIELD = re.compile(rb",(?:" + _QUOTED + rb'|([^,"]+))?', re.DOTALL)
_BOUND = rb"(?:" + _QUOTED + rb'|([^,"\[\]()]+))?'
_RANGE = re.compile(rb"([\[(])" + _BOUND + rb"," + _BOUND + rb"([\])])", re.DOTALL)

_BRACES = bytes.maketrans(b"{}", b"[]")
_JSON_BRACES = {b"{": b"[", b"}": b"]"}
_EMPTY = b'{"lower":null,"upper":null,"bounds":"empty"}'


def _unquoted(quoted: bytes, quote: bytes = b'""') -> bytes:
    """Return text without its quoting, where a quote is written as `quote`, and a backslash as two."""
    # A quote is always escaped, so what precedes it belongs to it, and quotes can be replaced
    # first.
    return quoted.replace(quote, b'"').replace(b"\\\\", b"\\")


def array(element: Converter, delimiter: bytes = b",") -> Converter:
    """Return a converter to JSON arrays, nested for each dimension. Array bounds that do not begin at
    1 are dropped.
    """
    if element is integer:
        return _integers
    bare_or_mark = rb"|([^{}\"%b]+)|([{}%b])" % (re.escape(delimiter), re.escape(delimiter))
    token = re.compile(_QUOTED_IN_ARRAY + bare_or_mark, re.DOTALL)
    json_delimiters = {**_JSON_BRACES, delimiter: b","}

    def convert(value: bytes) -> bytes:
        parts = []
        for quoted, unquoted, delimiter_or_brace in token.findall(_without_bounds(value)):
            if delimiter_or_brace:
                parts.append(json_delimiters[delimiter_or_brace])
            elif unquoted:
                parts.append(b"null" if unquoted == b"NULL" else element(unquoted))
            else:
                parts.append(element(_unquoted(quoted, b'\\"')))
        return b"".join(parts)

    return convert


def _integers(value: bytes) -> bytes:
    return _without_bounds(value).translate(_BRACES).replace(b"NULL", b"null")


def _without_bounds(value: bytes) -> bytes:
    return value[value.index(b"=") + 1 :] if value.startswith(b"[") else value


def composite(attributes: Sequence[tuple[str, Converter]]) -> Converter:
    """Return a converter to objects. A value with a different number of attributes than the known type
    becomes a string.
    """
    named = [(text(name.encode()) + b":", convert) for name, convert in attributes]

    def convert(value: bytes) -> bytes:
        fields = list(_FIELD.finditer(b"," + value[1:-1])) if named else []
        if len(fields) != len(named):
            return text(value)
        pairs = (
            name + _convert_part(convert, field[1], field[2])
            for (name, convert), field in zip(named, fields, strict=True)
        )
        return b"{" + b",".join(pairs) + b"}"

    return convert


def range_(bound: Converter) -> Converter:
    """Return a converter to `{"lower": 1, "upper": null, "bounds": "[)"}`. A missing bound is null."""

    def convert(value: bytes) -> bytes:
        found = _RANGE.fullmatch(value)
        if found is None:
            return _EMPTY
        opening, low_quoted, low, high_quoted, high, closing = found.groups()
        parts = (_convert_part(bound, low_quoted, low), _convert_part(bound, high_quoted, high), opening + closing)
        return b'{"lower":%b,"upper":%b,"bounds":"%b"}' % parts

    return convert


def multirange(range_converter: Converter) -> Converter:
    """Return a converter to arrays of ranges, given the converter of a range."""

    def convert(value: bytes) -> bytes:
        return b"[" + b",".join(range_converter(found[0]) for found in _RANGE.finditer(value)) + b"]"

    return convert


def _convert_part(convert: Converter, quoted: bytes | None, unquoted: bytes | None) -> bytes:
    if quoted is not None:
        return convert(_unquoted(quoted))
    return b"null" if unquoted is None else convert(unquoted)
