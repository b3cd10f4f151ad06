"""Which rows can be messages: a check before a COPY, and after it which row the database has refused, and why."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from headrace.model.errors import HeadraceError, InvalidData, InvalidInput, InvalidKey

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

_KEY = r"^[!-)+,/-=?-~-]+(\.[!-)+,/-=?-~-]+)*$"


def are_usual(rows: pa.RecordBatch) -> bool:
    """Whether all rows are what nearly all rows are, and surely messages: small, without headers or an escaped NUL, and with
    a key of printable ASCII characters without wildcards. That the data is JSON is left to the server.

    The staging table has the same test, which takes 0.8 µs a row there, and 0.2 µs here. It trusts tasks whose role owns the
    schema, and so could write anything.
    """
    import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

    key, data = rows.column("key"), rows.column("data")
    return bool(
        rows.column("headers").null_count == rows.num_rows
        and pc.max(pc.binary_length(data)).as_py() <= 700_000
        and pc.max(pc.binary_length(key)).as_py() <= 1024
        and pc.all(pc.match_substring_regex(key, _KEY)).as_py()
        and not _contains(data, b"\\u0000")
    )


def _contains(texts: pa.StringArray, part: bytes) -> bool:
    """Whether one of the texts contains this, or two of them joined."""
    first, last = texts.offset, texts.offset + len(texts)
    _, offsets, values = texts.buffers()
    bounds = memoryview(offsets).cast("i")
    whole = values.slice(bounds[first], bounds[last] - bounds[first]).to_pybytes() if values is not None else b""
    # A single byte is found five times as fast, and most payloads have no backslash.
    return part[:1] in whole and part in whole


class RowRefused(Exception):
    """The database refuses the row at this place, for the reason of this error. Nothing of its COPY is staged."""

    def __init__(self, place: int, error: HeadraceError) -> None:
        super().__init__(str(error))
        self.place, self.error = place, error


_NUL = re.compile(r": 0x00$")
_LINE = re.compile(r"^COPY .*, line (\d+)(?:, column (\w+))?", re.MULTILINE)


def table_is_gone(error: Any) -> bool:
    """Whether a COPY failed since its staging table does not exist."""
    # The driver looks up the table itself, and then reports no error code.
    state = getattr(error, "sqlstate", None)
    return state == "42P01" or (not state and "headrace_staging" in str(error) and "does not exist" in str(error))


def place_of_row(error: Any, rows: pa.RecordBatch) -> int | None:
    """The place of the row that made a COPY fail, or None if it failed for another reason. The rows before it are well."""
    state = getattr(error, "sqlstate", None) or ""
    line = _LINE.search(_detail(error, "CONTEXT")) if state[:2] in ("22", "23", "54") else None
    place = int(line[1]) - 1 if line else -1
    return place if 0 <= place < rows.num_rows else None


def row_error(error: Any, rows: pa.RecordBatch, place: int) -> HeadraceError:
    """The Headrace error for a row that the database refuses, with its key."""
    state = getattr(error, "sqlstate", None) or ""
    line = _LINE.search(_detail(error, "CONTEXT"))
    key, constraint = text_of(rows.column("key"), place), _detail(error, "CONSTRAINT_NAME")
    start = f"The row with the key {_short(key)} can't be published:"
    if constraint == "valid_key":
        return InvalidKey(
            f"{start} a key has 1 to 1024 bytes, and its tokens, separated by dots, are neither empty nor exactly '*' or '>'"
            " and have no blanks or control characters."
        )
    if state == "22021" and not _NUL.search(message := _detail(error, "MESSAGE_PRIMARY")):
        return InvalidData(f"{start} its {(line and line[2]) or 'data'}, a string, is no text in UTF-8 ({message}).")
    if constraint == "no_nul" or state == "22021":
        return InvalidData(f"{start} it has a NUL character, which Postgres can't return as text.")
    if constraint == "message_size":
        return InvalidData(f"{start} a message, including its headers, has at most 200 MB.")
    if constraint == "headers_are_objects":
        return InvalidData(f'{start} its headers are not a JSON object, such as {{"trace": "abc"}}.')
    if line and line[2] in ("data", "headers") and state == "22P02":
        detail = _detail(error, "MESSAGE_DETAIL").rstrip(".")
        return InvalidData(f"{start} its {line[2]}, a string, is not JSON text ({detail}).")
    return InvalidInput(f"{start} {_detail(error, 'MESSAGE_PRIMARY')}.")


def text_of(texts: pa.Array, place: int) -> Any:
    """The string at a place. Spark's strings may hold any bytes, and those that are not UTF-8 are replaced."""
    try:
        return texts[place].as_py()
    except UnicodeDecodeError:
        return texts.cast("binary")[place].as_py().decode(errors="replace")


def _short(key: str) -> str:
    return repr(key if len(key) <= 80 else key[:80] + "…")


def _detail(error: Any, field: str) -> str:
    """A field of the server's error, or an empty text if the error lacks it."""
    for name, value in getattr(error, "details", None) or ():
        if name in (f"PG_DIAG_{field}".encode(), f"PG_DIAG_{field}"):
            return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return ""
