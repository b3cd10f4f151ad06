"""Demand: enough at hand to hide a lease call, never more than is allowed; and a poll that grows tired."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.flow.demand import BATCH, DEAF, LONGEST, SHORTEST, SPAN, Demand, Poll, until_token


def at_rate(demand: Demand, rate: int, *, seconds: int = 2, actors: int = 1, since: float = 0.0, done: int = 0) -> int:
    """Observe a steady rate of messages per second. Returns how many are done in the end."""
    for tick in range(seconds * 10 + 1):
        demand.observe(since + tick / 10, done + rate * tick // 10, actors)
    return done + rate * seconds


def test_there_is_work_for_twice_the_actors_at_least() -> None:
    demand = Demand(1000)
    demand.observe(0.0, 0, 16)
    assert demand.target == 32
    assert demand.want(0) == 32


def test_the_target_is_what_is_done_in_a_tenth_of_a_second() -> None:
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


def test_more_is_asked_for_only_when_half_is_gone() -> None:
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
def test_no_more_is_ever_wanted_than_may_be_unsettled_or_fits_a_call(
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


def rests(poll: Poll, *, deaf: bool, times: int = 12) -> list[float]:
    return [poll.rest(None, deaf=deaf) for _ in range(times)]


def test_the_poll_grows_from_the_shortest_to_the_longest_and_starts_anew_when_something_was_found() -> None:
    poll = Poll()
    found = rests(poll, deaf=False)
    assert found[0] == SHORTEST
    assert found[-1] == LONGEST
    assert all(later <= earlier * 2 for earlier, later in itertools.pairwise(found))
    poll.found()
    assert poll.rest(None, deaf=False) == SHORTEST


def test_who_hears_no_notifications_looks_more_often() -> None:
    assert max(rests(Poll(), deaf=True)) == DEAF


@given(due_in=st.floats(-10, 100), before=st.integers(0, 12), deaf=st.booleans())
def test_the_poll_never_sleeps_past_what_falls_due_nor_spins(due_in: float, before: int, deaf: bool) -> None:
    poll = Poll()
    rests(poll, deaf=deaf, times=before)
    rest = poll.rest(due_in, deaf=deaf)
    assert 0.001 <= rest <= LONGEST
    assert rest <= max(due_in, 0.001)


@given(due_in=st.floats(0, 100), rate=st.floats(0.01, 1e6), burst=st.none() | st.integers(1, 10_000))
def test_a_rate_limit_is_waited_for_until_there_is_a_message_at_least_and_the_bucket_never_runs_over(
    due_in: float, rate: float, burst: int | None
) -> None:
    rest = until_token(due_in, rate, burst)
    assert 0.001 <= rest <= LONGEST
    assert rest >= min(due_in, LONGEST)
    assert rest <= max(due_in, 0.001, (rate if burst is None else burst) / rate / 4)
