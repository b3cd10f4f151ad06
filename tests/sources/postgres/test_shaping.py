"""Messages that shaping makes of changes and rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.sources.postgres.pgoutput.messages import UNCHANGED, Delete, Insert, Truncate, Update
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges, Transaction
from tests.sources.postgres.tables_for_tests import (
    BOOL,
    INT8,
    JSON,
    METADATA,
    ORDERS,
    TEXT,
    Shaped,
    order,
    relation,
    table,
)

RECORD = {"id": 3, "status": "new", "total": "1.50", "at": "2023-10-07T13:20:00Z"}
ONLY_KEY = [b"3", None, None, None]


def test_an_insert_is_its_row() -> None:
    shaped = Shaped()
    assert shaped.take(Insert(1, order())) == 1
    assert shaped.message == {"record": RECORD, "changes": None, "action": "insert", "metadata": METADATA}
    assert shaped.keys == ["public.orders.3"]


def test_an_update_has_the_old_values_of_changed_columns() -> None:
    shaped = Shaped(identity="f")
    shaped.take(Update(1, order(status=b"paid", total=None), order(), key_only=False), idx=4)
    assert shaped.message == {
        "record": {**RECORD, "status": "paid", "total": None},
        "changes": {"status": "new", "total": "1.50"},
        "action": "update",
        "metadata": {**METADATA, "commit_idx": 4},
    }


def test_changes_is_null_for_an_update_without_known_old_values() -> None:
    shaped = Shaped()
    shaped.take(Update(1, order(), None, key_only=False))
    assert shaped.message["changes"] is None


def test_an_update_with_only_the_old_key_known_has_the_old_key() -> None:
    shaped = Shaped()
    shaped.take(Update(1, order(b"4"), ONLY_KEY, key_only=True))
    assert shaped.message["changes"] == {"id": 3}
    assert shaped.keys == ["public.orders.4"]


def test_an_update_that_changed_nothing_has_no_changes() -> None:
    shaped = Shaped(identity="f")
    shaped.take(Update(1, order(), order(), key_only=False))
    assert shaped.message["changes"] == {}


def test_a_column_that_was_null_has_null_among_the_changes() -> None:
    shaped = Shaped(identity="f")
    shaped.take(Update(1, order(), order(status=None), key_only=False))
    assert shaped.message["changes"] == {"status": None}


def test_a_delete_has_the_old_values() -> None:
    shaped = Shaped(identity="f")
    shaped.take(Delete(1, order(), key_only=False))
    assert shaped.message == {"record": RECORD, "changes": None, "action": "delete", "metadata": METADATA}


def test_a_delete_of_which_only_the_key_is_known_has_no_other_columns() -> None:
    shaped = Shaped()
    shaped.take(Delete(1, ONLY_KEY, key_only=True))
    assert shaped.message["record"] == {"id": 3}
    assert shaped.keys == ["public.orders.3"]


def test_a_truncate_is_a_message_of_each_table() -> None:
    shaped = Shaped(tables=("public.orders", "public.items"))
    shaped.shaper.set_relation(relation(name="items", oid=2), table(name="items"), {})
    assert shaped.take(Truncate((1, 2, 99), cascade=False, restart_identity=False), idx=5) == 2
    first, second = shaped.messages
    assert shaped.keys == ["public.orders", "public.items"]
    assert first == {
        "record": None, "changes": None, "action": "truncate", "metadata": {**METADATA, "commit_idx": 5},
    }  # fmt: skip
    assert second["metadata"]["table_name"] == "items"
    assert second["metadata"]["commit_idx"] == 6


def test_actions_that_are_not_wanted_are_passed_over() -> None:
    shaped = Shaped(actions=("update",))
    assert shaped.take(Insert(1, order())) == 0
    assert shaped.take(Delete(1, ONLY_KEY, key_only=True)) == 0
    assert shaped.take(Truncate((1,), cascade=False, restart_identity=False)) == 0
    assert shaped.take(Update(1, order(), None, key_only=False)) == 1
    assert shaped.message["action"] == "update"


def test_rows_that_are_read_look_like_changes() -> None:
    shaped = Shaped()
    assert shaped.read(order(), order(b"4", status=None)) == 2
    assert shaped.messages == [
        {"record": RECORD, "changes": None, "action": "read", "metadata": METADATA},
        {"record": {**RECORD, "id": 4, "status": None}, "changes": None, "action": "read",
         "metadata": {**METADATA, "commit_idx": 1}},
    ]  # fmt: skip
    assert shaped.keys == ["public.orders.3", "public.orders.4"]


def test_a_value_that_did_not_change_and_is_not_in_the_wal_is_left_out_and_named() -> None:
    shaped = Shaped()
    shaped.take(Update(1, order(status=UNCHANGED), None, key_only=False))
    record = {name: value for name, value in RECORD.items() if name != "status"}
    assert shaped.message["record"] == record
    assert shaped.message["metadata"] == {**METADATA, "unchanged": ["status"]}


def test_a_value_that_did_not_change_comes_from_the_old_row_where_that_has_it() -> None:
    shaped = Shaped(identity="f")
    shaped.take(Update(1, order(status=UNCHANGED, total=b"2"), order(), key_only=False))
    assert shaped.message["record"] == {**RECORD, "total": "2"}
    assert shaped.message["changes"] == {"total": "1.50"}
    assert shaped.message["metadata"] == METADATA


def test_a_part_of_the_identity_that_did_not_change_comes_from_the_old_identity() -> None:
    columns = (("a", INT8), ("b", TEXT))
    shaped = Shaped(columns, key=("a", "b"))
    shaped.take(Update(1, [b"2", UNCHANGED], [b"1", b"long"], key_only=True))
    assert shaped.message["record"] == {"a": 2, "b": "long"}
    assert shaped.message["changes"] == {"a": 1}
    assert shaped.keys == ["public.orders.2.long"]


def test_columns_outside_the_old_identity_are_not_taken_for_null() -> None:
    shaped = Shaped()
    shaped.take(Update(1, [b"4", UNCHANGED, b"1.50", None], ONLY_KEY, key_only=True))
    assert shaped.message["record"] == {"id": 4, "total": "1.50", "at": None}
    assert shaped.message["metadata"]["unchanged"] == ["status"]


def test_only_selected_columns_are_published_and_the_key_needs_none_of_them() -> None:
    shaped = Shaped(identity="f", selected=("status",))
    shaped.take(Update(1, order(status=b"paid", total=b"9"), order(), key_only=False))
    assert shaped.message["record"] == {"status": "paid"}
    assert shaped.message["changes"] == {"status": "new"}
    assert shaped.keys == ["public.orders.3"]


def test_a_column_that_is_not_selected_is_not_missed() -> None:
    shaped = Shaped(selected=("id", "total"))
    shaped.take(Update(1, order(status=UNCHANGED), None, key_only=False))
    assert shaped.message["record"] == {"id": 3, "total": "1.50"}
    assert "unchanged" not in shaped.message["metadata"]


def test_metadata_are_those_of_each_transaction() -> None:
    shaped = Shaped()
    for lsn in (1000, 1000, 2000):
        shaped.shaper.change(Insert(1, order()), Transaction(lsn, lsn, 8), 0, shaped.shaped_changes)
    assert [message["metadata"]["commit_lsn"] for message in shaped.messages] == [1000, 1000, 2000]
    assert shaped.messages[-1]["metadata"]["commit_timestamp"] == "2000-01-01T00:00:00.002000Z"


def test_odd_names_and_text_are_json() -> None:
    columns = (('a "b"\n', INT8), ("ü🐘", TEXT))
    shaped = Shaped(columns, key=('a "b"\n',))
    shaped.take(Insert(1, [b"1", 'x"\\\t\u2028🐘'.encode()]))
    assert shaped.message["record"] == {'a "b"\n': 1, "ü🐘": 'x"\\\t\u2028🐘'}


def test_numbers_can_be_had_as_numbers() -> None:
    shaped = Shaped(numeric="number")
    shaped.take(Insert(1, order(total=b"12345678901234567890.10")))
    assert '"total":12345678901234567890.10,' in shaped.shaped_changes.data[0]


# --- tables that change, and other tables


def test_changes_of_other_tables_are_passed_over() -> None:
    shaped = Shaped()
    shaped.shaper.set_relation(relation(oid=2, name="others"), table(name="others"), {})
    shaped.shaper.set_relation(relation(oid=3, name="gone"), None, {})
    for oid in (2, 3, 4):
        assert shaped.take(Insert(oid, order())) == 0
        assert shaped.shaper.touched_keys(Insert(oid, order())) == []
    assert shaped.shaped_changes == ShapedChanges()


def test_columns_come_and_go() -> None:
    shaped = Shaped()
    now = (("id", INT8), ("total", TEXT), ("fresh", BOOL))
    shaped.shaper.set_relation(relation(now), table(now), {})
    shaped.take(Insert(1, [b"3", b"1.50", b"t"]))
    assert shaped.message["record"] == {"id": 3, "total": "1.50", "fresh": True}


@pytest.mark.parametrize("row", [[], [b"3"], [b"3", b"new", b"1", b"2", b"3", b"4"]])
@pytest.mark.parametrize("mode", ["changes", "rows"])
def test_rows_of_another_length_raise_nothing(row: list[bytes], mode: str) -> None:
    shaped = Shaped(identity="f", mode=mode, **({"deletes": "tombstone"} if mode == "rows" else {}))
    for change in (
        Insert(1, row), Update(1, row, None, key_only=False), Update(1, order(), row, key_only=False),
        Update(1, row, order(), key_only=False), Update(1, order(), row, key_only=True), Delete(1, row, key_only=False),
        Delete(1, row, key_only=True),
    ):  # fmt: skip
        assert shaped.take(change) <= 2
        shaped.shaper.touched_keys(change)
    assert all(failure.error for failure in shaped.shaped_changes.failures)


def test_a_key_column_that_was_renamed_since_is_found_by_the_identity() -> None:
    shaped = Shaped()
    shaped.shaper.set_relation(relation(), table((("number", INT8), *ORDERS[1:]), key=("number",)), {})
    shaped.take(Insert(1, order()))
    assert shaped.keys == ["public.orders.3"]
    assert shaped.message["record"] == RECORD


def test_with_full_identity_it_is_found_by_its_place() -> None:
    shaped = Shaped()
    shaped.shaper.set_relation(
        relation(identity="f"), table((("number", INT8), *ORDERS[1:]), key=("number",), identity="f"), {}
    )
    shaped.take(Insert(1, order()))
    assert shaped.keys == ["public.orders.3"]


def test_a_key_that_the_table_did_not_have_yet_makes_a_failure_that_says_so() -> None:
    shaped = Shaped()
    shaped.shaper.set_relation(
        relation(identity="f"), table((*ORDERS, ("code", TEXT)), key=("code",), identity="f"), {}
    )
    shaped.take(Insert(1, order()))
    assert "needs the column 'code'" in shaped.error


def test_a_mistake_of_ours_becomes_a_failure_with_the_change_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(value: bytes) -> bytes:
        raise ValueError("no such time")

    shaped = Shaped()
    monkeypatch.setattr("headrace.sources.postgres.shaping.shapes.converter", lambda *_, **__: broken)
    shaped.shaper.set_relation(relation(), shaped.table, {})
    assert shaped.take(Insert(1, order())) == 1
    assert "no such time" in shaped.error
    assert json.loads(shaped.shaped_changes.failures[0].data)["record"] == {
        "id": "3", "status": "new", "total": "1.50", "at": "2023-10-07 13:20:00+00",
    }  # fmt: skip
    assert shaped.read(order()) == 0
    assert len(shaped.shaped_changes.failures) == 2


# --- keys


def test_other_columns_can_group_messages() -> None:
    shaped = Shaped(group=("status", "total"))
    shaped.take(Insert(1, order()))
    shaped.take(Insert(1, order(status=None, total=b"2")))
    assert shaped.keys == ["public.orders.new.1_50", "public.orders._.2"]


def test_a_template_can_make_keys() -> None:
    columns = (("id", INT8), ("data", JSON))
    shaped = Shaped(columns, key_template="{name}.{table}.{record.data.region.0}-{record.id}")
    shaped.take(Insert(1, [b"1", b'{"region": ["eu.west"]}']))
    assert shaped.keys == ["shop.orders.eu_west-1"]


def test_a_delete_that_lacks_the_values_of_its_group_becomes_a_failure_with_the_statement_that_helps() -> None:
    shaped = Shaped(group=("status",))
    assert shaped.take(Delete(1, ONLY_KEY, key_only=True)) == 1
    assert "alter table public.orders replica identity full" in shaped.error
    assert shaped.shaped_changes.failures[0].key is None
    assert json.loads(shaped.shaped_changes.failures[0].data)["record"] == {"id": 3}


def test_a_table_without_a_primary_key_keeps_all_of_its_changes_in_order() -> None:
    shaped = Shaped(key=(), identity="f")
    shaped.take(Insert(1, order()))
    assert shaped.keys == ["public.orders"]


def test_rows_of_a_table_without_a_primary_key_are_not_distinguished() -> None:
    shaped = Shaped(key=(), identity="f", mode="rows")
    shaped.take(Insert(1, order()))
    assert "no primary key" in shaped.error


# --- which rows a change affects


@pytest.mark.parametrize(
    ("change", "touched"),
    [
        (Insert(1, order()), [(b"3",)]),
        (Update(1, order(), None, key_only=False), [(b"3",)]),
        (Update(1, order(b"4"), ONLY_KEY, key_only=True), [(b"4",), (b"3",)]),
        (Update(1, order(), order(status=b"x"), key_only=False), [(b"3",)]),
        (Update(1, [UNCHANGED, b"x", b"1", None], order(), key_only=False), [(b"3",)]),
        (Delete(1, ONLY_KEY, key_only=True), [(b"3",)]),
        (Truncate((1, 2), cascade=True, restart_identity=True), [()]),
    ],
)
@pytest.mark.parametrize("actions", [("insert",), ("delete",)])
def test_a_change_touches_its_old_and_its_new_row_whether_it_is_wanted_or_not(
    change: Any, touched: list[Any], actions: tuple[str, ...]
) -> None:
    shaped = Shaped(group=("status",), actions=actions)
    assert shaped.shaper.touched_keys(change) == [("public.orders", key, frozenset()) for key in touched]
