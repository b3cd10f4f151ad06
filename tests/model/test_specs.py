"""Settings of consumers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.model.errors import ConfigurationError, InvalidFilter
from headrace.model.specs import Backoff, ConsumerSpec

positive = st.floats(0.001, 1e6)
chances = st.floats(0, 1)
attempts = st.integers(1, 1_000_000)
exponential = st.builds(Backoff, base=positive, factor=st.floats(1, 1e308), limit=positive, jitter=chances)


@given(exponential, attempts, chances)
def test_a_wait_is_never_negative_and_never_past_the_limit(backoff: Backoff, attempt: int, chance: float) -> None:
    assert 0 <= backoff.delay(attempt, chance) <= backoff.limit


@given(exponential, attempts, chances)
def test_waits_do_not_shrink_from_attempt_to_attempt(backoff: Backoff, attempt: int, chance: float) -> None:
    assert backoff.delay(attempt, chance) <= backoff.delay(attempt + 1, chance)


@given(exponential, attempts, chances)
def test_jitter_only_takes_away_its_share(backoff: Backoff, attempt: int, chance: float) -> None:
    full = backoff.delay(attempt, 0)
    assert full * (1 - backoff.jitter) - 1e-9 <= backoff.delay(attempt, chance) <= full


@given(st.floats(0.001, 10), st.floats(1, 10), st.integers(1, 5))
def test_waits_grow_by_the_factor_until_the_limit(base: float, factor: float, attempt: int) -> None:
    backoff = Backoff(base=base, factor=factor, limit=1e9, jitter=0)
    assume(base * factor**attempt < 1e9)
    assert backoff.delay(attempt + 1, 0) == pytest.approx(backoff.delay(attempt, 0) * factor)


@given(st.lists(positive, min_size=1), attempts, chances)
def test_listed_delays_are_taken_in_turn_and_the_last_one_repeats(
    delays: list[float], attempt: int, chance: float
) -> None:
    backoff = Backoff.of(delays)
    assert backoff.delay(attempt, chance) == (delays + [delays[-1]] * attempt)[attempt - 1]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, Backoff()),
        ("5s", Backoff(delays=(5.0,))),
        (5, Backoff(delays=(5.0,))),
        (["1s", "1m"], Backoff(delays=(1.0, 60.0))),
        (Backoff(base=2.0), Backoff(base=2.0)),
    ],
)
def test_a_backoff_is_written_in_many_ways(written: Any, expected: Backoff) -> None:
    assert Backoff.of(written) == expected


@pytest.mark.parametrize("written", [[], "soon", ["1s", "soon"], -1, object()])
def test_an_invalid_backoff_is_refused(written: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^backoff="):
        Backoff.of(written)


@given(exponential | st.lists(positive, min_size=1).map(Backoff.of))
def test_a_backoff_survives_its_json(backoff: Backoff) -> None:
    assert msgspec.json.decode(msgspec.json.encode(backoff), type=Backoff) == backoff


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": ""}, "A consumer needs a name."),
        ({"ack_wait": 0.05}, "`ack_wait` of the consumer 'ship' must be from 0.1 seconds to 1 day, not 0.05."),
        ({"ack_wait": 86401}, "`ack_wait`"),
        ({"ack_wait": float("nan")}, "`ack_wait`"),
        ({"max_ack_pending": 0}, "`max_ack_pending` of the consumer 'ship' must be from 1 to 1,000,000, not 0."),
        ({"max_ack_pending": 1_000_001}, "`max_ack_pending`"),
        ({"max_deliver": 0}, "`max_deliver` of the consumer 'ship'"),
        ({"max_deliver": -2}, "or -1 for no limit"),
        ({"on_exhausted": "explode"}, "must be 'dead_letter', 'block' or 'drop', not 'explode'."),
    ],
)
def test_an_impossible_setting_is_refused_in_a_sentence(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^(A consumer|`ack_wait|`max_|`on_)") as caught:
        ConsumerSpec(**{"stream": "orders", "name": "ship", **settings})
    assert said in str(caught.value)


def test_a_bad_filter_is_refused_with_the_spec() -> None:
    with pytest.raises(InvalidFilter, match="middle"):
        ConsumerSpec(stream="orders", name="ship", filters=("a.>.b",))
    with pytest.raises(InvalidFilter, match="needs a filter"):
        ConsumerSpec(stream="orders", name="ship", filters=())
