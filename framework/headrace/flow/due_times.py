"""When a schedule is due: a cron expression in a time zone, or an interval.

The grammar and the rules at the changes of the clocks are those of Debian's cron, see crontab(5). The package
`cronsim` implements them. A schedule with a fixed hour and minute is due once on each day. A local time that the
change to summer time leaves out is due at the change. One that comes twice is due the first time. A schedule with
`*` as its minute or hour is due by the time that passes. Where a clock is set back by up to three hours, due times
of the others are not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import Protocol
from zoneinfo import ZoneInfo

from headrace.model.durations import Duration, seconds
from headrace.model.errors import ConfigurationError

NAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

LONGEST_EXPRESSION = 200
"""Maximum number of characters of a cron expression."""

SHORTEST_INTERVAL, LONGEST_INTERVAL = 1.0, 366 * 86_400.0
"""Limits of an interval in seconds."""

CORRECTION = timedelta(hours=3)
"""A clock that is set back by more is corrected, and its earlier times are not remembered. As Debian's cron has it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXAMPLES = "such as '0 9 * * 1-5', '@daily' or '15m'"


class DueTimes(Protocol):
    """The times at which a schedule is due. All times have a zone."""

    text: str
    """The expression, as it is stored and shown."""

    repeats_after: timedelta
    """A clock must have been set back by more than that for due times to be repeated."""

    def after(self, at: datetime) -> datetime:
        """Return the first due time after `at`, in UTC."""

    def latest(self, start: datetime, now: datetime, limit: int) -> list[datetime]:
        """Return the last due times from `start` up to `now`, at most `limit`, the oldest first. In UTC."""


class Interval:
    """Due at the multiples of an interval since 1970-01-01 00:00 UTC, so that all processes agree without a start."""

    repeats_after = timedelta(0)

    def __init__(self, length: float, text: str) -> None:
        if not SHORTEST_INTERVAL <= length <= LONGEST_INTERVAL:
            raise ConfigurationError(f"every={text!r} is out of range. An interval lasts from 1 second to 366 days.")
        self.text = text
        self._step = timedelta(seconds=length)

    def after(self, at: datetime) -> datetime:
        return _EPOCH + ((at - _EPOCH) // self._step + 1) * self._step

    def latest(self, start: datetime, now: datetime, limit: int) -> list[datetime]:
        last = (now - _EPOCH) // self._step
        first = max(-((_EPOCH - start) // self._step), last - limit + 1)
        return [_EPOCH + number * self._step for number in range(first, last + 1)]


class Cron:
    """Due by a cron expression of five fields, in a time zone."""

    def __init__(self, expression: str, zone: tzinfo, text: str) -> None:
        self.text = text
        self._expression = expression
        self._zone = zone
        self._check()
        minute, hour, *_ = expression.split()
        self.repeats_after = timedelta(0) if "*" in (minute[0], hour[0]) else CORRECTION

    def _check(self) -> None:
        if len(self._expression) > LONGEST_EXPRESSION or len(self._expression.split()) != 5:
            raise _invalid(
                self.text, "A cron expression has five fields: minute, hour, day of month, month, day of week."
            )
        try:
            self.after(_EPOCH)
        except StopIteration:
            raise _invalid(self.text, "It is never due.") from None
        except Exception as error:  # cronsim asserts in some places
            raise _invalid(self.text, f"{error or 'It breaks the grammar'}.") from error

    def after(self, at: datetime) -> datetime:
        return next(self._times(at))

    def latest(self, start: datetime, now: datetime, limit: int) -> list[datetime]:
        newest_first = self._times(now.replace(microsecond=0) + timedelta(seconds=1), reverse=True)
        return list(islice(takewhile(lambda due: due >= start, newest_first), limit))[::-1]

    def _times(self, at: datetime, *, reverse: bool = False) -> Iterator[datetime]:
        from headrace.flow.cron_walk import CronWalk  # imported late, because most processes have no schedule

        return (due.astimezone(UTC) for due in CronWalk(self._expression, at.astimezone(self._zone), reverse=reverse))


def is_ahead(due: DueTimes, next_at: datetime, now: datetime) -> bool:
    """Whether a due time was computed by a clock that was set back since, so that there are due times before it."""
    return next_at - now > due.repeats_after and next_at - due.after(now) > due.repeats_after


def due_times(every: Duration, zone: str | None = None) -> DueTimes:
    """Parse the due times of a schedule.

    Args:
        every: a cron expression of five fields, a name such as `@daily`, or an interval such as "15m".
        zone: the time zone of a cron expression, by its IANA name. None for UTC.

    Raises:
        ConfigurationError: the expression is invalid or never due, the zone is unknown, or an interval has a zone.
    """
    expression = NAMES.get(every.strip().lower()) if isinstance(every, str) else None
    if isinstance(every, str) and (expression or every.strip().startswith("@") or len(every.split()) > 1):
        return Cron(expression or " ".join(every.split()), zone_of(zone), every.strip())
    if zone is not None:
        raise ConfigurationError(f"zone={zone!r} is only for a cron expression. The interval {every!r} needs none.")
    try:
        length = seconds(every, "every")
    except ConfigurationError as error:
        raise _invalid(every, str(error)) from None
    return Interval(length, every.strip() if isinstance(every, str) else f"{length:.6f}".rstrip("0").rstrip(".") + "s")


def zone_of(name: str | None) -> tzinfo:
    """Return a time zone by its IANA name, or UTC, which needs no data of time zones. Raises `ConfigurationError`."""
    if name is None or name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except Exception as error:  # ValueError, OSError or ZoneInfoNotFoundError, by what is wrong with the name
        raise ConfigurationError(
            f"zone={name!r} is not a time zone of this machine. Give an IANA name such as 'Europe/Berlin'. If it is one,"
            " install the package tzdata."
        ) from error


def _invalid(every: object, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"every={every!r} can't be used. {why} Give a cron expression or an interval, {_EXAMPLES}."
    )
