"""Percentiles of what messages take, from a sample."""

from __future__ import annotations

from typing import Any

from headrace.flow.lease import Lease
from headrace.model.records import Percentiles
from headrace.runtime.execution.durations import EVERY, KEPT, LATELY, Durations
from headrace.runtime.messages.message import Message


def message(seq: int, lease: Lease) -> Message:
    acknowledger: Any = None
    return Message("orders", "ship", "a", seq, 1, 0, "1", None, lease, seq, acknowledger)


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
    lease = Lease(1, [1], ["a"], 30.0)
    measured = message(1, lease)
    durations.begin(measured, 7.0)
    assert durations.due == 7.0 + EVERY
    durations.end(measured, 7.5)
    assert (durations.percentiles(8.0), lease.seconds) == (Percentiles(0.5, 0.5, 0.5), None)


def test_each_message_is_measured_for_a_history() -> None:
    durations, lease = Durations(), Lease(1, [1, 2], ["a", "b"], 30.0)
    lease.seconds = {}
    for seq in (1, 2):
        measured = message(seq, lease)
        durations.begin(measured, 9.0)
        assert durations.due < 9.0, "the next message is measured, too"
        durations.end(measured, 9.0 + seq)
    assert lease.seconds == {1: 1.0, 2: 2.0}


def test_only_the_last_minute_and_the_last_thousand_count() -> None:
    durations = Durations()
    assert durations.percentiles(0.0) is None
    durations.add(0.0, 9.0)
    assert durations.percentiles(9.0 + LATELY) == Percentiles(9.0, 9.0, 9.0)
    assert durations.percentiles(9.1 + LATELY) is None
    for _ in range(KEPT):
        durations.add(10.0, 11.0)
    assert durations.percentiles(11.0) == Percentiles(1.0, 1.0, 1.0)
