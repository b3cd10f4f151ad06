"""Durations in the notation of settings."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.durations import Duration, seconds
from headrace.model.errors import ConfigurationError

UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "": 1}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("1h", 3600),
        ("2d", 172800),
        ("1.5 m", 90),
        (" 7 ", 7),
        (0, 0),
        (1.5, 1.5),
    ],
)
def test_examples(written: Duration, expected: float) -> None:
    assert seconds(written) == expected


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from(sorted(UNITS)))
def test_text_is_a_number_times_its_unit(whole: int, thousandths: int, unit: str) -> None:
    found = seconds(f"{whole}.{thousandths:03}{unit}")
    assert math.isclose(found, (whole + thousandths / 1000) * UNITS[unit], rel_tol=1e-12)


@given(st.floats(0, 1e12))
def test_seconds_stay_seconds(value: float) -> None:
    assert seconds(value) == value


@given(st.timedeltas(min_value=timedelta(0)))
def test_a_timedelta_is_its_seconds(value: timedelta) -> None:
    assert seconds(value) == value.total_seconds()


@pytest.mark.parametrize(
    "value",
    ["", "s", "ten", "5 minutes", "-1s", "1e3s", "1s2", "s1", None, True, [], -1, -0.001, math.nan, math.inf,
     timedelta(seconds=-1), "9" * 400, 10**400],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_an_invalid_duration_is_named_with_its_setting(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^ack_wait=.*\.$"):
        seconds(value, "ack_wait")  # type: ignore[arg-type]
