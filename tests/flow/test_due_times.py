"""Due times: what the grammar of `every` means, and what happens where the clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.flow.due_times import due_times
from headrace.model.errors import ConfigurationError

BERLIN = "Europe/Berlin"
FIELDS = [
    "0 9 * * 1-5", "30 2 * * *", "*/7 * * * *", "15 */2 * * *", "0 0 31 * *", "59 23 L * *", "* 2 * * *", "5,35 1-3 * * *",
    "0 3 * 2 1#1",
]  # fmt: skip


def times(every: str, zone: str | None, start: str, count: int) -> list[str]:
    """The next due times after `start`, which is a local time, as local times with their offset from UTC."""
    tz, due = ZoneInfo(zone or "UTC"), due_times(every, zone)
    at, found = datetime.fromisoformat(start).replace(tzinfo=tz).astimezone(UTC), []
    for _ in range(count):
        at = due.after(at)
        found.append(at.astimezone(tz).strftime("%m-%d %H:%M%z"))
    return found


def test_a_time_on_weekdays_keeps_its_local_hour_through_the_year() -> None:
    assert times("0 9 * * 1-5", BERLIN, "2026-03-27 00:00", 2) == ["03-27 09:00+0100", "03-30 09:00+0200"]


def test_a_local_time_that_does_not_exist_is_due_at_the_change() -> None:
    found = times("30 2 * * *", BERLIN, "2026-03-28 00:00", 3)
    assert found == ["03-28 02:30+0100", "03-29 03:00+0200", "03-30 02:30+0200"]


def test_a_local_time_that_exists_twice_is_due_once() -> None:
    found = times("30 2 * * *", BERLIN, "2026-10-24 00:00", 3)
    assert found == ["10-24 02:30+0200", "10-25 02:30+0200", "10-26 02:30+0100"]


def test_every_hour_goes_on_by_the_time_that_passes() -> None:
    found = times("0 * * * *", BERLIN, "2026-10-25 00:30", 4)
    assert found == ["10-25 01:00+0200", "10-25 02:00+0200", "10-25 02:00+0100", "10-25 03:00+0100"]
    assert times("0 * * * *", BERLIN, "2026-03-29 00:30", 2) == ["03-29 01:00+0100", "03-29 03:00+0200"]


@pytest.mark.parametrize(
    ("name", "at"), [("@daily", "01-02 00:00+0000"), ("@Hourly", "01-01 01:00+0000"), ("@yearly", "01-01 00:00+0000")]
)
def test_names_stand_for_expressions(name: str, at: str) -> None:
    assert times(name, None, "2026-01-01 00:00", 1) == [at]


def test_an_interval_is_due_at_its_multiples_since_1970() -> None:
    assert times("15m", None, "2026-01-01 00:07", 2) == ["01-01 00:15+0000", "01-01 00:30+0000"]
    assert times("15m", None, "2026-01-01 00:15", 1) == ["01-01 00:30+0000"]


def test_utc_needs_no_data_of_time_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.flow.due_times.ZoneInfo", lambda _: 1 / 0)
    assert (
        first_of_the_second("@daily", None) == first_of_the_second("@daily", "UTC") == datetime(2026, 1, 2, tzinfo=UTC)
    )


def first_of_the_second(every: str, zone: str | None) -> datetime:
    return due_times(every, zone).after(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("length", "text"), [(90, "90s"), (timedelta(days=366), "31622400s"), (1234567, "1234567s"), (1.25, "1.25s"), (100, "100s")]
)  # fmt: skip
def test_the_text_of_an_interval_is_its_length(length: float | timedelta, text: str) -> None:
    assert due_times(length).text == text


@given(
    every=st.sampled_from([*FIELDS, "15m", "90s", "7d"]),
    zone=st.sampled_from([None, BERLIN, "America/St_Johns", "Australia/Lord_Howe"]),
    start=st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1)),  # noqa: DTZ001 - hypothesis takes these
    length=st.timedeltas(timedelta(0), timedelta(days=4)),
    limit=st.integers(1, 20),
)
def test_the_latest_due_times_are_the_last_of_those_that_come_one_by_one(
    every: str, zone: str | None, start: datetime, length: timedelta, limit: int
) -> None:
    due = due_times(every, None if every[-1] in "msd" else zone)
    start = start.replace(tzinfo=UTC)
    end, expected = start + length, []
    at = due.after(start - timedelta(microseconds=1))
    while at <= end:
        expected.append(at)
        at = due.after(at)
    assert due.latest(start, end, limit) == expected[-limit:]


@pytest.mark.parametrize(
    ("every", "why"),
    [
        ("61 * * * *", "Bad minute"), ("* * * *", "five fields"), ("* * * * * *", "five fields"), ("0 0 30 2 *", "Bad day-of-month"),
        ("@fortnightly", "five fields"), ("soon", "not a duration"), ("0 0 L/2 * 1#1/2", "can't be used"), ("0s", "from 1 second"),
        ("400d", "from 1 second"), (f"{'1,' * 200}1 * * * *", "five fields"), ("", "not a duration"),
    ],
)  # fmt: skip
def test_an_expression_that_is_wrong_is_refused_and_says_what_would_be_right(every: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        due_times(every)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../UTC", "x" * 5000])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a time zone"):
        due_times("@daily", zone)


def test_an_interval_has_no_zone() -> None:
    with pytest.raises(ConfigurationError, match="only for a cron expression"):
        due_times("15m", BERLIN)
