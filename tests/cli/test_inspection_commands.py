"""`headrace stream search|journey`, exports, jobs, deliveries and push answers, on a database and on a server."""

from __future__ import annotations

import json
import time

import pytest

from tests.cli.conftest import BOTH_WAYS, Operator

pytestmark = BOTH_WAYS

REFUSED = [
    (66, "stream search nope", "'nope'"),
    (65, "stream search orders --where nope(1)", "ondition"),
    (64, "stream search orders --since x", "--since"),
    (66, "stream journey nope 1", "'nope'"),
    (64, "stream journey orders x", "SEQ"),
    (66, "consumer dead-letters export nope", "'nope'"),
    (64, "consumer dead-letters redrive orders picky --background --dry-run", "--dry-run"),
    (66, "job ls nope", "'nope'"),
    (66, "job info nope", "'nope'"),
    (66, "job cancel 6a7d0c56-3b8f-4a54-9f0e-1d9d2c7e5a10", "6a7d0c56"),
    (66, "source webhook deliveries nope", "'nope'"),
    (66, "consumer push nope", "'nope'"),
    (65, "consumer push orders picky", "push consumer"),
]


@pytest.fixture
def orders(operator: Operator) -> Operator:
    """The stream `orders` with five messages, and the consumer `picky`, which has rejected three of them."""
    operator.call("stream", "add", "orders")
    operator.call("consumer", "add", "orders", "picky", "--max-deliver", "1")
    operator.send("orders", *((f"orders.{n % 2}.{n}", {"n": n}) for n in range(5)))
    received = operator.json("consumer", "receive", "orders", "picky", "--batch-size", "3")
    operator.call("consumer", "nack", "orders", "picky", *(one["ack_id"] for one in received), "--error", "no")
    return operator


def test_what_is_wrong_is_said_in_one_sentence(orders: Operator) -> None:
    for code, words, part in REFUSED:
        assert part in orders.refused(code, *words.split())


def test_a_search_prints_what_matches_and_where_to_go_on(orders: Operator) -> None:
    found = orders.json("stream", "search", "orders", "--filter", "orders.0.>")
    assert [message["seq"] for message in found] == [5, 3, 1]
    ended = orders.call("stream", "search", "orders", "--where", "data.n >= 1", "--limit", "2", "--since", "1h")
    assert "orders.0.4" in ended.out
    assert "Continue with --before 4." in ended.err
    assert [one["seq"] for one in orders.json("stream", "search", "orders", "--before", "3")] == [2, 1]
    assert "No messages found." in orders.call("stream", "search", "orders", "--filter", "x").err


def test_a_key_has_a_history(orders: Operator) -> None:
    orders.send("orders", ("orders.0.0", {"n": 9}))
    assert [one["seq"] for one in orders.json("stream", "view", "orders", "--key", "orders.0.0")] == [1, 6]


def test_a_journey_shows_each_consumer(orders: Operator) -> None:
    found = orders.json("stream", "journey", "orders", "1")
    assert [(one["consumer"], one["state"], one["error"]) for one in found["consumers"]] == [
        ("picky", "dead_letter", "no")
    ]
    shown = orders.out("stream", "journey", "orders", "1")
    for words in ("orders.0.0", "picky", "dead_letter", "attempts are exhausted"):
        assert words in shown
    assert "waiting" in orders.out("stream", "journey", "orders", "5")
    assert "has no message 99" in orders.call("stream", "journey", "orders", "99", code=1).err


def test_dead_letters_are_exported_as_lines(orders: Operator) -> None:
    lines = orders.out("consumer", "dead-letters", "export", "orders", "picky").splitlines()
    letters = [json.loads(line) for line in lines]
    assert [(letter["seq"], letter["error"]) for letter in letters] == [(1, "no"), (2, "no"), (3, "no")]
    assert orders.json("consumer", "dead-letters", "ls", "orders", "picky")[0] == letters[0]
    some = orders.out("consumer", "dead-letters", "export", "picky", "--seq", "3", "--seq", "9")
    assert [json.loads(line)["seq"] for line in some.splitlines()] == [3]


def test_a_job_redrives_in_the_background(orders: Operator) -> None:
    ended = orders.call("consumer", "dead-letters", "redrive", "orders", "picky", "--seq", "2", "--background")
    assert "redrives 1 dead letter." in ended.out
    [job] = orders.json("job", "ls", "orders")
    assert (job["kind"], job["consumer"], job["total"]) == ("redrive", "picky", 1)
    assert "redrive" in orders.out("job", "ls")
    if not orders.over_http:  # no server works on it
        assert job["state"] == "waiting"
        assert "cancelled" in orders.out("job", "cancel", job["id"])
        assert "cancelled" in orders.out("job", "info", job["id"])
        return
    until = time.monotonic() + 30
    while orders.json("job", "info", job["id"])["state"] != "done" and time.monotonic() < until:
        pass
    assert [letter["seq"] for letter in orders.json("consumer", "dead-letters", "ls", "picky")] == [1, 3]


def test_a_purge_in_the_background_is_confirmed(orders: Operator) -> None:
    orders.refused(64, "consumer", "dead-letters", "purge", "orders", "picky", "--background")
    ended = orders.call("consumer", "dead-letters", "purge", "orders", "picky", "--background", "--yes")
    assert "purges 3 dead letters." in ended.out


def test_a_seek_that_is_only_tried_says_what_it_would_do(orders: Operator) -> None:
    found = orders.json("consumer", "seek", "orders", "picky", "start", "--dry-run")
    assert found == {
        "stream": "orders", "consumer": "picky", "dry_run": True, "from": 3, "to": 0, "again": 3, "again_exact": True, "skipped": 0,
        "skipped_exact": True, "in_flight": 0,
    }  # fmt: skip
    assert "2 messages" in orders.out("consumer", "seek", "picky", "end", "--dry-run")


def test_deliveries_and_push_answers_are_listed(orders: Operator) -> None:
    orders.call("source", "webhook", "add", "hook", "--stream", "orders")
    assert "No delivery is recorded." in orders.call("source", "webhook", "deliveries", "hook").err
    orders.call("consumer", "add", "orders", "pushed", "--filter", "none", "--push-url", "https://shop.example/hook")
    shown = orders.call("consumer", "push", "orders", "pushed")
    assert "https://shop.example/hook" in shown.out
    assert "No answer is recorded." in shown.err
    assert orders.json("consumer", "push", "orders", "pushed")["recent"] == []
