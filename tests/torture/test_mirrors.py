"""A copy that is made of messages has each difference to its table found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.mirrors import Copy, canonical
from tests.torture.schema_catalog import Catalog
from tests.torture.schema_fuzz import Fuzz

COLUMNS = ["id", "v"]


def message(action: str, record: Any, changes: Any = None, **metadata: Any) -> dict[str, Any]:
    return {
        "action": action,
        "record": record,
        "changes": changes,
        "metadata": {"table_schema": "public", "table_name": "t", **metadata},
    }


def changed(*messages: tuple[str, dict[str, Any]]) -> Copy:
    copy = Copy("changes")
    for key, data in messages:
        copy.apply(f"public.t.{key}" if key else "public.t", data)
    return copy


INSERTS = [(str(n), message("insert", {"id": n, "v": f"v{n}"})) for n in (1, 2)]


def test_a_copy_of_changes_follows_inserts_updates_deletes_and_truncates() -> None:
    copy = changed(
        *INSERTS,
        ("1", message("update", {"id": 1, "v": "x"})),
        ("3", message("update", {"id": 3, "v": "v2"}, {"id": 2})),
        ("1", message("delete", {"id": 1})),
    )
    assert copy.records("public.t") == [{"id": 3, "v": "v2"}]
    copy.apply("public.t", message("truncate", None))
    assert copy.records("public.t") == []


def test_rows_are_known_by_the_primary_key_that_the_table_has_now() -> None:
    copy = changed(
        ("1", message("insert", {"id": 1, "part": 1})),
        ("1.2", message("insert", {"id": 1, "part": 2})),
        ("3.1", message("insert", {"id": 3, "part": 1})),
        ("4.1", message("update", {"id": 4, "part": 1}, {"id": 3})),
    )
    assert copy.records("public.t") == [{"id": 1, "part": 1}, {"id": 1, "part": 2}, {"id": 4, "part": 1}]
    copy.apply("public.t.1", message("delete", {"id": 1, "part": 1}))
    copy.apply("public.t.4", message("read", {"id": 4, "part": 7}))
    assert copy.records("public.t") == [{"id": 1, "part": 2}, {"id": 4, "part": 7}]
    copy.apply("public.t.1", message("delete", {"id": 1}))
    assert copy.records("public.t") == [{"id": 4, "part": 7}]


def test_rows_of_a_table_that_gets_a_key_or_loses_it_are_the_same() -> None:
    copy = changed(
        ("", message("insert", {"id": 1, "v": "a"})),
        ("", message("insert", {"id": 2, "v": "b"})),
        ("", message("insert", {"id": 3, "v": "c"})),
        ("1", message("update", {"id": 1, "v": "x"})),
        ("", message("delete", {"id": 2})),
    )
    assert sorted(map(canonical, copy.records("public.t"))) == ['{"id":1,"v":"x"}', '{"id":3,"v":"c"}']
    copy.apply("public.t", message("update", {"id": 1, "v": "y"}, {"v": "x"}))
    assert sorted(map(canonical, copy.records("public.t"))) == ['{"id":1,"v":"y"}', '{"id":3,"v":"c"}']


def test_a_renamed_column_of_the_key_is_the_same_one() -> None:
    copy = changed(*INSERTS, ("1", message("update", {"nr": 1, "v": "x"})), ("2", message("delete", {"nr": 2})))
    assert copy.records("public.t") == [{"nr": 1, "v": "x"}]


def test_a_value_that_the_wal_lacks_is_that_of_the_earlier_message() -> None:
    copy = changed(*INSERTS, ("1", message("update", {"id": 1}, unchanged=["v"])))
    assert not copy.differences("public.t", [{"id": 1, "v": "v1"}, {"id": 2, "v": "v2"}], COLUMNS)


def test_rows_without_a_key_are_known_by_all_of_their_values() -> None:
    copy = changed(
        ("", message("insert", {"id": 1, "v": "a"})),
        ("", message("insert", {"id": 1, "v": "a"})),
        ("", message("update", {"id": 1, "v": "b"}, {"v": "a"})),
    )
    assert sorted(map(canonical, copy.records("public.t"))) == ['{"id":1,"v":"a"}', '{"id":1,"v":"b"}']
    copy.apply("public.t", message("delete", {"id": 1, "v": "a"}))
    assert copy.records("public.t") == [{"id": 1, "v": "b"}]


@pytest.mark.parametrize(
    "table",
    [
        [],
        [{"id": 1, "v": "v1"}],
        [{"id": 1, "v": "v1"}, {"id": 2, "v": "other"}],
        [{"id": 1, "v": "v1"}, {"id": 2, "v": None}],
        [{"id": 1, "v": "v1"}, {"id": "2", "v": "v2"}],
        [{"id": 1, "v": "v1"}, {"id": 2, "v": "v2"}, {"id": 3, "v": "v3"}],
        [{"id": 1, "v": "v1"}, {"id": 2, "v": "v2"}, {"id": 2, "v": "v2"}],
    ],
)
def test_rows_that_are_missing_too_many_or_other_ones_are_differences(table: list[dict[str, Any]]) -> None:
    assert changed(*INSERTS).differences("public.t", table, COLUMNS)


def test_a_column_that_a_message_lacks_is_null_and_one_that_the_table_lacks_does_not_count() -> None:
    copy = changed(*INSERTS)
    assert not copy.differences("public.t", [{"id": 1, "n": None}, {"id": 2, "n": None}], ["id", "n"])


def test_a_copy_of_rows_is_the_stream_without_tombstones() -> None:
    copy = Copy("rows")
    for n, record in ((1, {"id": 1, "v": "v1"}), (2, None)):
        copy.apply(f"public.t.{n}", {"record": record, "metadata": {"table_schema": "public", "table_name": "t"}})
    assert copy.records("public.t") == [{"id": 1, "v": "v1"}]


def test_a_seed_determines_the_statements() -> None:
    relations = (
        '[{"name": "a", "kind": "r", "identity": "d", "partition": false, "by": null, "parent": null, "key": ["id"], "key_name": "a_pkey",'
        ' "columns": [{"name": "id", "type": "integer", "generated": "", "inherited": false},'
        ' {"name": "c1", "type": "place", "generated": "", "inherited": false}]}]'
    )
    catalog = Catalog(("a",), relations, '{"labels": ["sad"], "attributes": [["x", "integer"]]}')

    def statements(seed: int) -> list[Any]:
        fuzz = Fuzz(seed, 18)
        return [
            fuzz.schema(3),
            *(fuzz.transaction(catalog) for _ in range(50)),
            *(fuzz.change(catalog) for _ in range(50)),
        ]

    assert statements(1) == statements(1) != statements(2)
