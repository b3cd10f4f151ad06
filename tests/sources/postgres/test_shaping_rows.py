"""Shaping in mode `rows`: the latest version of each row, and tombstones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.sources.postgres.pgoutput.messages import UNCHANGED, Delete, Insert, Truncate, Update
from headrace.sources.postgres.shaping.shaped_changes import IncompleteRow, ShapedChanges
from headrace.sources.postgres.shaping.shaper import Shaper
from tests.sources.postgres.tables_for_tests import METADATA, TEXT, TRANSACTION, Shaped, order, spec

RECORD = {"id": 3, "status": "new", "total": "1.50", "at": "2023-10-07T13:20:00Z"}
ONLY_KEY = [b"3", None, None, None]


def rows(**settings: Any) -> Shaped:
    return Shaped(mode="rows", **settings)


def tombstones(**settings: Any) -> Shaped:
    return rows(deletes="tombstone", **settings)


def tombstone(id_: int = 3, idx: int = 0) -> dict[str, Any]:
    return {"record": None, "metadata": {**METADATA, "commit_idx": idx, "key": {"id": id_}}}


@pytest.mark.parametrize(
    "change",
    [Insert(1, order()), Update(1, order(), None, key_only=False), Update(1, order(), order(), key_only=False)],
)
def test_a_row_that_is_new_or_changed_is_the_row_as_it_is_now(change: Any) -> None:
    shaped = tombstones(identity="f")
    assert shaped.take(change) == 1
    assert shaped.message == {"record": RECORD, "metadata": METADATA}
    assert shaped.keys == ["public.orders.3"]


def test_a_row_that_was_read_looks_the_same() -> None:
    shaped = rows()
    assert shaped.read(order()) == 1
    assert shaped.message == {"record": RECORD, "metadata": METADATA}


@pytest.mark.parametrize("change", [Delete(1, ONLY_KEY, key_only=True), Delete(1, order(), key_only=False)])
def test_a_row_that_was_deleted_leaves_its_last_version_or_a_tombstone(change: Any) -> None:
    ignoring = rows()
    assert ignoring.take(change) == 0
    assert ignoring.shaped_changes == ShapedChanges()
    shaped = tombstones()
    assert shaped.take(change) == 1
    assert shaped.message == tombstone()
    assert shaped.keys == ["public.orders.3"]


@pytest.mark.parametrize("old", [order(), ONLY_KEY])
def test_a_row_with_another_primary_key_is_a_tombstone_under_the_old_one_and_a_row_under_the_new(old: Any) -> None:
    shaped = tombstones(identity="f" if old != ONLY_KEY else "d")
    assert shaped.take(Update(1, order(b"4"), old, key_only=old == ONLY_KEY)) == 2
    assert shaped.keys == ["public.orders.3", "public.orders.4"]
    assert shaped.messages == [
        tombstone(), {"record": {**RECORD, "id": 4}, "metadata": {**METADATA, "commit_idx": 1}},
    ]  # fmt: skip
    ignoring = rows()
    assert ignoring.take(Update(1, order(b"4"), old, key_only=old == ONLY_KEY)) == 1
    assert ignoring.keys == ["public.orders.4"]


def test_a_tombstone_names_the_key_though_it_is_not_selected() -> None:
    shaped = tombstones(selected=("status",))
    shaped.take(Delete(1, ONLY_KEY, key_only=True))
    assert shaped.message == tombstone()


def test_a_delete_that_lacks_the_key_becomes_a_failure() -> None:
    shaped = tombstones(key_template="orders.{record.id}.{record.status}")
    shaped.take(Delete(1, ONLY_KEY, key_only=True))
    assert "replica identity full" in shaped.error


def test_a_table_that_was_emptied_is_seen_to_where_it_was_emptied() -> None:
    shaped = tombstones()
    shaped.take(Insert(1, order()))
    assert shaped.take(Truncate((1, 9), cascade=False, restart_identity=False), idx=1) == 0
    (truncated,) = shaped.shaped_changes.truncated
    assert (truncated.index, truncated.table) == (1, shaped.table)
    assert json.loads(truncated.metadata) == {**METADATA, "commit_idx": 1}
    ignoring = rows()
    ignoring.take(Truncate((1,), cascade=False, restart_identity=False))
    assert ignoring.shaped_changes == ShapedChanges()


def test_rows_with_similar_keys_do_not_share_a_key() -> None:
    shaped = rows(columns=(("name", TEXT),), key=("name",))
    for name in (b"a.b", b"a_b", b"a b", b"", b"_", b"A", b"a"):
        shaped.take(Insert(1, [name]))
    assert len(set(shaped.keys)) == 7
    assert "public.orders.a_b" in shaped.keys


# --- with a condition

PAID = "data.record.status = 'paid'"


@pytest.mark.parametrize(
    ("change", "made"),
    [
        (Insert(1, order()), []),
        (Insert(1, order(status=b"paid")), ["row"]),
        (Update(1, order(status=b"paid"), None, key_only=False), ["row"]),
        (Update(1, order(), None, key_only=False), ["tombstone"]),  # the row may have been in the stream
        (Update(1, order(), order(status=b"paid"), key_only=False), ["tombstone"]),
        (Update(1, order(), order(status=b"old"), key_only=False), []),
        (Update(1, order(b"4", b"paid"), order(status=b"paid"), key_only=False), ["tombstone", "row"]),
        (Update(1, order(b"4", b"paid"), order(), key_only=False), ["row"]),
        (Update(1, order(b"4"), order(status=b"paid"), key_only=False), ["tombstone"]),
        (Update(1, order(b"4"), order(), key_only=False), []),
        (Update(1, order(b"4"), ONLY_KEY, key_only=True), ["tombstone"]),
        (Delete(1, order(), key_only=False), []),
        (Delete(1, order(status=b"paid"), key_only=False), ["tombstone"]),
        (Delete(1, ONLY_KEY, key_only=True), ["tombstone"]),
    ],
)
def test_a_row_that_no_longer_meets_the_condition_is_gone(change: Any, made: list[str]) -> None:
    shaped = tombstones(where=PAID)
    assert shaped.take(change) == len(made)
    assert ["tombstone" if message["record"] is None else "row" for message in shaped.messages] == made
    ignoring = rows(where=PAID)
    ignoring.take(change)
    assert len(ignoring.keys) == made.count("row")
    assert not shaped.shaped_changes.failures


def test_tombstones_are_not_transformed() -> None:
    shaped = tombstones(transform=lambda message: message["record"]["id"])
    shaped.take(Update(1, order(b"4"), ONLY_KEY, key_only=True))
    assert shaped.messages == [tombstone(), 4]


# --- values that are not in the WAL


def test_a_row_that_lacks_values_is_reported_as_incomplete() -> None:
    shaped = rows()
    shaped.take(Insert(1, order(b"2")))
    assert shaped.take(Update(1, order(status=UNCHANGED), None, key_only=False)) == 1
    assert shaped.shaped_changes.incomplete == [IncompleteRow(1, shaped.table, (b"3",), ["status"])]
    assert shaped.messages[1]["record"] == {name: value for name, value in RECORD.items() if name != "status"}


def test_a_row_is_completed_by_its_old_version() -> None:
    shaped = rows(identity="f")
    shaped.take(Update(1, order(status=UNCHANGED), order(), key_only=False))
    assert shaped.message["record"] == RECORD
    assert not shaped.shaped_changes.incomplete


def complete(shaped: Shaped) -> None:
    """Complete the row as the capturer does."""
    for one in shaped.shaped_changes.incomplete:
        message = json.loads(shaped.shaped_changes.data[one.index])
        message["record"] |= dict.fromkeys(one.missing, "paid" if one.key == (b"3",) else "open")
        shaped.shaped_changes.data[one.index] = json.dumps(message)
    shaped.shaper.finish_incomplete(shaped.shaped_changes)


def test_an_incomplete_row_is_judged_and_transformed_when_it_is_complete() -> None:
    shaped = tombstones(where=PAID, transform=lambda message: message["record"])
    missing = order(status=UNCHANGED)
    shaped.take(Insert(1, order(b"1", b"paid")))
    shaped.take(Update(1, [b"2", *missing[1:]], None, key_only=False), idx=1)
    shaped.take(Update(1, missing, None, key_only=False))
    shaped.take(Truncate((1,), cascade=False, restart_identity=False))
    complete(shaped)
    first, second, third = shaped.messages
    assert first["id"] == 1
    assert second == tombstone(2, idx=1)
    assert third == {**RECORD, "status": "paid"}
    assert shaped.shaped_changes.incomplete == []
    assert shaped.shaped_changes.truncated[0].index == 3


def test_rows_that_completion_drops_shift_the_places_of_later_ones() -> None:
    shaped = tombstones(transform=lambda message: message["record"] if message["record"]["id"] != 3 else None)
    shaped.take(Update(1, order(status=UNCHANGED), None, key_only=False))
    shaped.take(Truncate((1,), cascade=False, restart_identity=False))
    shaped.take(Insert(1, order(b"5")))
    complete(shaped)
    assert shaped.keys == ["public.orders.5"]
    assert shaped.shaped_changes.truncated[0].index == 0


def test_a_completed_row_that_cannot_be_transformed_is_a_failure() -> None:
    shaped = rows(transform=lambda message: message["nope"])
    shaped.take(Update(1, order(status=UNCHANGED), None, key_only=False))
    assert not shaped.shaped_changes.failures
    complete(shaped)
    assert "KeyError" in shaped.error
    into = ShapedChanges()
    assert Shaper(spec(mode="rows")).retry(shaped.shaped_changes.failures[0].data, into) is None
    assert json.loads(into.data[0])["record"] == {**RECORD, "status": "paid"}


def test_the_plain_record_of_a_row_that_was_read_is_neither_judged_nor_transformed() -> None:
    shaped = rows(where=PAID, transform=lambda message: None)
    assert json.loads(shaped.shaper.record(shaped.table, {}, order(), shaped.columns)) == RECORD


def test_a_row_is_read_by_the_columns_that_were_asked_for() -> None:
    shaped = rows(selected=("id", "status"))
    columns = ["total", "status", "id"]
    for names, row in ((columns, [b"1", b"x", b"7"]), (columns[::-1], [b"8", b"y", b"1"])):
        shaped.shaper.add_rows(shaped.table, {}, [row], names, TRANSACTION, shaped.shaped_changes)
    assert [message["record"] for message in shaped.messages] == [
        {"status": "x", "id": 7}, {"id": 8, "status": "y"},
    ]  # fmt: skip
