"""Percentiles of what messages take, from a sample."""

from __future__ import annotations

from headrace.flow.lease import Lease
from headrace.model.records import Percentiles
from headrace.runtime.execution.durations import EVERY, KEPT, LATELY, Durations


def test_percentiles_are_durations_that_were_measured() -> None:
    durations = Durations()
    for number in range(1, 101):
        durations.add(0.0, number / 1000)
    assert durations.percentiles(1.0) == Percentiles(0.05, 0.095, 0.099)
    one = Durations()
    one.add(2.0, 5.0)
    assert one.percentiles(5.0) == Percentiles(3.0, 3.0, 3.0)


def test_one_message_at_a_time_begins_to_be_measured() -> None:
    durations = Durations()
    assert durations.due < 0
    durations.begin_sample(Lease(1, [1], ["a"], 30.0), 7.0)
    assert durations.due == durations.sample_due == 7.0 + EVERY


def test_each_message_is_measured_for_a_history() -> None:
    durations, lease = Durations(), Lease(1, [1, 2], ["a", "b"], 30.0)
    lease.seconds = {}
    durations.begin_sample(lease, 9.0)
    assert durations.due < 9.0, "the next message is measured, too ..."
    assert durations.sample_due == 9.0 + EVERY, "... and counts in the percentiles as without a history"
    assert [lease.note_seconds(seq, 9.0, 9.0 + seq) for seq in (1, 2)] == [1.0, 2.0]
    assert list(lease.durations([2, 1, 3])) == [2.0, 1.0, None]


def test_only_the_last_minute_and_the_last_thousand_count() -> None:
    durations = Durations()
    assert durations.percentiles(0.0) is None
    durations.add(0.0, 9.0)
    assert durations.percentiles(9.0 + LATELY) == Percentiles(9.0, 9.0, 9.0)
    assert durations.percentiles(9.1 + LATELY) is None
    for _ in range(KEPT):
        durations.add(10.0, 11.0)
    assert durations.percentiles(11.0) == Percentiles(1.0, 1.0, 1.0)
