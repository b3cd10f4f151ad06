"""Demand: how many messages a process holds to hide the latency of a lease call, within the limits,
and the growing interval of the poll."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.flow.demand import (
    BATCH,
    POLL_INTERVALS,
    SPAN,
    CallPace,
    Demand,
    ListenPolicy,
    NotificationBackoff,
    Poll,
    SlowKeys,
    until_token,
)


def at_rate(demand: Demand, rate: int, *, seconds: int = 2, actors: int = 1, since: float = 0.0, done: int = 0) -> int:
    """Observe a steady rate of messages per second. Returns the final number of handled messages."""
    for tick in range(seconds * 10 + 1):
        demand.observe(since + tick / 10, done + rate * tick // 10, actors)
    return done + rate * seconds


def test_there_is_work_for_twice_the_actors_at_least() -> None:
    demand = Demand(1000)
    demand.observe(0.0, 0, 16)
    assert demand.target == 32
    assert demand.want(0) == 32


def test_the_target_is_a_tenth_of_the_messages_handled_in_a_second() -> None:
    demand = Demand(100_000)
    at_rate(demand, 20_000)
    assert demand.target == pytest.approx(20_000 * SPAN, rel=0.01)


def test_a_pause_does_not_turn_large_batches_into_small_ones_at_once() -> None:
    demand = Demand(100_000)
    done = at_rate(demand, 20_000)
    demand.observe(2.1, done, 1)
    assert demand.target >= 1_500
    for tick in range(100):
        demand.observe(2.2 + tick / 10, done, 1)
    assert demand.target == 2


def test_the_next_lease_call_is_made_only_when_half_of_the_target_is_used() -> None:
    demand = Demand(1000)
    demand.observe(0.0, 0, 50)
    assert demand.want(51) == 0
    assert demand.want(50) == 50


@given(
    limit=st.integers(1, 100_000),
    steps=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 100_000), st.integers(0, 10_000), st.integers(0, 100_000)),
        max_size=30,
    ),
)
def test_demand_never_exceeds_max_ack_pending_or_the_limit_of_a_call(
    limit: int, steps: list[tuple[float, int, int, int]]
) -> None:
    demand = Demand(limit)
    now, done = 0.0, 0
    for passed, finished, actors, waiting in steps:
        now, done = now + passed, done + finished
        demand.observe(now, done, actors)
        want = demand.want(waiting)
        assert 0 <= want <= BATCH
        assert want == 0 or want + waiting <= limit


@given(limit=st.integers(1, 10_000), actors=st.integers(1, 1000), rate=st.integers(0, 100_000))
def test_an_empty_consumer_always_wants_something(limit: int, actors: int, rate: int) -> None:
    demand = Demand(limit)
    at_rate(demand, rate, actors=actors)
    assert demand.want(0) >= 1


# --- slow keys


def slow_after(seconds: float, rate: int, passing: int = 0) -> bool:
    """Observe this rate of leased messages, and so many of free keys with each of them. Returns whether the keys are slow."""
    slow_keys = SlowKeys()
    for count in range(int(seconds * rate) + 1):
        slow_keys.observe(count / rate, count * (1 + passing))
        slow_keys.called(passing)
    return slow_keys.found


def test_keys_are_slow_if_few_of_their_messages_are_handled() -> None:
    patience, rate = SlowKeys.PATIENCE, SlowKeys.RATE
    assert slow_after(4 * patience, rate // 2)
    assert slow_after(4 * patience, rate // 2, passing=10), "messages of free keys hide no slow key"
    assert not slow_after(4 * patience, rate * 2)
    assert not slow_after(patience / 2, rate // 2)


def test_a_blocked_key_is_slow_after_a_while() -> None:
    slow_keys, patience = SlowKeys(), SlowKeys.PATIENCE
    slow_keys.observe(5.0, 100)
    assert not slow_keys.found
    assert slow_keys.pause(5.0) == pytest.approx(patience)
    slow_keys.observe(5.0 + patience, 100)
    assert slow_keys.found
    assert slow_keys.pause(5.0 + patience) == 0
    slow_keys.end()
    assert not slow_keys.found


def test_keys_are_no_longer_slow_once_many_of_their_messages_are_handled() -> None:
    slow_keys = SlowKeys()
    slow_keys.observe(0.0, 0)
    slow_keys.observe(1.0, 1)
    assert slow_keys.found
    slow_keys.observe(1.001, 1000)
    assert not slow_keys.found


def test_a_pause_that_is_over_counts_on_a_clock_that_stands_still() -> None:
    slow_keys = SlowKeys()
    slow_keys.observe(5.0, 0)
    slow_keys.end_pause()
    slow_keys.observe(5.0, 0)
    assert slow_keys.found


def test_a_settlement_is_followed_by_fewer_calls_the_more_of_them_find_no_free_key() -> None:
    slow_keys, delays = SlowKeys(), []
    for _ in range(20):
        slow_keys.called(0)
        delays.append(slow_keys.delay)
    assert delays == sorted(delays)
    assert delays[-1] == SlowKeys.LONGEST
    slow_keys.called(1)
    assert slow_keys.delay == SlowKeys.SHORTEST


def rests(poll: Poll, *, polling: bool, times: int = 12) -> list[float]:
    return [poll.rest(None, polling=polling) for _ in range(times)]


def test_the_poll_interval_grows_to_the_longest_and_restarts_when_messages_were_found() -> None:
    poll = Poll()
    poll.found()
    found = rests(poll, polling=False)
    assert found[0] == POLL_INTERVALS.shortest
    assert found[-1] == POLL_INTERVALS.longest
    assert all(later <= earlier * 2 for earlier, later in itertools.pairwise(found))
    poll.found()
    assert poll.rest(None, polling=False) == POLL_INTERVALS.shortest


def test_messages_of_slow_keys_are_no_reason_to_poll_often() -> None:
    poll = Poll()
    poll.found()
    poll.slow_down()
    assert rests(poll, polling=False) == [POLL_INTERVALS.longest] * 12


def test_a_process_without_notifications_polls_more_often() -> None:
    assert max(rests(Poll(), polling=True)) == POLL_INTERVALS.polling


def test_a_process_that_has_found_nothing_begins_with_the_longest_interval() -> None:
    assert rests(Poll(), polling=False) == [POLL_INTERVALS.longest] * 12


def test_with_very_many_processes_each_polls_rarely_and_not_at_the_same_time() -> None:
    polls = [Poll() for _ in range(100)]
    seconds = [[poll.rest(None, polling=False, longest=500.0) for _ in range(3)][-1] for poll in polls]
    assert min(seconds) >= 250
    assert max(seconds) <= 750
    assert len(set(seconds)) > 90


# --- backoff


def test_a_process_that_leases_after_its_notifications_has_no_delay() -> None:
    backoff = NotificationBackoff(lambda: 1.0)
    for _ in range(100):
        backoff.missed()
        backoff.missed()  # a second notification of the same message
        backoff.found()
    assert backoff.delay == 0


def test_the_delay_grows_up_to_a_bound_while_nothing_is_found_and_shrinks_again() -> None:
    backoff = NotificationBackoff(lambda: 1.0)
    delays = []
    for _ in range(20):
        backoff.missed()
        delays.append(backoff.delay)
    assert delays[:2] == [0, 0]
    assert delays == sorted(delays)
    assert delays[-1] == NotificationBackoff.LONGEST
    for _ in range(12):
        backoff.found()
    assert backoff.delay == 0


@given(share=st.lists(st.booleans(), max_size=300))
def test_the_backoff_never_waits_longer_than_its_bound(share: list[bool]) -> None:
    backoff = NotificationBackoff()
    for found in share:
        if found:
            backoff.found()
        else:
            backoff.missed()
        assert 0 <= backoff.delay <= NotificationBackoff.LONGEST


# --- listening


def notify(policy: ListenPolicy, times: int, found: int = 0) -> None:
    for _ in range(times):
        policy.notified()
        policy.fetched(found, more=False)


def closed() -> ListenPolicy:
    policy = ListenPolicy(lambda: 0.0)
    notify(policy, 100)
    assert not policy.listen
    return policy


def test_a_process_with_a_fair_share_goes_on_listening() -> None:
    policy = ListenPolicy(lambda: 0.0)
    for _ in range(100):
        notify(policy, 2)
        notify(policy, 1, found=1)
        assert policy.listen


def test_a_process_with_few_notifications_goes_on_listening() -> None:
    policy = ListenPolicy(lambda: 0.0)
    notify(policy, 20)
    assert policy.listen


@pytest.mark.parametrize("sign", ["more", "many", "no other subscription"])
def test_it_listens_again_when_there_is_more_than_the_others_take(sign: str) -> None:
    policy = closed()
    for _ in range(100):  # its polls find the messages that the others would have found a moment later
        policy.fetched(1, more=False)
    assert not policy.listen
    if sign == "more":
        policy.fetched(1, more=True)
    elif sign == "many":
        policy.fetched(ListenPolicy.MANY, more=False)
    else:
        policy.resume()
    assert policy.listen
    notify(policy, 20)
    assert policy.listen  # its share is counted from the start


A_SECOND = 300  # messages


@given(listeners=st.integers(1, 64), seed=st.integers(0, 10_000))
def test_of_many_processes_with_equal_shares_a_few_go_on_listening(listeners: int, seed: int) -> None:
    """All processes get the same notifications, and take turns with the messages. A process that
    has stopped listening takes none."""
    chance = Random(seed).random
    crowd = [ListenPolicy(chance) for _ in range(listeners)]
    waiting = unheard = 0
    for turn in range(6_000):
        awake = [one for one in crowd if one.listen]
        for place, one in enumerate(awake):
            one.notified()
            one.fetched(int(turn % len(awake) == place), more=False)
        waiting += not awake
        unheard += not awake
        if turn % A_SECOND == 0:  # the others poll
            for one in crowd:
                if not one.listen:
                    one.fetched(waiting, more=False)
                    waiting = 0
    left = sum(one.listen for one in crowd)
    assert left <= 2 / ListenPolicy.SHARE
    assert unheard <= 4 * A_SECOND


# --- the pace of lease calls


def took(messages: int, *, busy: float = 1.0) -> float:
    """The seconds that a call takes, on a machine that is busy by this factor."""
    return (200e-6 + 2.5e-6 * messages) * busy


def test_calls_that_take_no_longer_than_they_need_are_followed_by_others_at_once() -> None:
    pace = CallPace()
    rests = [pace.rest(messages, 0, took(messages)) for messages in [10, 40, 100, 1000, 40, 300] * 10]
    assert max(rests) < 1e-6


def test_after_a_call_that_was_delayed_the_next_one_waits_for_a_multiple_of_the_delay() -> None:
    pace = CallPace()
    pace.rest(100, 0, took(100))
    assert pace.rest(100, 0, took(100) + 0.0005) == pytest.approx(8 * 0.0005, rel=0.01)
    assert pace.rest(100, 0, took(100, busy=50)) == CallPace.LONGEST
    assert pace.rest(100, 0, took(100)) == pytest.approx(0, abs=1e-5)


def test_few_messages_never_wait() -> None:
    pace = CallPace()
    for messages in range(CallPace.MANY):
        assert pace.rest(messages, 0, took(messages)) == 0
        assert pace.rest(messages, 0, took(messages, busy=50)) == 0
    assert pace.rest(CallPace.MANY, 0, took(CallPace.MANY, busy=50)) > 0


def test_a_few_large_messages_wait_as_many_small_ones_do() -> None:
    pace, large = CallPace(), 10_000
    size = 10 * (1 + large // CallPace.CHARACTERS)
    assert pace.rest(10, 10 * large, took(size)) == 0
    assert pace.rest(100, 0, took(100)) == pytest.approx(0, abs=1e-5), "and small ones take no longer than they need"
    assert pace.rest(10, 10 * large, took(size) + 0.0005) == pytest.approx(8 * 0.0005, rel=0.1)
    assert pace.rest(1, large, took(1 + large // CallPace.CHARACTERS, busy=50)) == 0


def test_messages_that_take_longer_from_some_time_on_wait_no_longer_than_others_in_the_end() -> None:
    """Such as those of a stream with larger headers. Meanwhile their calls seem to be delayed, and wait for hundredths of a second."""
    pace = CallPace()
    pace.rest(100, 0, took(100))
    rests = [pace.rest(100, 0, took(100, busy=3)) for _ in range(2000)]
    assert rests[0] == pytest.approx(8 * (took(100, busy=3) - took(100)), rel=0.01)
    assert rests[-1] == pytest.approx(0, abs=1e-5)


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 64_000_000), st.floats(0, 100))))
def test_no_call_waits_longer_than_a_hundredth_of_a_second(calls: list[tuple[int, int, float]]) -> None:
    pace = CallPace()
    assert all(0 <= pace.rest(*call) <= CallPace.LONGEST for call in calls)


def test_a_worker_that_gets_no_token_asks_less_and_less_often() -> None:
    waits = [until_token(0.1, 10, None, missed) for missed in range(5)]
    assert waits == [0.1, 0.2, 0.4, 0.5, 0.5], "the bucket never fills while all workers wait"
    assert until_token(100, 0.01, 1, 1000) == 1.0
    assert until_token(0.001, 1000, 1, 1000) == 0.001


@pytest.mark.parametrize("seconds", [0.01, 0.15, 0.4, 1.0])
def test_slow_lease_calls_bring_more_messages_instead_of_fewer(seconds: float) -> None:
    """With a far database, or one that is busy: one actor finishes whatever a call brings before the next one returns."""
    demand, now, done = Demand(limit=1000), 0.0, 0
    for _ in range(40):
        demand.observe(now, done, 1)
        done += demand.want(0)
        now += seconds
        demand.observe_call(seconds)
    assert demand.target >= 500


def test_a_single_slow_lease_call_changes_the_buffer_by_little() -> None:
    demand = Demand(limit=10_000)
    for tick in range(40):
        demand.observe(tick / 10, 100 * tick, 1)
        demand.observe_call(0.01)
    before = demand.target
    demand.observe_call(60.0)
    demand.observe(4.0, 4000, 1)
    assert demand.target <= 5 * before
    for tick in range(41, 80):
        demand.observe_call(0.01)
        demand.observe(tick / 10, 100 * tick, 1)
    assert demand.target <= 1.1 * before
