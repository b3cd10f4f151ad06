"""Tests of the ledger of HTTP clients. It must notice every broken promise."""

from __future__ import annotations

import time

import pytest

from tests.torture.http_ledger import Delivery, HttpLedger


@pytest.fixture
def ledger() -> HttpLedger:
    """A ledger after two messages of a key were sent."""
    ledger = HttpLedger(ack_wait=10.0, slack=5.0)
    ledger.published = {("k", 0): True, ("k", 1): True}
    return ledger


def come(ledger: HttpLedger, number: int, attempt: int = 1, ago: float = 0.0) -> Delivery:
    """A delivery to a client that asked for it so many seconds ago."""
    delivery = ledger.came(("k", number), 7 + number, f"{number}-{attempt}", attempt, time.monotonic() - ago)
    delivery.came_at -= ago
    return delivery


def ack(ledger: HttpLedger, *deliveries: Delivery, stale: set[str] | None = frozenset()) -> None:  # type: ignore[assignment]
    ledger.acking(list(deliveries))
    ledger.answered(list(deliveries), stale)


def test_what_comes_in_order_and_is_acked_once_is_right(ledger: HttpLedger) -> None:
    ack(ledger, come(ledger, 0))
    ack(ledger, come(ledger, 1))
    ledger.judge()
    assert ledger.again() == 0


def test_a_message_that_overtakes_is_seen(ledger: HttpLedger) -> None:
    with pytest.raises(AssertionError, match="overtook"):
        come(ledger, 1)


def test_a_stale_ack_lets_nothing_pass(ledger: HttpLedger) -> None:
    ack(ledger, come(ledger, 0), stale={"0-1"})
    with pytest.raises(AssertionError, match="overtook"):
        come(ledger, 1)


def test_an_ack_without_an_answer_lets_the_next_one_pass(ledger: HttpLedger) -> None:
    ack(ledger, come(ledger, 0), stale=None)
    come(ledger, 1)


def test_a_message_that_comes_again_too_early_is_seen(ledger: HttpLedger) -> None:
    come(ledger, 0, ago=9)
    with pytest.raises(AssertionError, match="before its visibility timeout"):
        come(ledger, 0, attempt=2)


def test_the_same_attempt_twice_is_seen(ledger: HttpLedger) -> None:
    come(ledger, 0, ago=11)
    with pytest.raises(AssertionError, match="came twice"):
        come(ledger, 0)


def test_a_message_that_comes_again_after_its_ack_is_seen(ledger: HttpLedger) -> None:
    ack(ledger, come(ledger, 0, ago=11))
    with pytest.raises(AssertionError, match="after its ack"):
        come(ledger, 0, attempt=2)


def test_a_message_that_is_acked_twice_is_seen(ledger: HttpLedger) -> None:
    delivery = come(ledger, 0)
    ack(ledger, delivery)
    with pytest.raises(AssertionError, match="acked twice"):
        ack(ledger, delivery)


def test_a_message_that_is_held_too_long_is_seen(ledger: HttpLedger) -> None:
    come(ledger, 0, ago=16)
    ack(ledger, come(ledger, 0, attempt=2))
    ack(ledger, come(ledger, 1))
    with pytest.raises(AssertionError, match="after its visibility timeout"):
        ledger.judge()


def test_attempts_that_no_client_read_take_their_time(ledger: HttpLedger) -> None:
    come(ledger, 0, ago=21)
    ack(ledger, come(ledger, 0, attempt=3))
    ack(ledger, come(ledger, 1))
    ledger.judge()


def test_what_never_came_or_was_never_acked_is_seen(ledger: HttpLedger) -> None:
    with pytest.raises(AssertionError, match="2 messages never came"):
        ledger.judge()
    ack(ledger, come(ledger, 0))
    come(ledger, 1)
    with pytest.raises(AssertionError, match="1 messages were never acked"):
        ledger.judge()
