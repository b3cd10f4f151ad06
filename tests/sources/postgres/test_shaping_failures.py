"""Which changes become messages, what transforms make of them, and how changes that can't be messages are recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.sources.postgres.pgoutput.messages import Delete, Insert, Truncate, Update
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges
from headrace.sources.postgres.shaping.shaper import Shaper
from tests.sources.postgres.tables_for_tests import (
    INT8,
    JSON,
    METADATA,
    TEXT,
    Shaped,
    order,
    spec,
)

RECORD = {"id": 3, "status": "new", "total": "1.50", "at": "2023-10-07T13:20:00Z"}
ONLY_KEY = [b"3", None, None, None]


# --- conditions


def test_only_changes_that_meet_the_condition_become_messages() -> None:
    shaped = Shaped(where="data.record.status = 'paid' or data.action = 'delete' or key = 'public.orders.9'")
    assert shaped.take(Insert(1, order())) == 0
    assert shaped.take(Insert(1, order(b"4", b"paid"))) == 1
    assert shaped.take(Delete(1, ONLY_KEY, key_only=True)) == 1
    assert shaped.read(order(), order(b"9")) == 1
    assert shaped.keys == ["public.orders.4", "public.orders.3", "public.orders.9"]


@pytest.mark.parametrize(
    ("where", "met"),
    [
        ("data.record is null", ["truncate"]),
        ("data.record is not null", ["insert", "update"]),
        ("data.record.id is null", ["truncate"]),
        ("data.changes is null", ["insert", "truncate"]),
        ("data.changes.status = 'old' and data.record.data.tags.-1 = 'b'", ["update"]),
        ("data.record.data.price >= 12345678901234567890.1", ["insert", "update"]),
        ("data.record.data.price > 12345678901234567890.1", []),
        ("data.metadata.commit_lsn = 1000 and data.metadata.table_name like 'ord%'", ["insert", "update", "truncate"]),
        ("key = 'public.orders'", ["truncate"]),
        ("data.action in ('update', 'truncate')", ["update", "truncate"]),
    ],
)
def test_a_condition_may_look_at_all_of_a_message(where: str, met: list[str]) -> None:
    columns = (("id", INT8), ("status", TEXT), ("data", JSON))
    shaped = Shaped(columns, identity="f", where=where)
    row = [b"3", b"new", b'{"price": 12345678901234567890.1, "tags": ["a", "b"]}']
    shaped.take(Insert(1, row))
    shaped.take(Update(1, row, [b"3", b"old", row[2]], key_only=False))
    shaped.take(Truncate((1,), cascade=False, restart_identity=False))
    assert [message["action"] for message in shaped.messages] == met
    assert not shaped.shaped_changes.failures


def test_a_condition_on_a_value_that_the_wal_lacks_makes_a_failure_and_is_not_guessed() -> None:
    shaped = Shaped(where="data.record.total > 1")
    assert shaped.take(Delete(1, ONLY_KEY, key_only=True)) == 1
    assert "depends on total" in shaped.error
    assert "alter table public.orders replica identity full" in shaped.error


@pytest.mark.parametrize(
    ("where", "made"),
    [
        ("data.record.id = 3 and data.record.total > 1", "failure"),
        ("data.record.id = 3 or data.record.total > 1", "message"),
        ("data.record.id = 4 or data.record.total > 1", "failure"),
        ("data.record.id = 4 and data.record.total > 1", "nothing"),
        ("not (data.record.id = 3 and data.record.total > 1)", "failure"),
        ("not (data.record.id = 4 and data.record.total > 1)", "message"),
        ("data.record.total is null", "failure"),
    ],
)
def test_a_condition_is_true_false_or_unknown(where: str, made: str) -> None:
    shaped = Shaped(where=where)
    shaped.take(Delete(1, ONLY_KEY, key_only=True))
    found = {"message": len(shaped.keys), "failure": len(shaped.shaped_changes.failures)}
    assert found == {"message": int(made == "message"), "failure": int(made == "failure")}


def test_a_condition_that_is_decided_by_what_is_there_is_decided() -> None:
    shaped = Shaped(where="data.record.id > 5 and not data.record.total = '1'")
    assert shaped.take(Delete(1, ONLY_KEY, key_only=True)) == 0
    assert shaped.shaped_changes == ShapedChanges()


# --- transforms, and changes that can't be published


def test_a_transform_makes_what_is_published() -> None:
    shaped = Shaped(transform=lambda message: [message["action"], message["record"]["id"]])
    assert shaped.take(Insert(1, order())) == 1
    assert shaped.shaped_changes.data == ['["insert",3]']


def test_none_publishes_nothing() -> None:
    shaped = Shaped(transform=lambda message: None)
    assert shaped.take(Insert(1, order())) == 0
    assert shaped.shaped_changes == ShapedChanges()


@pytest.mark.parametrize("row", [b'"a\\u0000b"', b'["\\ud800"]', b"[" * 5000 + b"]" * 5000])
@pytest.mark.parametrize("settings", [{}, {"transform": dict}, {"where": "data.record.id = 1"}])
def test_json_that_not_everybody_can_read_never_raises(row: bytes, settings: dict[str, Any]) -> None:
    shaped = Shaped((("id", INT8), ("data", JSON)), **settings)
    assert shaped.take(Insert(1, [b"1", row])) == 1
    assert "u0000" not in "".join(shaped.shaped_changes.data)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ({"a": "\0"}, "NUL"),
        ({"a": "\ud800"}, "can't be encoded as JSON"),
        ({"a": object()}, "can't be encoded as JSON"),
        ({(1, 2): 3}, "can't be encoded as JSON"),
    ],
)
def test_a_value_that_json_or_the_stream_cannot_hold_becomes_a_failure(returned: Any, expected: str) -> None:
    shaped = Shaped(transform=lambda message: returned)
    shaped.take(Insert(1, order()))
    assert expected in shaped.error


def test_a_failing_transform_makes_a_failure_that_can_be_tried_again() -> None:
    broken = True

    def transform(message: dict[str, Any]) -> Any:
        if broken:
            raise KeyError("region\0\ud800")
        return message | {"seen": True}

    shaped = Shaped(transform=transform)
    assert shaped.take(Insert(1, order())) == 1
    (failure,) = shaped.shaped_changes.failures
    assert failure.key == "public.orders.3"
    assert failure.error.startswith("KeyError: ")
    assert failure.error.encode()
    assert "\0" not in failure.error

    into = ShapedChanges()
    assert shaped.shaper.retry(failure.data, into) == failure.error
    assert into == ShapedChanges()
    broken = False
    fresh = Shaper(spec(), transform)  # the new shaper knows no table
    assert fresh.retry(failure.data, into) is None
    assert into.keys == ["public.orders.3"]
    assert json.loads(into.data[0]) == {
        "record": RECORD, "changes": None, "action": "insert", "metadata": METADATA, "seen": True,
    }  # fmt: skip


@pytest.mark.parametrize("data", ['"text"', "{}", '{"a":1,"message_key":5}}', '{"a":,"message_key":"k"}}', ""])
def test_data_that_is_not_a_failure_is_reported_and_not_raised(data: str) -> None:
    into = ShapedChanges()
    assert Shaper(spec()).retry(data, into)
    assert into == ShapedChanges()


def test_a_failure_without_a_key_stays_one() -> None:
    shaped = Shaped(group=("status",))
    shaped.take(Delete(1, ONLY_KEY, key_only=True))
    assert "so it can't be retried" in (
        shaped.shaper.retry(shaped.shaped_changes.failures[0].data, ShapedChanges()) or ""
    )


def test_a_failure_for_its_condition_is_judged_again() -> None:
    shaped = Shaped(where="data.record.total > 1")
    shaped.take(Delete(1, ONLY_KEY, key_only=True))
    data, into = shaped.shaped_changes.failures[0].data, ShapedChanges()
    assert "depends on total" in (shaped.shaper.retry(data, into) or "")
    assert Shaper(spec(where="data.record.id = 4")).retry(data, into) is None
    assert into == ShapedChanges()
    assert Shaper(spec(where="data.record.id = 3")).retry(data, into) is None
    assert into.keys == ["public.orders.3"]


def test_a_message_that_is_too_large_becomes_a_failure_without_its_record() -> None:
    shaped = Shaped(max_message_bytes=300)
    shaped.take(Insert(1, order(status=b"x" * 200)))
    assert "300" in shaped.error
    kept = json.loads(shaped.shaped_changes.failures[0].data)
    assert kept["record"] is None
    assert kept["metadata"] == METADATA
    assert shaped.shaped_changes.failures[0].key == "public.orders.3"
    assert "be retried" in (shaped.shaper.retry(shaped.shaped_changes.failures[0].data, ShapedChanges()) or "")


def test_numeric_columns_are_no_floats_to_a_transform() -> None:
    seen: list[Any] = []
    shaped = Shaped(numeric="number", transform=lambda message: seen.append(message["record"]["total"]) or message)
    shaped.take(Insert(1, order(total=b"0.1000000000000000000001")))
    shaped.take(Insert(1, order(total=b"0.25")))
    assert [str(value) for value in seen] == ["0.1000000000000000000001", "0.25"]
    assert isinstance(seen[1], float)
    assert '"total":0.1000000000000000000001' in shaped.shaped_changes.data[0]
