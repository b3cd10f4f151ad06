"""A consumer's rate limit on the command line."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Operator


@pytest.fixture
def orders(operator: Operator) -> Operator:
    """The stream `orders`, with twenty messages."""
    operator.call("stream", "add", "orders")
    operator.send("orders", *((f"k.{n}", n) for n in range(20)))
    return operator


def rates(operator: Operator) -> tuple[Any, Any]:
    settings = operator.json("consumer", "info", "orders", "ship")["settings"]
    return settings["rate_limit"], settings["rate_burst"]


@pytest.mark.parametrize(
    ("given", "rate"), [("100", 100), ("100/s", 100), ("2.5/s", 2.5), ("600/m", 10), ("1800/h", 0.5)]
)
def test_a_rate_is_so_many_in_a_time(orders: Operator, given: str, rate: float) -> None:
    orders.call("consumer", "add", "orders", "ship", "--rate-limit", given)
    assert rates(orders) == (rate, None)


def test_a_consumer_with_a_rate_gives_out_no_more_than_its_burst(orders: Operator) -> None:
    orders.call("consumer", "add", "orders", "ship", "--rate-limit", "1/h", "--rate-burst", "3")
    assert len(orders.json("consumer", "receive", "ship", "--batch-size", "10")) == 3
    assert orders.json("consumer", "receive", "ship", code=1) == []


def test_a_rate_is_edited_and_taken_away_with_its_burst(orders: Operator) -> None:
    orders.call("consumer", "add", "orders", "ship")
    assert "rate_limit" in orders.out("consumer", "edit", "ship", "--rate-limit", "10/s", "--rate-burst", "50")
    assert rates(orders) == (10, 50)
    orders.call("consumer", "edit", "ship", "--rate-burst", "none")
    assert rates(orders) == (10, None)
    orders.call("consumer", "edit", "ship", "--rate-burst", "5")
    orders.call("consumer", "edit", "ship", "--rate-limit", "none")
    assert rates(orders) == (None, None)


_REFUSED: list[tuple[int, str, str]] = [
    (64, "--rate-limit fast", "'100/s'"),
    (64, "--rate-limit 0/s", "'100/s'"),
    (64, "--rate-limit 10/s --rate-burst many", "--rate-burst"),
    (78, "--rate-limit 10/s --rate-burst 0", "`rate_burst` of the consumer 'ship' must be from 1"),
    (78, "--rate-burst 5", "needs a rate_limit"),
]


def test_rates_that_can_not_be_are_refused(orders: Operator) -> None:
    for code, words, expected in _REFUSED:
        assert expected in orders.refused(code, "consumer", "add", "orders", "ship", *words.split())
