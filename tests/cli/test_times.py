"""Times, positions and durations as people write them. Valid ones are parsed, invalid ones are refused with a hint."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.errors import UsageError
from headrace.cli.options.times import after, ago, duration, future, in_utc, lasting, parse_place, past
from headrace.model.durations import seconds

NOW = datetime(2026, 2, 28, 13, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("start", "start"),
        ("end", "end"),
        ("1", 1),
        ("9223372036854775807", 2**63 - 1),
        ("1h", NOW - timedelta(hours=1)),
        ("1.5d", NOW - timedelta(hours=36)),
        ("2026-02-28T12:00:00Z", NOW - timedelta(hours=1)),
        ("2026-02-28 13:00+01:00", NOW - timedelta(hours=1)),
    ],
)
def test_a_place_is_an_end_a_seq_a_time_or_how_long_ago(
    text: str, meant: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse_place(text, "TO", NOW) == meant
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", ["2026-02-28T13:00", "2026-02-28 13:00:00", "20260228T13"])
def test_a_time_without_a_zone_is_taken_as_utc_and_that_is_said(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert past(text, "--from") == NOW
    output = capsys.readouterr()
    assert output.out == ""
    assert text in output.err
    assert "UTC: 2026-02-28T13:00:00Z" in output.err


@pytest.mark.parametrize(
    "text",
    ["", " ", "nix", "-1", "0", "+", "1h30", "-1h", "9223372036854775808", "1" * 5000, "2026-02-30", "99999999999999d",
     "0001-01-01T00:00+23:00", "START", "١٢", "\x1b[31m"],
)  # fmt: skip
def test_an_invalid_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--from ") as refused:
        parse_place(text, "--from", NOW)
    assert str(refused.value).isprintable()


def test_a_duration_lies_behind_or_ahead_as_the_option_has_it() -> None:
    assert past("5m", "--from", NOW) == NOW - timedelta(minutes=5)
    assert future("5m", "--at", NOW) == NOW + timedelta(minutes=5)
    assert after("90", "--delay", NOW) == NOW + timedelta(seconds=90)


@pytest.mark.parametrize("text", ["", "x", "-1s", "1 fortnight", "nan", "inf"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--delay"):
        duration(text, "--delay")


@given(st.integers(0, 10**10) | st.floats(0, 10**6, allow_nan=False).map(lambda value: round(value, 3)))
def test_a_duration_is_printed_so_that_it_can_be_parsed_again(length: float) -> None:
    assert seconds(lasting(length)) == pytest.approx(length, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("length", "expected"), [(0, "0s"), (0.5, "500ms"), (90, "90s"), (3600, "1h"), (604800, "7d")])
def test_durations_for_people(length: float, expected: str) -> None:
    assert lasting(length) == expected


def test_times_for_people() -> None:
    assert in_utc(datetime.fromisoformat("2026-02-28T14:00+01:00")) == "2026-02-28T13:00:00Z"
    assert ago(NOW - timedelta(minutes=3), NOW) == "3m ago"
    assert ago(NOW + timedelta(minutes=3), NOW) == "0s ago"
