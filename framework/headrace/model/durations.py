"""Durations as people write them: seconds as a number, a `timedelta`, or text such as `"500ms"`, `"30s"`, `"5m"`, `"1h"`."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from headrace.model.errors import ConfigurationError

Duration = float | int | str | timedelta
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*")


def seconds(value: Duration, setting: str = "duration") -> float:
    """The duration in seconds. Raises `ConfigurationError`, naming `setting`, if it is not one or is negative."""
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
        raise ConfigurationError(f"{setting}={value!r} can't be: a duration is finite and not negative.")
    return found
