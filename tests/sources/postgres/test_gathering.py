"""Steady changes are gathered for a moment, and a backlog is not held up."""

from __future__ import annotations

import pytest

from headrace.sources.postgres.connection.gathering import GATHERING_TIME, WINDOW, Gathering


def waits(gathering: Gathering, payloads_per_second: float, seconds: float, *, gap: float = 0.001) -> list[float]:
    """Read for some seconds at a steady pace, at least `gap` apart. Returns the seconds between the reads."""
    now = last = 1000.0
    found = []
    while now < 1000.0 + seconds:
        then = max(gathering.next_read(round((now - last) * payloads_per_second), now), now + gap)
        found.append(then - now)
        last, now = now, then
    return found


@pytest.mark.parametrize("pace", [1500, 5000])
def test_steady_changes_are_gathered(pace: float) -> None:
    found = waits(Gathering(), pace, 2.0)
    late = found[len(found) // 2 :]
    assert max(late) == pytest.approx(GATHERING_TIME)
    assert sum(one > 0.01 for one in late) > 0.45 * len(late)


def test_many_changes_are_gathered_until_a_hundred_are_expected() -> None:
    assert waits(Gathering(), 12_500, 1.0)[-1] == pytest.approx(0.008, rel=0.2)


def test_a_backlog_is_not_gathered_even_if_it_has_gaps() -> None:
    gathering = Gathering()
    now = 1000.0
    for step in range(300):
        now += 0.004 if step % 10 == 0 else 0.0005
        assert gathering.next_read(40, now) == now


def test_a_change_after_a_silence_is_read_immediately() -> None:
    gathering = Gathering()
    assert gathering.next_read(3, 1000.0) == 1000.0
    assert gathering.next_read(3, 1060.0) < 1060.0 + 2 * WINDOW
