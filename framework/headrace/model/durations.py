"""Parse durations: seconds as a number, a `timedelta`, or text such as `"500ms"`, `"30s"`, `"5m"`, `"1h"`."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from headrace.model.clock import zoned
from headrace.model.errors import ConfigurationError, InvalidInput

Duration = float | int | str | timedelta
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*")


def seconds(value: Duration, setting: str = "duration") -> float:
    """The duration in seconds. Raises `ConfigurationError`, naming `setting`, if it is invalid or negative."""
    if isinstance(value, timedelta):
        found = value.total_seconds()
    elif isinstance(value, str) and (match := _TEXT.fullmatch(value)):
        found = float(match[1]) * _UNITS[match[2] or "s"]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
    else:
        raise ConfigurationError(
            f"{setting}={value!r} is not a duration: write seconds (1.5), '500ms', '30s', '5m' or '1h'."
        )
    if not math.isfinite(found) or found < 0:
        raise ConfigurationError(f"{setting}={value!r} is invalid: a duration is finite and not negative.")
    return found


def when(delay: Duration | None, at: datetime | None, now: datetime | None = None) -> datetime | None:
    """The time given as a delay from `now` or as a time, but not both. A time without a zone is in UTC."""
    if delay is not None and at is not None:
        raise ConfigurationError("Both delay and deliver_at are given: choose one.")
    if delay is not None:
        try:
            return (now or datetime.now(UTC)) + timedelta(seconds=seconds(delay, "delay"))
        except OverflowError:
            raise ConfigurationError(f"delay={delay!r} ends after the year 9999.") from None
    return zoned(at)


MAX_WAIT = 3600.0
"""Longest time in seconds that one request may wait for messages."""


def check_wait(wait: float) -> None:
    """Raise `InvalidInput` if one request can't wait that many seconds for messages."""
    if not 0 <= wait <= MAX_WAIT:
        raise InvalidInput(f"wait={wait} must be from 0 to {MAX_WAIT:,.0f} seconds.")


def require_zone(time: datetime | None, setting: str, of: str = "") -> None:
    """Raise `ConfigurationError` if a time has no zone. `of`: what has the setting, for the error."""
    if time is not None and time.tzinfo is None:
        raise ConfigurationError(
            f"{setting}={time}{of} has no time zone. Write datetime(…, tzinfo=timezone.utc).", field=setting
        )


def rate(given: float | str | None) -> float | None:
    """A rate in messages per second: a number, or text such as "100/s", "6000/m" or "1000/h". Raises
    `ConfigurationError`.
    """
    if given is None:
        return None
    try:
        count, _, per = given.partition("/") if isinstance(given, str) else (given, "", "")
        value = float(count) / (seconds(f"1{per.strip()}", "rate_limit") if per else 1.0)
    except (ValueError, ZeroDivisionError) as error:
        raise ConfigurationError(
            f"rate_limit={given!r} must be messages a second, or text such as '100/s' or '500/m'."
        ) from error
    if not 0 < value <= 1e6:
        raise ConfigurationError(f"rate_limit={given!r} must be more than 0 and at most 1,000,000 a second.")
    return value
