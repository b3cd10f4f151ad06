"""Parsing and formatting of times, durations and places in a stream on the command line.

A time is ISO 8601 or a duration. A duration is subtracted from now, or added to now by options for a
time in the future. A time without a zone is taken as UTC, and a note on standard error says so.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Literal

from headrace.cli.errors import UsageError
from headrace.cli.output.formats import in_utc as in_utc  # beside the parsing of the same form
from headrace.cli.output.stderr import print_notice
from headrace.model.durations import seconds
from headrace.model.errors import ConfigurationError
from headrace.model.messages.payloads import MAX_EXPIRES_IN, MIN_EXPIRES_IN

Place = int | datetime | Literal["start", "end"]
"""Where in a stream: a seq, a time, or the start or the end of the stream."""

NO_VALUE = frozenset({"none", "off"})
"""Values that unset an optional setting."""

_MAX_SEQ = 2**63 - 1
_SEQ = re.compile(r"[+-]?[0-9]+")
_DURATION = re.compile(r"\d+(\.\d+)?(ms|s|m|h|d)")


def duration(text: str, option: str) -> float:
    """Parse a duration, in seconds. Raises `UsageError`, naming the option."""
    try:
        return seconds(text, option)
    except ConfigurationError:
        raise UsageError(
            f"{option} {text!r} is not a duration. Write it as '500ms', '30s', '5m', '1h' or '7d'."
        ) from None


def after(text: str, option: str, now: datetime | None = None) -> datetime:
    """Return the time after a duration has passed. Raises `UsageError`, naming the option."""
    length = duration(text, option)
    try:
        return (now or datetime.now(UTC)) + timedelta(seconds=length)
    except OverflowError:
        raise UsageError(f"{option} {text!r} is out of the range of times.") from None


def time_to_live(text: str | None, option: str) -> float | None:
    """Parse a time to live, in seconds. Raises `UsageError`, naming the option."""
    length = None if text is None else duration(text, option)
    if length is not None and not MIN_EXPIRES_IN <= length <= MAX_EXPIRES_IN:
        raise UsageError(f"{option} {text!r} is out of range. Give at least a millisecond and at most a hundred years.")
    return length


def past(text: str, option: str, now: datetime | None = None) -> datetime:
    """Parse a time. A duration means that long ago. Raises `UsageError`, naming the option."""
    return _parse_time(text, option, "ago", now or datetime.now(UTC))


def future(text: str, option: str, now: datetime | None = None) -> datetime:
    """Parse a time. A duration means that long from now. Raises `UsageError`, naming the option."""
    return _parse_time(text, option, "from now", now or datetime.now(UTC))


def parse_place(text: str, option: str, now: datetime | None = None) -> Place:
    """Parse a place in a stream: a time as in `past`, a seq, `start` or `end`. Raises `UsageError`,
    naming the option.
    """
    if text == "start":
        return "start"
    if text == "end":
        return "end"
    if not _SEQ.fullmatch(text):
        return _parse_time(text, option, "ago", now or datetime.now(UTC), "start, end, a seq or ")
    if len(text) > 20 or not 1 <= int(text) <= _MAX_SEQ:
        raise UsageError(f"{option} {text!r} is not a seq. Give a number from 1 to {_MAX_SEQ}.")
    return int(text)


def _parse_time(
    text: str, option: str, direction: Literal["ago", "from now"], now: datetime, alternatives: str = ""
) -> datetime:
    try:
        if _DURATION.fullmatch(text):
            length = timedelta(seconds=duration(text, option))
            return now - length if direction == "ago" else now + length
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
            print_notice(f"{option} {text!r} has no time zone. It is read as UTC: {in_utc(time)}.")
        return time.astimezone(UTC)
    except OverflowError:
        raise UsageError(f"{option} {text!r} is out of the range of times.") from None
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is not a time. Write {alternatives}ISO 8601, such as {in_utc(now)}, or a duration, such as 1h for an hour {direction}."
        ) from None


def time_or_dash(moment: datetime | None) -> str:
    """Format a time for people. None becomes a dash."""
    return "–" if moment is None else in_utc(moment)


def lasting(length: float) -> str:
    """Format a duration in the largest unit that divides it, in a form that options accept: `90s`, `7d`."""
    for unit, factor in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if length >= factor and length % factor == 0:
            return f"{length / factor:.0f}{unit}"
    return f"{length:g}s" if length >= 1 or length == 0 else f"{length * 1000:g}ms"


def ago(moment: datetime, now: datetime | None = None) -> str:
    """Format how long ago a time was, roughly: `3m ago`."""
    return f"{roughly(max(((now or datetime.now(UTC)) - moment).total_seconds(), 0))} ago"


def roughly(length: float) -> str:
    """Format a duration in one unit: `5s`, `12m`, `3h`, `9d`."""
    for unit, factor in (("d", 86400), ("h", 3600), ("m", 60)):
        if length >= 2 * factor:
            return f"{length // factor:.0f}{unit}"
    return f"{length:.0f}s"
