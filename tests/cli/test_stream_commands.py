"""`headrace stream` on real Postgres."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.conftest import BOTH_WAYS, Operator

pytestmark = BOTH_WAYS

REFUSED = [
    (78, "stream add x --retain-up-to 1d --retain-at-least 7d", "retain_at_least"),
    (78, "stream add x --retention interest --retain-up-to 1d", "retain_up_to"),
    (78, "stream add x --dedupe", "one_message_per_key"),
    (78, "stream edit orders --retain-at-least 7d --retain-up-to 1d", "retain_at_least"),
    (64, "stream add x --retain-up-to soon", "'7d'"),
    (64, "stream add x --max-storage huge", "'10GB'"),
    (64, "stream add x --retention forever", '"limits", "interest"'),
    (64, "stream edit orders", "nothing to change"),
    (64, "stream add", "NAME"),
    (65, "stream add Orders!", "Orders!"),
    (66, "stream edit nope --retain-up-to 1d", "'nope'"),
    (66, "stream rm nope --yes", "'nope'"),
    (66, "stream view nope", "'nope'"),
    (66, "stream send nope k 1", "'nope'"),
    (66, "stream republish nope parcels", "'nope'"),
    (66, "stream republish orders nope", "'nope'"),
    (64, "stream view orders --first 3 --last 3", "--last"),
    (64, "stream view orders --last 3 --from 2", "--last"),
    (64, "stream view orders --first 0", "--first"),
    (64, "stream view orders --from whenever", "1h"),
    (64, "stream view orders --from 0", "from 1"),
    (64, "stream republish orders parcels --from end", "--from"),
    (64, "stream republish orders parcels --to start", "--to"),
    (65, "stream view orders --filter a..b", "a..b"),
    (65, "stream view orders --where total>", "ondition"),
    (65, "stream view orders --where {", "JSON"),
    (65, "stream republish orders parcels --from 5 --to 2", "5"),
    (64, "stream erase orders", "seqs"),
    (64, "stream erase orders 0 --yes", "SEQ"),
    (66, "stream erase nope 1 --yes", "'nope'"),
    (66, "stream erased nope", "'nope'"),
    (65, "stream send orders k hello", "Quote a string"),
    (65, "stream send orders k {", "not JSON"),
    (65, 'stream send orders k "\\u0000"', "NUL"),
    (65, "stream send orders a..b 1", "a..b"),
    (65, "stream send orders k 1 --headers [1]", "JSON object"),
    (65, "stream send orders k 1 --headers x", "--headers"),
    (64, "stream send orders k 1 --delay 5m --at 2030-01-01", "--at"),
    (64, "stream send orders k 1 --delay x", "--delay"),
    (64, "stream send orders k 1 --expires-in x", "--expires-in"),
    (64, "stream send orders k 1 --expires-in 0s", "a millisecond"),
    (64, "stream send orders k 1 --delay 99999999999d", "--delay"),
    (64, "stream send orders k 1 --at x", "--at"),
]


@pytest.fixture
def orders(operator: Operator) -> Operator:
    """The stream `orders` with five messages, and an empty one, `parcels`."""
    operator.call("stream", "add", "orders")
    operator.call("stream", "add", "parcels")
    operator.send(
        "orders",
        *((f"orders.{place}.{n}", {"total": n * 100}) for n, place in enumerate(["us", "eu", "us", "eu", "us"], 1)),
    )
    return operator


# --- add, ls, info, edit, rm


def test_a_stream_with_every_setting(operator: Operator) -> None:
    output = operator.out(
        "stream", "add", "prices", "--retain-up-to", "7d", "--retain-at-least", "1d", "--max-storage", "10GB",
        "--one-message-per-key", "--dedupe", "--tombstones", "--dedupe-window", "5m",
    )  # fmt: skip
    assert "Created the stream 'prices'" in output
    stream = operator.json("stream", "info", "prices")["stream"]
    assert {
        "retention": "limits", "retain_up_to": 604800, "retain_at_least": 86400, "max_storage": 10**10,
        "one_message_per_key": True, "dedupe": True, "tombstones": True, "dedupe_window": 300,
    }.items() <= stream.items()  # fmt: skip
    shown = operator.out("stream", "info", "prices")
    for words in ("7d", "1d", "10 GB", "latest message of each key", "without unchanged messages", "remembered for 5m"):
        assert words in shown


def test_adding_a_stream_again_is_fine_as_long_as_the_settings_are_the_same(operator: Operator) -> None:
    added = operator.json("stream", "add", "orders", "--retention", "interest")
    assert (added["name"], added["retention"]) == ("orders", "interest")
    assert "Unchanged: the stream" in operator.out("stream", "add", "orders", "--retention", "interest")
    assert "retention" in operator.refused(65, "stream", "add", "orders")


def test_an_edit_changes_only_what_is_given(operator: Operator) -> None:
    operator.call("stream", "add", "orders", "--retain-up-to", "7d", "--max-storage", "10GB")
    changed = operator.json("stream", "edit", "orders", "--retain-up-to", "30d")
    assert (changed["retain_up_to"], changed["max_storage"]) == (30 * 86400, 10**10)
    changed = operator.json("stream", "edit", "orders", "--retain-up-to", "none", "--dedupe-window", "10m")
    assert (changed["retain_up_to"], changed["max_storage"], changed["dedupe_window"]) == (None, 10**10, 600)
    assert "up to 10 GB" in operator.out("stream", "edit", "orders", "--max-storage", "10GB")


def test_invalid_input_is_refused_in_one_sentence_and_nothing_is_done(orders: Operator) -> None:
    for code, words, expected in REFUSED:
        assert expected in orders.refused(code, *words.split(" ")), words
        assert [one["messages"] for one in orders.json("stream", "ls")] == [5, 0], words


def test_deleting_needs_a_yes(orders: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/null") as no_terminal:
        monkeypatch.setattr("sys.stdin", no_terminal)
        output = orders.refused(64, "stream", "rm", "orders")
        assert "5 messages" in output
        assert "--yes" in output
        assert "Deleted" in orders.out("stream", "rm", "orders", "--yes")
    assert orders.json("stream", "rm", "parcels", "-y") == {"deleted": "parcels"}
    assert orders.json("stream", "ls") == []


def test_a_stream_with_a_working_consumer_is_deleted_by_force_only(orders: Operator) -> None:
    orders.call("consumer", "add", "orders", "ship")
    orders.call("consumer", "receive", "ship")
    assert "ship" in orders.refused(75, "stream", "rm", "orders", "--yes")
    assert "Deleted" in orders.out("stream", "rm", "orders", "--yes", "--force")


# --- view


def _seqs(operator: Operator, *words: str) -> list[int]:
    return [one["seq"] for one in operator.json("stream", "view", "orders", *words)]


def test_the_first_and_the_last(orders: Operator) -> None:
    assert _seqs(orders) == [1, 2, 3, 4, 5]
    assert _seqs(orders, "--last", "2") == [4, 5]
    assert _seqs(orders, "--first", "2") == [1, 2]
    assert _seqs(orders, "--from", "4") == [4, 5]
    assert _seqs(orders, "--from", "2", "--first", "2") == [2, 3]
    assert _seqs(orders, "--from", "start", "--first", "1") == [1]


def test_a_view_by_key_and_by_content(orders: Operator) -> None:
    assert _seqs(orders, "--filter", "orders.us.>") == [1, 3, 5]
    assert _seqs(orders, "--filter", "orders.us.>", "--filter", "orders.*.2") == [1, 2, 3, 5]
    assert _seqs(orders, "--where", "data.total > 200") == [3, 4, 5]
    assert _seqs(orders, "--where", '{"field": "data.total", "op": ">", "value": 200}', "--last", "1") == [5]
    assert _seqs(orders, "--filter", "orders.eu.>", "--where", "data.total > 200") == [4]


def test_a_view_from_a_time_on(orders: Operator) -> None:
    assert _seqs(orders, "--from", "1h") == [1, 2, 3, 4, 5]
    assert _seqs(orders, "--from", "1h", "--where", "data.total = 300") == [3]
    assert _seqs(orders, "--from", (datetime.now(UTC) + timedelta(hours=1)).isoformat()) == []


def test_a_view_for_people(orders: Operator) -> None:
    orders.call("stream", "send", "orders", "odd.\u202e", '"a\\u001b[31mb\x9b"', "--headers", '{"trace": "t1"}')
    output = orders.out("stream", "view", "orders", "--last", "2")
    head, *lines = output.splitlines()
    assert head.split() == ["seq", "created", "key", "headers", "data"]
    assert lines[0].split()[2:] == ["orders.us.5", '{"total":500}']
    assert lines[1].split()[2:] == [r"odd.\u202e", '{"trace":"t1"}', r'"a\u001b[31mb\x9b"']
    assert "\x1b" not in output


def test_an_empty_view_says_so_to_people_and_is_empty_to_programs(orders: Operator) -> None:
    ended = orders.call("stream", "view", "parcels")
    assert ended.out == ""
    assert "No messages found" in ended.err
    assert orders.json("stream", "view", "parcels") == []


# --- send


def test_a_message_is_sent_as_it_was_written(orders: Operator) -> None:
    output = orders.out("stream", "send", "parcels", "a.b", '{"x": 1.50, "y": [null]}')
    assert output == ("Sent to 'parcels'.\n" if orders.over_http else "Sent to 'parcels' as seq 1.\n")
    assert orders.json("stream", "send", "parcels", "a.b", "2", "--headers", '{"trace": "t"}') == {
        "seq": None if orders.over_http else 2,
        "deliver_at": None,
    }
    first, second = orders.json("stream", "view", "parcels")
    assert first["data"] == {"x": 1.5, "y": [None]}
    assert (second["data"], second["headers"]) == (2, {"trace": "t"})


def test_all_json_that_postgres_accepts_can_be_sent(orders: Operator) -> None:
    for text in ("-5", "null", "[1e999]", '{"a": 1, "a": 2}', '"\\ud83d\\ude00"'):
        orders.call("stream", "send", "parcels", "k", text)
    orders.call("stream", "send", "parcels", "k", "1", "--headers", '{"x": 1e999}')
    seen = orders.json("stream", "view", "parcels")
    assert [one["data"] for one in seen] == [-5, None, "[1e999]", {"a": 2}, "\U0001f600", 1]
    assert seen[-1]["headers"] == '{"x": 1e999}'
    assert len(orders.out("stream", "view", "parcels").splitlines()) == 7


def test_data_comes_from_standard_input(orders: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"long": "data"}\n'))
    orders.call("stream", "send", "parcels", "k", "-")
    assert orders.json("stream", "view", "parcels")[0]["data"] == {"long": "data"}


def test_a_send_that_a_server_may_have_found_pending_says_so(orders: Operator) -> None:
    for option, unless in (
        (("--unique-key", "u"), "a message with the unique key is pending"),
        (("--message-id", "m"), "a message with the id was sent before"),
    ):
        output = orders.out("stream", "send", "parcels", "k", "1", *option)
        assert orders.out("stream", "send", "parcels", "k", "1", *option) == output
        assert (f"'parcels', unless {unless}." in output) == orders.over_http


def test_a_message_id_is_sent_once(orders: Operator) -> None:
    first = orders.json("stream", "send", "parcels", "k", "1", "--message-id", "m-1")
    assert orders.json("stream", "send", "parcels", "k", "1", "--message-id", "m-1") == first
    assert len(orders.json("stream", "view", "parcels")) == 1


def test_a_message_with_a_unique_key_is_sent_unless_one_is_pending(orders: Operator) -> None:
    first = orders.json("stream", "send", "parcels", "k", "1", "--unique-key", "u")
    words = ("stream", "send", "parcels", "k", "2", "--unique-key", "u", "--unique-while", "waiting")
    assert orders.json(*words) == first
    assert len(orders.json("stream", "view", "parcels")) == 1
    words = ("stream", "send", "parcels", "k", "1", "--unique-while", "waiting")
    assert "needs a unique key" in orders.call(*words, code=65).err


def test_a_message_with_a_time_to_live(orders: Operator) -> None:
    orders.call("stream", "send", "orders", "a.b", "1", "--expires-in", "90s")
    (shown,) = orders.json("stream", "view", "orders", "--last", "1")
    assert shown["headers"] == {"headrace-expires-in": 90}
    assert shown["expires_at"] > shown["created_at"]
    listed = orders.out("stream", "view", "orders").splitlines()
    assert "EXPIRES" in listed[0].upper()
    assert "never" in listed[1]


def test_a_message_for_later(orders: Operator) -> None:
    assert "Scheduled" in orders.out("stream", "send", "parcels", "k", "1", "--delay", "5m")
    ended = orders.call("stream", "send", "parcels", "k", "2", "--at", "2099-01-01", "--json")
    assert json.loads(ended.out) == {"seq": None, "deliver_at": "2099-01-01T00:00:00Z"}
    assert "UTC" in ended.err
    assert orders.json("stream", "info", "parcels")["stream"]["scheduled"] == 2
    assert "scheduled" in orders.out("stream", "info", "parcels")


# --- erase


def test_messages_are_erased_and_a_trace_stays(orders: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/null") as no_terminal:
        monkeypatch.setattr("sys.stdin", no_terminal)
        assert "--yes" in orders.refused(64, "stream", "erase", "orders", "2")
    assert len(orders.json("stream", "view", "orders")) == 5
    assert "No message of 'orders' was erased" in orders.call("stream", "erased", "orders").err
    assert orders.json("stream", "erase", "orders", "2", "3", "--reason", "asked for", "--yes") == {"erased": [2, 3]}
    assert [one["seq"] for one in orders.json("stream", "view", "orders")] == [1, 4, 5]
    assert [(one["seq"], one["reason"]) for one in orders.json("stream", "erased", "orders", "--above", "2")] == [
        (3, "asked for")
    ]
    assert "asked for" in orders.out("stream", "erased", "orders")
    assert "Not found: 1 seq" in orders.call("stream", "erase", "orders", "3", "--yes", code=1).err


# --- republish


def test_republish_what_matches(orders: Operator) -> None:
    words = ("stream", "republish", "orders", "parcels", "--filter", "orders.us.>", "--from", "2", "--to", "5")
    assert orders.json(*words, "--dry-run") == {"republished": 2, "dry_run": True}
    assert "To be republished from 'orders' to 'parcels': 2 messages" in orders.out(*words, "--dry-run")
    assert orders.json("stream", "view", "parcels") == []
    assert "Republished from 'orders' to 'parcels': 2 messages" in orders.out(*words)
    assert [one["data"]["total"] for one in orders.json("stream", "view", "parcels")] == [300, 500]
    assert orders.json("stream", "republish", "orders", "parcels", "--where", "data.total = 100") == {
        "republished": 1, "dry_run": False,
    }  # fmt: skip
