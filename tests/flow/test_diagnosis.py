"""Why a consumer is behind: one sentence for each cause, with the figures."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args

import pytest

from headrace.flow.diagnosis import FEWEST, LATE, WINDOW, Situation, diagnose
from headrace.model.records import ConsumerAtWork, Percentiles
from headrace.model.watching.diagnosis import Cause, Waiting
from headrace.model.watching.reasons import OUTRANKED, RATE_LIMITED


def report(**facts: Any) -> ConsumerAtWork:
    return ConsumerAtWork(**{"stream": "orders", "name": "ship", "actors": 8, "busy": 2, **facts})


def late(**facts: Any) -> Situation:
    """A consumer with messages that wait for a minute."""
    figures: dict[str, Any] = {"lag": 1_000, "age": 60.0, "owners": 1, "publish_rate": 80.0, "finish_rate": 50.0}
    return Situation(**{"reports": [report()], **figures, **facts})


FAILED = Waiting(
    examined=100, retries=40, error="NoStock: 3 of 4.\nin ship.py", error_type="shop.NoStock", failed_by="mill:7"
)
FIGURES = "80/s are published, and 50/s finished."
ACTORS = "2 of 8 actors are busy."
OPEN = report(breaker="open", breaker_left=12.0, breaker_failures=20, breaker_reason="ConnectError: refused.")
SLOW = report(busy=7, reason="2 more did not pay", durations=Percentiles(0.0951, 0.2, 1.5))
PACED = report(reason=f"{RATE_LIMITED}50/s")

CASES: dict[str, tuple[Situation, Cause, str]] = {
    "a pause": (late(paused=True), "paused", f"It is paused until a user resumes it. {FIGURES}"),
    "a pause that ends": (
        late(paused=True, paused_until=datetime(2030, 1, 1, 12, tzinfo=UTC)), "paused", f"It is paused until 2030-01-01 12:00:00 UTC. {FIGURES}",
    ),
    "an open breaker": (
        late(reports=[OPEN]), "breaker",
        f"Its circuit breaker is open after 20 failures in a row, the last of them: ConnectError: refused. It tries one message in 12 s. {FIGURES}",
    ),
    "a breaker that is open in one process": (
        late(reports=[report(breaker="closed"), report(breaker="half-open")]), "breaker",
        f"Its circuit breaker is open in 1 of 2 processes. It is trying one message now. {FIGURES}",
    ),
    "blocked keys": (
        late(lag=0, blocked=7), "blocked", f"7 messages wait behind dead letters that block their keys. Redrive or purge these. {FIGURES} {ACTORS}",
    ),
    "blocked keys, and a slow handler": (
        late(blocked=1, reports=[report(busy=8)]), "blocked",
        "1 message waits behind dead letters that block their keys. Redrive or purge these. Nearly all of its actors are busy."
        f" {FIGURES} 8 of 8 actors are busy.",
    ),
    "no process": (
        late(reports=[], owners=0, finish_rate=0.0), "unattended",
        "1,000 messages wait, and no process works on them. 80/s are published, and 0/s finished.",
    ),
    "no process, and only retries": (
        Situation(lag=0, parked=1), "unattended", "1 message waits, and no process works on them.",
    ),
    "a blocked event loop": (
        late(event_loop="mill:7"), "event_loop",
        f"A handler blocks the event loop of mill:7, so nothing else runs there. {FIGURES}",
    ),
    "failures": (
        late(lag=0, parked=40, waiting=FAILED), "failing",
        f"Its messages fail: 40 messages wait for a retry. The last error in mill:7: NoStock: 3 of 4. {FIGURES} {ACTORS}",
    ),
    "so many failures that nothing more is read": (
        late(lag=10**6, parked=WINDOW, waiting=FAILED), "failing",
        f"Its messages fail: 40 messages wait for a retry. The last error in mill:7: NoStock: 3 of 4. {FIGURES} {ACTORS}",
    ),
    "a rate limit": (
        late(reports=[PACED]), "rate_limit", f"Its rate limit of 50/s holds it back. {FIGURES} {ACTORS}",
    ),
    "priority": (
        late(reports=[report(reason=OUTRANKED)]), "priority",
        f"Consumers of higher priority in its process go first. {FIGURES} {ACTORS}",
    ),
    "one key": (
        late(waiting=Waiting(examined=1000, key="orders.us.7", of_key=820)), "key",
        f"82% of what waits has the key orders.us.7, whose messages are handled in order. {FIGURES} {ACTORS}",
    ),
    "busy actors": (
        late(reports=[SLOW], waiting=FAILED), "busy",
        f"Nearly all of its actors are busy. {FIGURES} 7 of 8 actors are busy (2 more did not pay)."
        " A message takes 95.1 ms (median), 200 ms (95 %), 1.5 s (99 %). 40 messages wait for a retry. The last error in mill:7: NoStock: 3 of 4.",
    ),
    "an outage that is over": (
        late(finish_rate=580.0), "catching_up",
        f"It is catching up, in about 2 s at this rate. 80/s are published, and 580/s finished. {ACTORS}",
    ),
    "HTTP clients": (
        late(reports=[], in_flight=12), "other", f"1,000 messages wait. The clients that receive them hold 12 others. {FIGURES}",
    ),
    "something else": (late(), "other", f"1,000 messages wait. {FIGURES} {ACTORS}"),
    "filters": (
        late(lag=0, unmatched=10_000, waiting=Waiting(holes=1)), "filters",
        "None of the last 10,000 messages of its stream matches its filters.",
    ),
    "an open transaction": (
        late(lag=0, waiting=Waiting(holes=1)), "open_transaction",
        "1 range of seqs belongs to transactions of publishers that have not ended, or were rolled back lately.",
    ),
    "nothing": (late(lag=0), "", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_cause_has_a_sentence_with_its_figures(case: str) -> None:
    situation, cause, text = CASES[case]
    found = diagnose(situation)
    assert (found.cause, found.text) == (cause, text)


def test_every_cause_is_tried() -> None:
    assert {cause for _, cause, _ in CASES.values()} == set(get_args(Cause))


def test_a_consumer_whose_messages_are_young_is_not_behind() -> None:
    assert diagnose(late(age=LATE - 0.1, reports=[SLOW])).cause == ""
    assert diagnose(late(age=LATE, reports=[SLOW])).cause == "busy"
    assert diagnose(late(age=0.0, reports=[], owners=0, finish_rate=None)).cause == "unattended"


def test_a_key_is_the_cause_only_while_actors_are_idle_and_enough_messages_were_examined() -> None:
    hot = Waiting(examined=FEWEST, key="a", of_key=FEWEST // 2)
    assert diagnose(late(waiting=hot)).cause == "key"
    assert diagnose(late(waiting=hot, reports=[SLOW])).cause == "busy"
    assert diagnose(late(waiting=Waiting(examined=FEWEST - 1, key="a", of_key=FEWEST - 1))).cause == "other"
    assert diagnose(late(waiting=Waiting(examined=100, key="a", of_key=49))).cause == "other"


def test_messages_in_the_lanes_of_a_process_wait_too() -> None:
    held = late(lag=0, in_flight=500, reports=[report(waiting=499)], waiting=Waiting(examined=500, key="a", of_key=500))
    assert diagnose(held).cause == "key"
