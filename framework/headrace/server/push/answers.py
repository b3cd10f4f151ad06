"""What an answer means: 2xx is an ack, all else a nack that says why."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST_WAIT = 3600.0
"""Seconds that an endpoint may ask to be left alone."""

TOLD = 500
"""Characters of a body, and of where a redirect leads to, that are told."""

_BUSY = (429, 503)


def is_ack(status: int) -> bool:
    """Whether the messages are done."""
    return 200 <= status < 300


def reason(status: int, phrase: str | None, headers: Mapping[str, str], body: bytes) -> str:
    """Why the messages come again, for logs and dead letters."""
    text = f"The endpoint answered {status} {one_line(phrase or '')}".rstrip()
    if 300 <= status < 400 and "location" in headers:
        return (
            f"{text}, a redirect to {one_line(headers['location'])}, and these are not followed: push to where it leads"
        )
    said = one_line(body.decode("utf-8", "replace"))
    return f"{text}: {said}" if said else text


def wait(status: int, headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds after which it wants to be asked again, by `Retry-After` as 429 and 503 have it; None to leave that to the backoff."""
    said = headers.get("retry-after", "").strip()
    if status not in _BUSY or not said:
        return None
    seconds = float(said) if said.isascii() and said.isdigit() else _until(said, now)
    return min(seconds, LONGEST_WAIT) if seconds > 0 else None


def _until(date: str, now: datetime) -> float:
    try:
        when = parsedate_to_datetime(date)
    except ValueError:
        return 0.0
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - now).total_seconds()


def one_line(text: str) -> str:
    """One line, printable, and bounded: what comes from outside goes to logs and terminals."""
    line = " ".join(text[: 4 * TOLD].split())
    line = "".join(character if character.isprintable() else "\ufffd" for character in line)
    return line if len(line) <= TOLD else line[:TOLD] + "…"
