"""Formats of numbers, sizes, JSON and text for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from headrace.model.messages.payloads import CODEC_HEADER
from headrace.model.records import PeekedMessage


def text_of(value: object) -> str:
    """Format a value for people: numbers in groups of three, times in UTC, None as a dash, and what has parts as JSON."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case datetime():
            return in_utc(value)
        case Mapping() | list() | tuple():
            return one_line_json(value)
    return str(value)


class HasData(Protocol):
    """A message of any kind."""

    @property
    def data(self) -> Any: ...
    @property
    def headers(self) -> dict[str, Any] | None: ...


def one_line_json(data: Any) -> str:
    """Format data as JSON on one line. Returns an empty text for no headers."""
    return "" if data is None else msgspec.json.encode(data).decode()


def one_line_data(message: HasData) -> str:
    """Format the data of a message on one line. A payload that a codec has encoded is described instead."""
    return encoding_of(message) or one_line_json(message.data)


def last_error(message: PeekedMessage) -> str:
    """Format the error of the last attempt of a message on one line, with the process. Empty if there is none."""
    text = (message.error or "").strip().split("\n")[0]
    return text if not text or message.failed_by is None else f"{text} (in {message.failed_by})"


def indented_data(message: HasData) -> str:
    """Format the data of a message on several lines, or describe it as `one_line_data` does."""
    return encoding_of(message) or indented_json(message.data)


def encoding_of(message: HasData) -> str | None:
    """Describe a payload that a codec has encoded: `(encrypted with A256GCM, key "2026-11")`. None for others."""
    headers = message.headers if isinstance(message.headers, Mapping) else {}  # text if JSON can't be decoded
    about = headers.get(CODEC_HEADER)
    if about is None:
        return None
    algorithm, key = (about.get("alg"), about.get("kid")) if isinstance(about, Mapping) else (None, None)
    if algorithm is None or key is None:
        return f"(encoded by a codec, {one_line_json(about)})"
    return f"(encrypted with {algorithm}, key {one_line_json(key)})"


def indented_json(data: Any) -> str:
    """Format data as JSON on several lines."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def number_or_dash(value: int | None) -> str:
    """Format a number for people: `12,345`. None becomes a dash."""
    return "–" if value is None else f"{value:,}"


def in_utc(moment: datetime) -> str:
    """Format a time in UTC, in a form that options accept: `2026-02-28T13:05:00Z`."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if moment.tzinfo else f"{moment:%Y-%m-%dT%H:%M:%S}"
