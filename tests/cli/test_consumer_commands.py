"""`headrace consumer` on real Postgres."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from headrace import store
from headrace.model.records import ConsumerAtWork, WorkerFacts
from tests.cli.conftest import BOTH_WAYS, Operator

pytestmark = BOTH_WAYS

_ID = 48 * "A"
"""A string that looks like an ack id, but is none."""

REFUSED = [
    (66, "consumer info nope", "'nope'"),
    (66, "consumer info orders", "`orders ship`"),
    (66, "consumer info orders nope", "'nope'"),
    (66, "consumer info nope ship", "'nope'"),
    (64, "consumer info", "NAME"),
    (64, "consumer info a b c", "`orders ship`"),
    (66, "consumer ls nope", "'nope'"),
    (66, "consumer add nope ship", "'nope'"),
    (66, "consumer peek nope", "'nope'"),
    (66, "consumer receive nope", "'nope'"),
    (66, f"consumer ack nope {_ID}", "'nope'"),
    (66, f"consumer nack orders nope {_ID}", "'nope'"),
    (66, "consumer seek nope end", "'nope'"),
    (66, "consumer replay nope", "'nope'"),
    (66, "consumer pause nope", "'nope'"),
    (66, "consumer resume nope", "'nope'"),
    (66, "consumer blocked nope", "'nope'"),
    (66, "consumer edit nope --ack-wait 1m", "'nope'"),
    (66, "consumer rm nope --yes", "'nope'"),
    (66, "consumer dead-letters ls nope", "'nope'"),
    (66, "consumer dead-letters info nope 1", "'nope'"),
    (66, "consumer dead-letters redrive nope", "'nope'"),
    (66, "consumer dead-letters purge nope --yes", "'nope'"),
    (64, "consumer ack ship", "ack ids"),
    (64, f"consumer ack {_ID}", "ack ids"),
    (64, f"consumer ack a b c {_ID}", "ack ids"),
    (64, "consumer ack ship x", "ack ids"),
    (65, f"consumer ack ship {_ID} x", "ack id"),
    (64, "consumer seek ship", "new position"),
    (64, "consumer seek ship yesterday", "an hour ago"),
    (64, "consumer seek ship 1.5", "an hour ago"),
    (65, "consumer seek ship 1000", "1000"),
    (65, "consumer seek ship 2999-01-01T00:00:00Z", "2999"),
    (64, "consumer receive ship --wait x", "--wait"),
    (65, "consumer receive ship --wait 2h", "wait"),
    (64, "consumer receive ship --batch-size 0", "--batch-size"),
    (64, "consumer pause ship --until 1h --for 1h", "--for"),
    (64, "consumer pause ship --for x", "--for"),
    (65, "consumer pause ship --until 2020-01-01T00:00:00Z", "passed"),
    (64, "consumer edit ship", "nothing to change"),
    (64, "consumer edit ship --on-exhausted explode", "--on-exhausted"),
    (64, "consumer edit ship --backoff 1s,,2s", "--backoff"),
    (78, "consumer edit ship --max-deliver 0", "max_deliver"),
    (65, "consumer edit ship --filter a.>.b", "a.>.b"),
    (65, "consumer edit ship --where data.x~1", "ondition"),
    (65, "consumer add orders x --where nope(1)", "ondition"),
    (78, "consumer add orders x --deliver-policy by_start_seq", "start_seq"),
    (78, "consumer add orders x --deliver-policy new --start-seq 2", "start_seq"),
    (65, "consumer dead-letters info ship 5", "5"),
    (64, "consumer dead-letters info ship x", "seq"),
    (64, "consumer dead-letters info ship", "seq"),
    (64, "consumer replay ship --from x", "--from"),
    (65, "consumer replay ship --filter a..b", "a..b"),
]


@pytest.fixture
def orders(operator: Operator) -> Operator:
    """The stream `orders` with five messages and the consumer `ship`, and `parcels` without consumers."""
    operator.call("stream", "add", "orders")
    operator.call("stream", "add", "parcels")
    operator.send(
        "orders",
        *((f"orders.{place}.{n}", {"total": n * 100}) for n, place in enumerate(["us", "eu", "us", "eu", "us"], 1)),
    )
    operator.call("consumer", "add", "orders", "ship")
    return operator


def _info(operator: Operator, *words: str) -> Any:
    return operator.json("consumer", "info", *(words or ("orders", "ship")))


def _receive(operator: Operator, *words: object, code: int = 0) -> list[Any]:
    found: list[Any] = operator.json("consumer", "receive", "orders", "ship", *words, code=code)
    return found


# --- add, ls, info, edit, rm


def test_a_consumer_with_every_setting(orders: Operator) -> None:
    output = orders.out(
        "consumer", "add", "orders", "us_orders", "--filter", "orders.us.>", "--filter", "orders.ca.>",
        "--where", "data.total > 100", "--ack-wait", "1m", "--max-ack-pending", "10", "--max-deliver", "3",
        "--max-waiting", "5", "--backoff", "1s,10s,1m", "--on-exhausted", "block", "--unordered",
        "--deliver-policy", "by_start_seq", "--start-seq", "2",
    )  # fmt: skip
    assert "Created the consumer 'us_orders' of 'orders'. Pending: 2 messages." in output
    settings = _info(orders, "orders", "us_orders")["settings"]
    assert {
        "filters": ["orders.us.>", "orders.ca.>"], "ack_wait": 60, "max_ack_pending": 10, "max_deliver": 3,
        "max_waiting": 5, "on_exhausted": "block", "ordered": False, "deliver_policy": "by_start_seq", "start_seq": 2,
    }.items() <= settings.items()  # fmt: skip
    assert "total" in settings["where"]
    assert settings["backoff"]["delays"] == [1, 10, 60]
    shown = orders.out("consumer", "info", "us_orders")
    for words in ("us_orders of orders", "2 messages", "orders.us.>, orders.ca.>", "1m", "delays 1s, 10s, 1m", "total"):
        assert words in shown


def test_the_example_of_old_works(orders: Operator) -> None:
    orders.call("consumer", "add", "orders", "us_orders", "--filter=orders.us.>", "--defaults")
    assert orders.json("consumer", "receive", "us_orders")[0]["key"] == "orders.us.1"


@pytest.mark.parametrize(
    ("words", "seqs"),
    [
        ("--deliver-policy all", [1, 2, 3, 4, 5]),
        ("--deliver-policy new", []),
        ("--start-seq 4", [4, 5]),
        ("--start-time 1h", [1, 2, 3, 4, 5]),
        ("--deliver-policy by_start_time --start-time 2020-01-01T00:00:00Z", [1, 2, 3, 4, 5]),
        ("--deliver-policy last_per_key --filter orders.*.5", [5]),
    ],
)
def test_the_start_position_of_a_consumer(orders: Operator, words: str, seqs: list[int]) -> None:
    orders.call("consumer", "add", "orders", "other", *words.split())
    received = orders.json("consumer", "receive", "other", "--batch-size", "10", code=0 if seqs else 1)
    assert [one["seq"] for one in received] == seqs


def test_adding_a_consumer_again_is_fine_as_long_as_the_settings_are_the_same(orders: Operator) -> None:
    assert "Unchanged: the consumer" in orders.out("consumer", "add", "orders", "ship")
    assert "ack_wait" in orders.refused(65, "consumer", "add", "orders", "ship", "--ack-wait", "1m")


def test_an_edit_changes_only_what_is_given(orders: Operator) -> None:
    orders.call("consumer", "edit", "ship", "--where", "data.total > 100", "--max-deliver", "3")
    output = orders.out("consumer", "edit", "orders", "ship", "--ack-wait", "1m", "--backoff", "5s")
    assert "ack_wait" in output
    assert "max_deliver" not in output
    settings = _info(orders)["settings"]
    assert (settings["ack_wait"], settings["max_deliver"], settings["backoff"]["delays"]) == (60, 3, [5])
    settings = orders.json("consumer", "edit", "ship", "--where", "none", "--backoff", "default")["settings"]
    assert settings.get("where") is None
    assert not settings["backoff"].get("delays")
    assert settings["max_deliver"] == 3


def test_lists_for_people_and_programs(orders: Operator) -> None:
    orders.call("consumer", "add", "parcels", "audit")
    orders.call("consumer", "receive", "ship")
    orders.call("consumer", "pause", "audit")
    output = orders.out("consumer", "ls").splitlines()
    assert [line.split()[:4] for line in output[1:]] == [["orders", "ship", "4", "1"], ["parcels", "audit", "0", "0"]]
    assert output[2].endswith("paused until resumed")
    assert [one["name"] for one in orders.json("consumer", "ls", "parcels")] == ["audit"]
    assert orders.json("stream", "info", "parcels")["consumers"][0]["name"] == "audit"


def test_deleting_needs_a_yes_and_force_while_it_is_at_work(orders: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/null") as no_terminal:
        monkeypatch.setattr("sys.stdin", no_terminal)
        assert "--yes" in orders.refused(64, "consumer", "rm", "ship")
    orders.call("consumer", "receive", "ship")
    orders.refused(75, "consumer", "rm", "ship", "--yes")
    assert orders.json("consumer", "rm", "ship", "--yes", "--force") == {"deleted": "ship", "stream": "orders"}
    assert orders.json("consumer", "ls") == []
    orders.call("consumer", "add", "orders", "ship")
    assert "Deleted the consumer 'ship' of 'orders'" in orders.out("consumer", "rm", "orders", "ship", "-y")


# --- consumer lookup


def test_a_name_alone_will_do_where_it_is_the_only_one(orders: Operator) -> None:
    assert _info(orders, "ship")["stream"] == "orders"
    orders.call("consumer", "add", "parcels", "ship")
    output = orders.refused(64, "consumer", "info", "ship")
    assert "`orders ship` or `parcels ship`" in output
    assert _info(orders, "parcels", "ship")["stream"] == "parcels"


def test_invalid_input_is_refused_in_one_sentence_and_nothing_is_done(orders: Operator) -> None:
    before = orders.json("consumer", "ls")
    for code, words, expected in REFUSED:
        assert expected in orders.refused(code, *words.split(" ")), words
    assert orders.json("consumer", "ls") == before


# --- receive, ack, nack, peek


def test_receive_and_ack_by_hand(orders: Operator) -> None:
    first, second = _receive(orders, "--batch-size", "2")
    assert (first["seq"], first["key"], first["data"], first["attempt"]) == (1, "orders.us.1", {"total": 100}, 1)
    assert "Acked: 1 message." in orders.out("consumer", "ack", "ship", first["ack_id"])
    assert orders.json("consumer", "ack", "orders", "ship", second["ack_id"]) == {
        "acked": [second["ack_id"]],
        "stale": [],
    }
    assert (_info(orders)["num_ack_pending"], _info(orders)["position"]) == (0, 2)


def test_an_ack_that_comes_too_late_says_so(orders: Operator) -> None:
    (one,) = _receive(orders)
    orders.call("consumer", "ack", "ship", one["ack_id"])
    ended = orders.call("consumer", "ack", "ship", one["ack_id"], code=1)
    assert ended.out == ""
    assert one["ack_id"] in ended.err
    assert orders.json("consumer", "nack", "ship", one["ack_id"], code=1) == {"nacked": [], "stale": [one["ack_id"]]}


def test_a_nack_brings_the_message_again(orders: Operator) -> None:
    (one,) = _receive(orders)
    assert "Nacked: 1 message." in orders.out("consumer", "nack", "ship", one["ack_id"])
    (again,) = _receive(orders)
    assert (again["seq"], again["attempt"]) == (one["seq"], 2)
    orders.call("consumer", "nack", "orders", "ship", again["ack_id"], "--delay", "1h", "--error", "no stock")
    assert _receive(orders)[0]["seq"] == 2
    assert _info(orders)["parked"] == 1


def test_nothing_to_receive_is_an_exit_code(orders: Operator) -> None:
    assert len(_receive(orders, "--batch-size", "100", "--ack")) == 5
    ended = orders.call("consumer", "receive", "ship", code=1)
    assert ended.out == ""
    assert "no messages to receive" in ended.err
    assert _receive(orders, "--wait", "100ms", code=1) == []


def test_a_table_of_what_was_received(orders: Operator) -> None:
    output = orders.out("consumer", "receive", "ship", "--batch-size", "2", "--ack").splitlines()
    assert output[0].split() == ["ack", "id", "seq", "attempt", "key", "data"]
    assert output[1].split()[1:] == ["1", "1", "orders.us.1", '{"total":100}']
    assert _info(orders)["num_ack_pending"] == 0


def test_peek_touches_nothing(orders: Operator) -> None:
    one, _ = _receive(orders, "--batch-size", "2")
    orders.call("consumer", "nack", "ship", one["ack_id"], "--delay", "1h", "--error", "no stock")
    before = _info(orders)
    found = orders.json("consumer", "peek", "ship", "--limit", "2")
    assert [(m["state"], m["seq"]) for m in found] == [("in_flight", 2), ("parked", 1), ("next", 3), ("next", 4)]
    output = orders.out("consumer", "peek", "orders", "ship")
    assert "in flight" in output
    assert "orders.us.5" in output
    assert next(line for line in output.splitlines() if line.startswith("parked")).endswith("no stock")
    assert "no stock" in orders.out("stream", "journey", "orders", "1")
    assert _info(orders) == before


def test_peek_at_nothing(orders: Operator) -> None:
    orders.call("consumer", "seek", "ship", "end")
    assert orders.json("consumer", "peek", "ship") == []
    assert orders.out("consumer", "peek", "ship") == ""


# --- seek, replay, pause, resume


def test_seek_back_and_forward(orders: Operator) -> None:
    assert "continues after seq" in orders.out("consumer", "seek", "orders", "ship", "end")
    assert _receive(orders, code=1) == []
    assert orders.json("consumer", "seek", "ship", "3") == {"stream": "orders", "consumer": "ship", "position": 2}
    assert [one["seq"] for one in _receive(orders, "--batch-size", "10")] == [3, 4, 5]
    orders.call("consumer", "seek", "ship", "start")
    assert _receive(orders)[0]["seq"] == 1
    orders.call("consumer", "seek", "ship", "1h")
    assert _receive(orders)[0]["seq"] == 1


def test_a_seek_that_is_only_tried(orders: Operator) -> None:
    orders.call("consumer", "edit", "ship", "--filter", "orders.us.>", "--where", "data.total > 100")
    orders.call("consumer", "seek", "ship", "end")
    for to, again in (("start", 2), ("4", 1), ("1h", 2), ("end", 0)):
        assert orders.json("consumer", "seek", "ship", to, "--dry-run")["again"] == again
    assert "would continue after seq 0" in orders.out("consumer", "seek", "ship", "start", "--dry-run")
    assert _receive(orders, code=1) == []


def test_a_time_without_a_zone_is_said_to_be_utc(orders: Operator) -> None:
    ended = orders.call("consumer", "seek", "ship", "2020-01-01 12:00")
    assert "2020-01-01T12:00:00Z" in ended.err
    assert "UTC" not in ended.out


def test_replay_what_matches(orders: Operator) -> None:
    assert len(_receive(orders, "--batch-size", "10", "--ack")) == 5
    words = ("consumer", "replay", "ship", "--filter", "orders.us.>", "--where", "data.total > 100")
    assert orders.json(*words, "--dry-run") == {"replayed": 2, "dry_run": True}
    assert "To be replayed: 2 messages." in orders.out(*words, "--dry-run")
    assert _receive(orders, code=1) == []
    assert "Replayed: 2 messages." in orders.out(*words)
    assert _info(orders)["replaying"] == 2
    assert [one["seq"] for one in _receive(orders, "--batch-size", "10", "--ack")] == [3, 5]
    assert orders.json("consumer", "replay", "orders", "ship", "--from", "2", "--to", "3") == {
        "replayed": 2,
        "dry_run": False,
    }


def test_pause_and_resume(orders: Operator) -> None:
    assert "paused until resumed" in orders.out("consumer", "pause", "ship")
    assert _receive(orders, code=1) == []
    assert "until resumed" in orders.out("consumer", "info", "ship")
    assert "is resumed" in orders.out("consumer", "resume", "ship")
    assert orders.json("consumer", "pause", "ship", "--for", "10m")["paused_until"] is not None
    assert (
        orders.json("consumer", "pause", "ship", "--until", "2099-01-01T00:00:00Z")["paused_until"]
        == "2099-01-01T00:00:00Z"
    )
    assert _info(orders)["paused_until"] == "2099-01-01T00:00:00Z"
    assert orders.json("consumer", "resume", "orders", "ship")["paused_until"] is None
    assert _receive(orders)[0]["seq"] == 1


# --- blocked keys and dead letters


@pytest.fixture
def dead(orders: Operator) -> Operator:
    """The consumer `picky`, which gave up on all five messages at the first attempt, and blocks their keys."""
    orders.call("consumer", "add", "orders", "picky", "--max-deliver", "1", "--on-exhausted", "block")
    received = orders.json("consumer", "receive", "picky", "--batch-size", "10")
    orders.call("consumer", "nack", "picky", *(one["ack_id"] for one in received), "--error", "no\x1b[31m stock")
    orders.send("orders", ("orders.us.1", {"total": 600}))
    orders.call("consumer", "receive", "picky", code=1)
    return orders


def test_blocked_keys(dead: Operator) -> None:
    found = dead.json("consumer", "blocked", "picky")
    assert [(one["key"], one["seq"], one["waiting"]) for one in found if one["seq"] in (1, 3)] == [
        ("orders.us.1", 1, 1), ("orders.us.3", 3, 0),
    ]  # fmt: skip
    output = dead.out("consumer", "blocked", "orders", "picky")
    assert r"no\x1b[31m stock" in output
    assert "\x1b" not in output
    assert dead.json("consumer", "blocked", "ship") == []
    assert dead.out("consumer", "blocked", "ship") == ""


def test_dead_letters_are_listed_page_by_page(dead: Operator) -> None:
    words = ("consumer", "dead-letters", "ls", "picky")
    assert [one["seq"] for one in dead.json(*words)] == [1, 2, 3, 4, 5]
    assert [one["seq"] for one in dead.json(*words, "--filter", "orders.eu.>", "--where", "data.total > 200")] == [4]
    ended = dead.call(*words, "--limit", "2", "--above", "1")
    assert [line.split()[0] for line in ended.out.splitlines()[1:]] == ["2", "3"]
    assert "--above 3" in ended.err
    assert "\x1b" not in ended.out
    assert dead.out("consumer", "dead-letters", "ls", "ship") == ""


def test_dead_letters_are_counted_listed_and_redriven_by_what_they_have_in_common(dead: Operator) -> None:
    words = ("consumer", "dead-letters", "ls", "picky")
    (group,) = dead.json(*words, "--by", "error")
    assert (group["value"], group["messages"], group["lowest"], group["highest"]) == ("no\x1b[31m stock", 5, 1, 5)
    ended = dead.call(*words, "--by", "key", "--limit", "2")
    assert [line.split()[0] for line in ended.out.splitlines()[1:]] == ["1", "1"]
    assert "the 2 largest groups" in ended.err
    assert dead.out(*words, "--by", "type").splitlines()[1].split()[-1] == "–"
    assert "\x1b" not in dead.out(*words, "--by", "error")
    assert "--above" in dead.refused(64, *words, "--by", "type", "--above", "1")
    chosen = ("--error", "no\x1b[31m stock", "--error-type", "", "--reason", "exhausted", "--since", "1h")
    assert [one["seq"] for one in dead.json(*words, *chosen, "--key", "orders.us.3")] == [3]
    assert dead.json(*words, "--until", "1h") == dead.json(*words, "--error", "no stock") == []
    redrive = ("consumer", "dead-letters", "redrive", "picky", "--dry-run")
    assert dead.json(*redrive, *chosen)["redriven"] == 5
    assert dead.json(*redrive, "--error-type", "ValueError")["redriven"] == 0


async def _report_a_worker(dsn: str, *names: str) -> None:
    consumers = [ConsumerAtWork(stream="orders", name=name) for name in names]
    facts = WorkerFacts(
        host="h", pid=1, kind="run", version="1", started_at=datetime.now(UTC), consumers=consumers,
    )  # fmt: skip
    database = store.Database(dsn, max_connections=1)
    await database.open()
    await store.record_heartbeat(database, uuid4(), facts)
    await database.close()


def test_ls_counts_the_processes_that_work_on_a_consumer_idle_ones_too(orders: Operator) -> None:
    def workers() -> str:
        head, row = orders.out("consumer", "ls", "orders").splitlines()[:2]
        return row[: head.index("workers") + len("workers")].split()[-1]

    for _ in range(2):  # before the first look, since a server reads processes every two seconds
        asyncio.run(_report_a_worker(orders.dsn, "ship"))
    assert workers() == "2"


def test_one_dead_letter(dead: Operator) -> None:
    found = dead.json("consumer", "dead-letters", "info", "picky", "3")
    assert (found["key"], found["data"], found["attempts"]) == ("orders.us.3", {"total": 300}, 1)
    output = dead.out("consumer", "dead-letters", "info", "orders", "picky", "3")
    for words in ("orders.us.3", '"total": 300', r"no\x1b[31m stock", "blocks its key"):
        assert words in output


def test_redrive(dead: Operator) -> None:
    words = ("consumer", "dead-letters", "redrive", "picky")
    assert dead.json(*words, "--key", "orders.us.1", "--dry-run") == {"redriven": 1, "dry_run": True}
    assert "Redriven: 1 dead letter." in dead.out(*words, "--key", "orders.us.1")
    (one,) = dead.json("consumer", "receive", "picky", "--ack")
    assert (one["seq"], one["attempt"]) == (1, 1)
    assert dead.json("consumer", "receive", "picky", "--ack")[0]["seq"] == 6  # it waited behind the dead letter
    assert dead.json(*words, "--filter", "orders.eu.>", "--where", "data.total > 200")["redriven"] == 1
    assert dead.json(*words, "--seq", "2", "--seq", "3")["redriven"] == 2
    ended = dead.call(*words, "--seq", "2", code=1)
    assert "--seq" in ended.err
    assert dead.json(*words)["redriven"] == 1


def test_purge_needs_a_yes(dead: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("consumer", "dead-letters", "purge", "picky")
    with open("/dev/null") as no_terminal:
        monkeypatch.setattr("sys.stdin", no_terminal)
        assert "Delete 5 dead letters" in dead.refused(64, *words)
        assert dead.json(*words, "--dry-run") == {"purged": 5, "dry_run": True}
        assert "Purged: 1 dead letter." in dead.out(*words, "--seq", "1", "--yes")
        assert dead.json(*words, "--yes") == {"purged": 4, "dry_run": False}
        assert "Purged: 0" in dead.out(*words)
    assert dead.json("consumer", "receive", "picky")[0]["seq"] == 6
