"""The circuit breaker: it opens after failures in a row, probes with one message, and doubles its
pause while probes fail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.flow.circuit_breaker import CircuitBreaker
from headrace.model.handling import Breaker

WHY = "the warehouse is away"


def opened(failures: int = 3, pause: float = 5.0, longest: float = 300.0) -> CircuitBreaker:
    """A circuit that opened at 0."""
    circuit = CircuitBreaker(Breaker(failures=failures, pause=pause, longest=longest))
    assert [circuit.failed(0.0, WHY) for _ in range(failures)] == [False] * (failures - 1) + [True]
    return circuit


def test_failures_in_a_row_open_the_circuit_for_a_pause() -> None:
    circuit = opened(pause=5)
    assert circuit.state == "open"
    assert circuit.left(1.0) == 4.0
    assert circuit.left(9.0) == 0.0
    assert circuit.statistics(2.0) == {"state": "open", "probe_in": 3.0, "failures": 3, "reason": WHY}


def test_a_success_in_between_resets_the_count() -> None:
    circuit = CircuitBreaker(Breaker(failures=2))
    for _ in range(10):
        assert not circuit.failed(0.0, WHY)
        assert not circuit.succeeded()
    assert circuit.state == "closed"


def test_a_probe_that_succeeds_closes_the_circuit_and_resets_the_pause() -> None:
    circuit = opened(failures=1, pause=5)
    circuit.probe()
    circuit.failed(5.0, WHY)
    circuit.probe()
    assert circuit.state == "half-open"
    assert circuit.succeeded()
    assert circuit.statistics(0.0) == {"state": "closed", "probe_in": 0.0, "failures": 0, "reason": None}
    circuit.failed(100.0, WHY)
    assert circuit.left(100.0) == 5.0


def test_each_probe_that_fails_doubles_the_pause_up_to_the_longest() -> None:
    circuit = opened(pause=5, longest=60)
    pauses = []
    for _ in range(6):
        circuit.probe()
        assert circuit.failed(0.0, WHY)
        pauses.append(circuit.left(0.0))
    assert pauses == [10, 20, 40, 60, 60, 60]


def test_handlers_that_end_while_it_is_open_change_nothing() -> None:
    circuit = opened()
    assert not circuit.failed(1.0, "another")
    assert not circuit.succeeded()
    assert (circuit.state, circuit.reason, circuit.left(1.0)) == ("open", WHY, 4.0)


@given(
    failures=st.integers(1, 5),
    events=st.lists(st.sampled_from(["failed", "succeeded", "probe"]), max_size=60),
    step=st.floats(0, 100),
)
def test_it_is_open_only_by_failures_and_closed_only_by_success(failures: int, events: list[str], step: float) -> None:
    circuit, now, row = CircuitBreaker(Breaker(failures=failures, pause=1, longest=64)), 0.0, 0
    for event in events:
        now += step
        before = circuit.state
        match event:
            case "failed":
                opened = circuit.failed(now, WHY)
                row += 1
                assert opened == (before == "half-open" or (before == "closed" and row >= failures))
                assert circuit.state == ("open" if opened else before)
            case "succeeded":
                closed = circuit.succeeded()
                assert closed == (before == "half-open")
                assert circuit.state == ("open" if before == "open" else "closed")
                row = row if before == "open" else 0
            case "probe":
                circuit.probe()
                assert circuit.state == ("closed" if before == "closed" else "half-open")
        assert 1 <= circuit.pause <= 64
        assert 0 <= circuit.left(now) <= 64
        assert (circuit.left(now) > 0) == (circuit.state == "open" and circuit.until > now)
