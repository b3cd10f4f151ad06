"""A benchmark with a wrong result reports no figure. The checks find messages that were lost,
duplicated or out of order.
"""

from __future__ import annotations

import pytest

from benchmarks.checks import CheckFailed, exactly_once, in_order, plain
from benchmarks.payloads import Keys
from benchmarks.timing import Phase, percentile, summarise

ONE_KEY = Keys(1)


def test_all_of_them_once_is_right() -> None:
    assert exactly_once([2, 0, 1], 3, "consumer")


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [([0, 2], "1 of 3 messages never came"), ([0, 1, 1, 2], "more than once"), ([0, 1, 2, 3], "had been published")],
)
def test_lost_doubled_and_unknown_messages_are_seen(numbers: list[int], reason: str) -> None:
    with pytest.raises(CheckFailed, match=reason):
        exactly_once(numbers, 3, "consumer")


def test_one_after_the_other_is_in_order() -> None:
    assert in_order([0, ~0, 1, ~1], ONE_KEY, "consumer", awaits=True)


@pytest.mark.parametrize(
    ("trace", "reason"),
    [([1, ~1, 0, ~0], "came after"), ([0, 1, ~0, ~1], "was not done"), ([0], "never ended"), ([0, ~1], "what ended")],
)
def test_disorder_within_a_key_is_seen(trace: list[int], reason: str) -> None:
    with pytest.raises(CheckFailed, match=reason):
        in_order(trace, ONE_KEY, "consumer", awaits=True)


def test_handlers_that_never_wait_leave_no_ends() -> None:
    assert in_order([0, 1, 2], ONE_KEY, "consumer", awaits=False)


def test_a_key_with_half_the_traffic_has_every_second_message() -> None:
    keys = Keys(20, hot=True)
    places = [keys.place(number) for number in range(1000)]
    assert places.count(0) == 500
    assert len(set(places)) == 20


def test_a_complaint_comes_out_of_its_task_groups() -> None:
    with pytest.raises(CheckFailed, match="lost"), plain():
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [CheckFailed("lost")])])


def test_percentiles_are_of_values_that_were_seen() -> None:
    ordered = list(range(1, 101))
    assert [percentile(ordered, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile([], 0.5) == 0


def test_what_piles_up_shows_where_it_was_published_and_where_it_was_handled() -> None:
    second = 1_000_000_000
    phase = Phase("phase", 10 * second, 12 * second, 1.0)
    handled = [10 * second + 5_000_000, 11 * second + 500_000_000]  # both were published in the first second
    found = summarise(phase, handled, [5_000_000, 1_000_000_000])
    first, last = found.windows
    assert (first.messages, last.messages) == (1, 1)
    assert (first.p50_ms, first.max_ms) == (5.0, 1000.0)
    assert last.max_ms == 0
    assert found.whole.rate == 1.0
