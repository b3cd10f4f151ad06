"""Percentiles of what messages take, from a sample."""

from __future__ import annotations

from typing import Any

from headrace.flow.lease import Lease
from headrace.model.records import Percentiles
from headrace.model.specs import ConsumerSpec
from headrace.runtime.execution.durations import EVERY, KEPT, LATELY, Durations
from headrace.runtime.messages.message import Message
from headrace.runtime.stored_consumer import Settings

SPEC = ConsumerSpec(stream="orders", name="ship")


def test_percentiles_are_durations_that_were_measured() -> None:
    durations = Durations(Settings(SPEC))
    for number in range(1, 101):
        durations.end((), 0.0, number / 1000)
    assert durations.percentiles(1.0) == Percentiles(0.05, 0.095, 0.099)
    one = Durations(Settings(SPEC))
    one.end((), 2.0, 5.0)
    assert one.percentiles(5.0) == Percentiles(3.0, 3.0, 3.0)


def test_one_message_at_a_time_begins_to_be_measured() -> None:
    durations = Durations(Settings(SPEC))
    assert durations.due < 0
    durations.begin((), 7.0)
    assert durations.due == 7.0 + EVERY


def test_only_the_last_minute_and_the_last_thousand_count() -> None:
    durations = Durations(Settings(SPEC))
    assert durations.percentiles(0.0) is None
    durations.end((), 0.0, 9.0)
    assert durations.percentiles(9.0 + LATELY) == Percentiles(9.0, 9.0, 9.0)
    assert durations.percentiles(9.1 + LATELY) is None
    for _ in range(KEPT):
        durations.end((), 10.0, 11.0)
    assert durations.percentiles(11.0) == Percentiles(1.0, 1.0, 1.0)


def test_each_message_is_measured_for_a_history_from_the_next_one_on() -> None:
    settings, acknowledger = Settings(SPEC), Any
    lease = Lease(1, [1, 2], ["a", "b"], 30.0)
    messages = [Message("orders", "ship", "a", seq, 1, 0, "1", None, lease, seq, acknowledger) for seq in (1, 2)]
    durations = Durations(settings)
    durations.begin(messages[:1], 7.0)
    durations.end(messages[:1], 7.0, 8.0)
    assert lease.seconds is None
    settings.change(ConsumerSpec(stream="orders", name="ship", history=60.0), 2)
    for message in messages:
        durations.begin((message,), 9.0)
        assert durations.due < 0, "the next message is measured, too"
        durations.end((message,), 9.0, 11.5)
    assert lease.seconds == {1: 2.5, 2: 2.5}
    settings.change(SPEC, 3)
    durations.begin(messages, 12.0)
    assert durations.due == 12.0 + EVERY
