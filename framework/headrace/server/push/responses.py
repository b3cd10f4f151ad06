"""Evaluation of an endpoint's response. 2xx is an ack, everything else a nack with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

from headrace.model.clock import zoned

MAX_WAIT = 3600.0
"""Longest `Retry-After` of an endpoint in seconds. Longer ones are reduced to it."""

MAX_TEXT = 500
"""Longest part of a body, and of a redirect's location, that is reported, in characters."""

_BUSY = (429, 503)


def is_ack(status: int) -> bool:
    """Return whether the messages are acked."""
    return 200 <= status < 300


def reason(status: int, phrase: str | None, headers: Mapping[str, str], body: bytes) -> str:
    """Return why the messages are nacked, for logs and dead letters."""
    text = f"The endpoint responded with {status} {one_line(phrase or '')}".rstrip()
    if 300 <= status < 400 and "location" in headers:
        return f"{text}, a redirect to {one_line(headers['location'])}. Redirects are not followed. Push to that URL instead"
    text_of_body = one_line(body.decode("utf-8", "replace"))
    return f"{text}: {text_of_body}" if text_of_body else text


def wait(status: int, headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds to wait, from the `Retry-After` of a 429 or 503. None to use the consumer's backoff."""
    header = headers.get("retry-after", "").strip()
    if status not in _BUSY or not header:
        return None
    seconds = float(header) if header.isascii() and header.isdigit() else _until(header, now)
    return min(seconds, MAX_WAIT) if seconds > 0 else None


def _until(date: str, now: datetime) -> float:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return 0.0
    return (zoned(moment) - now).total_seconds()


def one_line(text: str) -> str:
    """Make text from an endpoint safe for logs and terminals: one line, printable, and bounded."""
    line = " ".join(text[: 4 * MAX_TEXT].split())
    line = "".join(character if character.isprintable() else "\ufffd" for character in line)
    return line if len(line) <= MAX_TEXT else line[:MAX_TEXT] + "…"
