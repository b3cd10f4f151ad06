"""The governor: it finds the concurrency by measuring the gain of more actors, and removes actors
that bring none."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.flow.governor import INTERVAL, LULL, REMEMBERED, STOP_MEMORY, Governor, Sample
from tests.flow.simulated import Consumer, Latency, chokes, computes, fixed, rate, waits

shares = st.none() | st.floats(0, 1)
samples = st.builds(
    Sample, st.integers(0, 10_000), st.integers(0, 200), st.integers(0, 1000), st.integers(0, 1000),
    st.integers(0, 100), shares, st.none() | st.integers(0, 300),
)  # fmt: skip
steps = st.lists(st.tuples(st.floats(0, 5), samples, st.none() | st.integers(1, 100)), max_size=80)


@given(low=st.integers(1, 100), more=st.integers(0, 100), given_steps=steps)
def test_the_number_of_actors_stays_within_its_limits(
    low: int, more: int, given_steps: list[tuple[float, Sample, int | None]]
) -> None:
    governor = Governor(low, low + more)
    before, now = low, 0.0
    assert governor.decision.actors == low
    for seconds, sample, most in given_steps:
        now += seconds
        decision = governor.decide(now, sample, most=most)
        assert low <= decision.actors <= low + more
        assert decision.actors <= max(low, low + more if most is None else most)
        assert decision.actors <= before * 2
        assert decision.reason
        assert governor.decision is decision
        assert governor.history[-1] is decision
        assert len(governor.history) <= REMEMBERED
        before = decision.actors


@given(actors=st.integers(1, 100), given_steps=steps)
def test_a_fixed_concurrency_never_moves(actors: int, given_steps: list[tuple[float, Sample, int | None]]) -> None:
    governor = Governor(actors, actors)
    for now, (_, sample, most) in enumerate(given_steps):
        assert governor.decide(now, sample, most=most).actors == actors
    assert governor.decision.reason.text == "fixed"


WORKLOADS = {
    "waits 10 ms": (waits(0.01), 64),
    "waits 200 ms": (waits(0.2), 64),
    "computes on one core": (computes(0.005), 64),
    "computes on two cores": (computes(0.005, cores=2), 64),
    "waits, then computes": (lambda n, at: max(0.01, n / 8000), 256),
    "a downstream of 20": (chokes(0.05, 20), 128),
    "a quick downstream of 20": (chokes(0.01, 20), 128),
    "a downstream of 3": (chokes(0.02, 3), 64),
}


@pytest.mark.parametrize("jitter", [0.0, 0.15], ids=["quiet", "noisy"])
@pytest.mark.parametrize(("latency", "high"), WORKLOADS.values(), ids=WORKLOADS.keys())
def test_after_ten_seconds_it_does_nine_tenths_of_the_best_fixed_setting(
    latency: Latency, high: int, jitter: float
) -> None:
    best = max(
        fixed(actors, latency, jitter=jitter) for actors in (1, 2, 3, 4, 8, 16, 20, 32, 64, 128) if actors <= high
    )
    consumer = Consumer(Governor(1, high), latency, jitter=jitter)
    consumer.run(10)
    assert rate(consumer.run(30)) >= 0.9 * best


@pytest.mark.parametrize("seed", range(5))
def test_a_downstream_that_chokes_is_rarely_asked_for_more_than_it_takes(seed: int) -> None:
    consumer = Consumer(Governor(1, 128), chokes(0.05, 20), jitter=0.1, seed=seed)
    found = consumer.run(10)
    assert max(tick.in_flight for tick in found) <= 32
    settled = consumer.run(60)
    assert max(tick.in_flight for tick in settled) <= 28  # 1.4 times the comfortable number, for a second at a time
    assert sum(tick.in_flight > 20 for tick in settled) <= 0.2 * len(settled)


def test_a_handler_that_computes_keeps_the_minimum() -> None:
    consumer = Consumer(Governor(2, 64), computes(0.005))
    consumer.run(5)
    seen = [tick.actors for tick in consumer.run(60)]
    assert max(seen) <= 4
    assert seen.count(2) >= 0.8 * len(seen)


@pytest.mark.parametrize("comfortable", [4, 8, 30])
def test_a_downstream_that_becomes_slow_later_is_relieved(comfortable: int) -> None:
    later = chokes(0.02, comfortable)
    consumer = Consumer(Governor(1, 64), lambda n, at: 0.02 if at < 20 else later(n, at))
    assert max(tick.actors for tick in consumer.run(20)) == 64
    consumer.run(15)
    relieved = consumer.run(20)
    assert rate(relieved) >= 0.85 * comfortable / 0.02
    assert max(tick.in_flight for tick in relieved) <= 1.4 * comfortable


def test_a_downstream_that_recovers_is_used_again() -> None:
    choking, well = chokes(0.02, 4), waits(0.02)
    consumer = Consumer(Governor(1, 64), lambda n, at: choking(n, at) if at < 20 else well(n, at))
    assert consumer.run(20)[-1].actors <= 5
    consumer.run(15)
    assert rate(consumer.run(10)) >= 0.9 * 64 / 0.02


def test_a_downstream_that_hangs_keeps_the_minimum() -> None:
    consumer = Consumer(Governor(1, 64), lambda n, at: 0.02 if at < 10 else 1e9)
    consumer.run(10)
    assert consumer.run(20)[-1].actors <= 4
    assert consumer.run(90)[-1].actors == 1
    assert any("hardly any finish" in decision.reason.text for decision in consumer.governor.history)


@pytest.mark.parametrize(("seconds", "within"), [(0.3, 30), (2, 60), (10, 300)])
def test_calls_that_take_longer_from_some_time_on_are_as_many_again(seconds: float, within: float) -> None:
    """They take so much longer than before that it looks as if the downstream hung."""
    consumer = Consumer(Governor(1, 64), lambda n, at: 0.001 if at < 10 else seconds)
    consumer.run(10)
    consumer.run(within)
    assert rate(consumer.run(10 * seconds)) >= 0.75 * 64 / seconds


def test_a_downstream_that_answers_after_long_timeouts_is_used_again_when_it_recovers() -> None:
    consumer = Consumer(Governor(1, 64), lambda n, at: 30 if 10 <= at < 100 else 0.02)
    consumer.run(10)
    assert consumer.run(90)[-1].actors <= 4
    consumer.run(35)
    assert rate(consumer.run(10)) >= 0.9 * 64 / 0.02


def after_a_lull(before: Latency, after: Latency) -> Consumer:
    """A consumer that has worked, then had no work until it was at its least, and now has a backlog again."""
    governor = Governor(1, 64)
    now = Consumer(governor, before).run(240)[-1].at
    while governor.decision.actors > 1:
        now += INTERVAL
        governor.decide(now, Sample(0, 0, 0, 0))
    governor.resume()
    consumer = Consumer(governor, after)
    consumer._now = now
    return consumer


def test_after_a_time_without_work_calls_may_take_longer() -> None:
    assert after_a_lull(waits(0.1), waits(30)).run(10)[-1].actors == 64


def test_after_a_time_without_work_a_downstream_still_takes_no_more_than_before() -> None:
    four_at_a_time = computes(0.5, cores=4)
    assert max(tick.in_flight for tick in after_a_lull(four_at_a_time, four_at_a_time).run(20)) <= 8


@given(rounds=st.lists(st.integers(0, 20), min_size=50, max_size=100))
def test_calls_with_one_message_scale_as_single_messages_do(rounds: list[int]) -> None:
    single, batched = Governor(1, 64), Governor(1, 64)
    for now, calls in enumerate(rounds):
        for governor, count in ((single, None), (batched, calls)):
            actors = governor.decision.actors
            governor.decide(now * INTERVAL, Sample(calls * actors, actors, 100, 100, calls=count and count * actors))
        assert single.decision == batched.decision


def test_handlers_of_half_a_minute_need_not_end_before_there_are_more() -> None:
    consumer = Consumer(Governor(1, 64), waits(30))
    assert consumer.run(10)[-1].actors == 64


def doubling(at: float) -> float:
    """500 messages per second, doubled every 5 seconds up to 4,000, and back again."""
    return 500.0 * 2 ** (3 - abs(3 - int(at / 5) % 6))


def test_it_follows_a_load_that_doubles_and_halves() -> None:
    consumer = Consumer(Governor(1, 64), waits(0.01), arrivals=doubling)
    consumer.run(5)
    for _ in range(12):
        began = consumer.ticks[-1].at
        ticks = consumer.run(5)
        assert rate(ticks) >= 0.9 * doubling(began + 0.1)
    assert min(tick.actors for tick in consumer.ticks[-50:]) < 64


@settings(max_examples=20)
@given(high=st.integers(2, 200), load=st.integers(0, 300))
def test_actors_without_work_are_removed(high: int, load: int) -> None:
    governor = Governor(1, high)
    consumer = Consumer(governor, waits(0.01))
    consumer.run(6)
    calm = Consumer(governor, waits(0.01), arrivals=lambda at: load)
    calm._now = consumer.ticks[-1].at
    calm.run(60)
    assert governor.decision.actors <= max(4, 4 * load * 0.01)


def test_a_short_lull_removes_no_actor() -> None:
    governor = Governor(1, 64)
    consumer = Consumer(governor, waits(0.01))
    consumer.run(8)
    actors, now = governor.decision.actors, consumer.ticks[-1].at
    assert actors > 32
    for _ in range(10):
        for _ in range(int(LULL / INTERVAL) // 2):
            now += INTERVAL
            governor.decide(now, Sample(0, 0, 0, 0))
        now += INTERVAL
        governor.decide(now, Sample(500, actors, 0, 0))
    assert governor.decision.actors == actors


@settings(max_examples=20)
@given(keys=st.integers(1, 40))
def test_there_are_never_more_than_there_are_lanes_for(keys: int) -> None:
    consumer = Consumer(Governor(1, 64), waits(0.01), keys=keys)
    assert max(tick.actors for tick in consumer.run(20)) <= keys


def test_without_memory_to_spare_there_are_no_more_and_soon_fewer() -> None:
    consumer = Consumer(Governor(2, 64), waits(0.01))
    consumer.run(1)
    before = consumer.governor.decision.actors
    assert 2 < before < 64
    assert max(tick.actors for tick in consumer.run(10, memory=STOP_MEMORY)) <= before
    assert any("80% of memory in use" in decision.reason.text for decision in consumer.governor.history)
    assert consumer.run(5, memory=0.95)[-1].actors == 2
    consumer.run(10, memory=0.5)
    assert rate(consumer.run(5, memory=0.5)) >= 0.9 * 64 / 0.01


def test_connections_bound_the_number_of_actors() -> None:
    consumer = Consumer(Governor(1, 64), waits(0.01))
    assert max(tick.actors for tick in consumer.run(20, most=7)) == 7


def test_with_batches_a_round_is_one_batch_for_each_actor() -> None:
    governor, now = Governor(1, 8), 0.0
    for _ in range(60):
        now += INTERVAL
        actors = governor.decision.actors
        governor.decide(now, Sample(actors * 100, actors, 1000, 1000, calls=actors))
    assert governor.decision.actors == 8
    assert governor.decision.latency == pytest.approx(INTERVAL, rel=0.05)


def test_samples_are_ignored_while_consumers_of_higher_priority_run() -> None:
    consumer = Consumer(Governor(1, 64), waits(0.01))
    consumer.run(8)
    actors, now = consumer.governor.decision.actors, consumer.ticks[-1].at
    for _ in range(100):
        consumer.governor.pause()
    consumer.governor.decide(now + 10, Sample(1, 1, 1000, 1000))
    assert consumer.governor.decision.actors == actors


def test_each_decision_has_its_measurements() -> None:
    consumer = Consumer(Governor(1, 64), chokes(0.05, 20))
    consumer.run(30)
    history = list(consumer.governor.history)
    assert all(earlier.at <= later.at for earlier, later in itertools.pairwise(history))
    assert any(decision.reason.text.endswith(" more did not pay") for decision in history)
    assert history[-1].rate == pytest.approx(380, rel=0.15)
    assert history[-1].latency == pytest.approx(0.05, rel=0.4)
