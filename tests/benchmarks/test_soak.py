"""The judgement of `python -m benchmarks soak` on series that leak and series that are level, and a short run."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soak.command import Found, amount
from benchmarks.soak.judge import FLOORS, Series, Trend, slope, trend

ROOT = Path(__file__).parents[2]
HOUR = 3600.0
MIB = float(1 << 20)


def judged(figure: Callable[[float], float], kind: str = "memory", seconds: float = HOUR) -> Trend:
    """The judgement of a run with 120 samples."""
    times = [seconds * number / 120 for number in range(120)]
    found = trend(Series("it", kind, [(time, figure(time)) for time in times]), seconds)
    assert found is not None
    return found


def test_a_steady_leak_is_found() -> None:
    found = judged(lambda time: 80 * MIB + 20 * MIB * time / HOUR)
    assert found.leaks
    assert found.growth == pytest.approx(20 * MIB * 2 / 3, rel=0.05)


def test_a_leak_below_noise_of_its_size_is_found() -> None:
    chance = random.Random(5)
    assert judged(lambda time: 80 * MIB + 30 * MIB * time / HOUR + chance.uniform(-8, 8) * MIB).leaks


@pytest.mark.parametrize("kind", FLOORS)
def test_every_kind_of_figure_can_leak(kind: str) -> None:
    assert judged(lambda time: 4 * FLOORS[kind] * time / HOUR, kind).leaks
    assert not judged(lambda time: FLOORS[kind], kind).leaks


def test_a_leak_in_steps_is_found() -> None:
    assert judged(lambda time: 10 + 3 * (time // 300), "files").leaks


def test_level_series_are_level() -> None:
    chance = random.Random(7)
    assert not judged(lambda time: 80 * MIB + chance.uniform(-2, 2) * MIB).leaks
    assert not judged(lambda time: 0.0, "dead rows").leaks


def test_growth_in_the_warm_up_is_no_leak() -> None:
    assert not judged(lambda time: min(time, 1000) * MIB / 10).leaks


def test_a_table_that_retention_cuts_off_again_and_again_is_level() -> None:
    assert not judged(lambda time: (time % 300) * MIB, "table").leaks


def test_a_step_that_stays_is_no_leak_unless_it_is_repeated() -> None:
    assert not judged(lambda time: 80 * MIB if time < 3000 else 100 * MIB).leaks


def test_some_outliers_change_nothing() -> None:
    chance = random.Random(9)
    assert not judged(lambda time: 500 * MIB if chance.random() < 0.1 else 80 * MIB).leaks


def test_a_table_that_was_there_for_a_moment_is_not_judged() -> None:
    assert trend(Series("it", "table", [(3000, 1), (3030, 9e9)]), HOUR) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=30), st.floats(-100, 100))
def test_the_slope_follows_a_line_that_is_added(values: list[float], added: float) -> None:
    flat = list(enumerate(values))
    assert slope([(time, value + added * time) for time, value in flat]) == pytest.approx(slope(flat) + added, abs=1e-3)


def test_leaks_and_accidents_are_named() -> None:
    leak = Trend("server", "memory", 80 * MIB, 20 * MIB, 8 * MIB, True)
    level = Trend("server", "files", 10, 1, 6, False)
    found = Found({}, [], [leak, level], ["worker-1 ended with 1:\n…"])
    assert found.broken == ["memory of server grew by 21M", "worker-1 ended with 1:"]


def test_amounts_are_short() -> None:
    assert [amount(value) for value in (9_999, 123_456, 2.5e9)] == ["9999", "123k", "2500M"]


@pytest.mark.long
def test_a_short_run_uses_every_feature_and_ends_well(tmp_path: Path) -> None:
    into = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks", "soak", "--seconds", "20", "--rate", "50", "--json", str(into)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert into.exists(), done.stdout + done.stderr
    found: dict[str, Any] = msgspec.json.decode(into.read_bytes())
    assert found["accidents"] == [], done.stdout
    assert found["did"].keys() >= {
        "ship", "bill", "flaky", "blocking", "seeker", "project", "mirror", "tick", "single", "batch of 20", "scheduled",
        "unique", "expiring", "compacted", "transaction", "redrive", "purge", "seek", "replay", "pause", "http publish",
        "http ack",
    }  # fmt: skip
    kinds = {(series["name"], series["kind"]) for series in found["series"]}
    assert {("worker-1", "memory"), ("server", "files"), ("postgres", "connections")} <= kinds
    assert ("headrace_internal.leases", "dead rows") in kinds
