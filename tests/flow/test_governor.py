"""The governor: finds the concurrency by looking at what more actors bring, and lets go of those that bring nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.flow.governor import GAIN, INTERVAL, PATIENCE, Decision, Governor, Sample

Rate = Callable[[int], float]
"""Messages per second that so many actors finish, when there is no end of messages."""

samples = st.builds(Sample, st.floats(0, 2), st.integers(0, 10_000), st.integers(0, 200), st.integers(0, 1000))


def simulate(governor: Governor, rate: Rate, *, ticks: int = 200) -> list[int]:
    """A flood of messages. Returns the number of actors in each tick."""
    seen = []
    actors = governor.decision.actors
    for _ in range(ticks):
        seen.append(actors)
        finished = round(rate(actors) * INTERVAL)
        actors = governor.decide(Sample(INTERVAL, finished, busy=actors, ready=1000)).actors
    return seen


def waits(latency: float, *, capacity: float = float("inf")) -> Rate:
    """A handler that waits for something elsewhere, which can do so many messages a second."""
    return lambda actors: min(actors / latency, capacity)


def computes(rate: float) -> Rate:
    """A handler that needs the processor: more actors finish no more."""
    return lambda actors: rate


def chokes(latency: float, comfortable: int) -> Rate:
    """A handler on something that grows slower the more it is asked at a time, worse than in proportion."""
    return lambda actors: actors / latency / (1 + (actors / comfortable) ** 2)


def usual(seen: list[int]) -> int:
    """The number of actors most of the time, once it has found its place."""
    later = seen[len(seen) // 2 :]
    return max(set(later), key=later.count)


@given(low=st.integers(1, 100), more=st.integers(0, 100), given_samples=st.lists(samples, max_size=60))
def test_whatever_it_sees_it_stays_between_its_limits(low: int, more: int, given_samples: list[Sample]) -> None:
    governor = Governor(low, low + more)
    assert governor.decision.actors == low
    before = low
    for sample in given_samples:
        decision = governor.decide(sample)
        assert low <= decision.actors <= low + more
        assert decision.actors <= before * 2
        assert decision.reason
        assert governor.decision is decision
        before = decision.actors


@given(actors=st.integers(1, 100), given_samples=st.lists(samples, max_size=40))
def test_a_fixed_concurrency_never_moves(actors: int, given_samples: list[Sample]) -> None:
    governor = Governor(actors, actors)
    assert {governor.decide(sample) for sample in given_samples} <= {Decision(actors, "fixed")}


@given(high=st.integers(2, 200), latency=st.floats(0.005, 0.2))
def test_a_handler_that_waits_gets_as_many_actors_as_bring_anything(high: int, latency: float) -> None:
    seen = simulate(Governor(1, high), waits(latency), ticks=10)
    assert high / (1 + 2 * GAIN) <= seen[-1] <= high


@given(capacity=st.integers(50, 5000))
def test_it_climbs_to_where_more_actors_finish_no_more(capacity: int) -> None:
    rate = waits(0.02, capacity=capacity)
    seen = simulate(Governor(1, 1000), rate)
    assert rate(usual(seen)) >= capacity / (1 + 2 * GAIN)
    assert usual(seen) <= max(2, 2 * capacity * 0.02 * (1 + GAIN))


def test_a_handler_that_computes_keeps_the_least() -> None:
    seen = simulate(Governor(2, 64), computes(1000))
    assert usual(seen) == 2
    assert max(seen) == 4
    assert seen.count(4) <= len(seen) / PATIENCE + 1


@pytest.mark.parametrize("comfortable", [4, 20, 50])
def test_it_backs_off_from_a_downstream_that_chokes(comfortable: int) -> None:
    rate = chokes(0.02, comfortable)
    best = max(rate(actors) for actors in range(1, 257))
    seen = simulate(Governor(1, 256), rate)
    assert rate(usual(seen)) >= 0.75 * best
    assert max(seen) <= 8 * comfortable


def test_it_finds_the_hill_again_when_it_has_moved() -> None:
    governor = Governor(1, 64)
    assert usual(simulate(governor, computes(100))) == 1
    assert usual(simulate(governor, waits(0.02))) == 64


@given(high=st.integers(2, 1000), busy=st.integers(0, 10))
def test_actors_that_have_nothing_to_do_are_let_go(high: int, busy: int) -> None:
    governor = Governor(1, high)
    simulate(governor, waits(0.02), ticks=40)
    for _ in range(PATIENCE * 40):
        actors = governor.decision.actors
        governor.decide(Sample(INTERVAL, 5, busy=min(busy, actors), ready=0))
    assert min(busy, high) <= governor.decision.actors <= max(2 * busy, 1) or governor.decision.actors == high


def test_a_short_lull_lets_nobody_go() -> None:
    governor = Governor(1, 64)
    simulate(governor, waits(0.02), ticks=40)
    for _ in range(20):
        governor.decide(Sample(INTERVAL, 0, busy=0, ready=0))
        governor.decide(Sample(INTERVAL, 500, busy=60, ready=0))
    assert governor.decision.actors == 64
