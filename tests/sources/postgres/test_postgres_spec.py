"""Valid and invalid settings of a source that captures tables."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.model.conditions import field, parse
from headrace.model.errors import ConfigurationError
from headrace.sources.postgres.spec import PostgresSpec
from tests.sources.postgres.tables_for_tests import spec

TWO = ("public.orders", "public.items")
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "1 to 48"),
    ({"name": "Shop"}, "lower-case"),
    ({"name": None}, "1 to 48"),
    ({"tables": ()}, "from 1 to 1,000"),
    ({"tables": tuple(f"a.t{n}" for n in range(1001))}, "from 1 to 1,000"),
    ({"tables": "public.orders"}, "list of names"),
    ({"tables": None}, "list of names"),
    ({"tables": (5,)}, "list of names"),
    ({"tables": ("orders",)}, r"such as public\.orders"),
    ({"tables": ("public.Orders",)}, r'public\."Orders"'),
    ({"tables": ("public.orders", 'public."orders"')}, "twice"),
    ({"mode": "both"}, "'changes' or 'rows'"),
    ({"mode": ["rows"]}, "'changes' or 'rows'"),
    ({"database": "shop"}, "can't be parsed"),
    ({"database": "mysql://a@b/c"}, "can't be parsed"),
    ({"database": 5}, "can't be parsed"),
    ({"columns": ("id",)}, "mapping"),
    ({"columns": {"public.items": ("id",)}}, "not one of its tables"),
    ({"columns": {"items": ("id",)}}, r"such as public\.items"),
    ({"columns": {"public.orders": ()}}, "from 1"),
    ({"columns": {"public.orders": ("id", "id")}}, "twice"),
    ({"columns": {"public.orders": "id"}}, "list of names"),
    ({"columns": {"public.orders": ("",)}}, "list of names"),
    ({"actions": ()}, "from 1 to 4"),
    ({"actions": ("read",)}, "there are 'insert'"),
    ({"actions": ("insert", "insert")}, "twice"),
    ({"actions": ("insert",), "mode": "rows"}, "mode='changes'"),
    ({"where": "data.record.total >"}, "where of the source 'shop' can't be read"),
    ({"where": "data.total > 1"}, r"A column is data\.record\.total"),
    ({"where": "data is null"}, r"A column is data\.record\.total"),
    ({"where": "seq > 1"}, "only in the stream"),
    ({"where": "created_at > '2030-01-01'"}, "only in the stream"),
    ({"where": "not (key = 'a' or headers.x = 1)"}, "only in the stream"),
    ({"where": "data.action = 'insert'", "mode": "rows"}, "has record, metadata"),
    ({"where": "data.record.name regex '['"}, "regular expression"),
    ({"where": "data.record.name regex '(?=a)'"}, "lookaround. Only .* Write `not … regex`"),
    ({"where": r"data.record.name regex '\bid'"}, r"can't be used. Write \\y"),
    ({"where": r"not (key = 'a' or data.record.name regex '(a)\1')"}, "can't be used"),
    ({"where": "data.record.total > 1", "columns": {"public.orders": ("id",)}}, "which is not in columns"),
    ({"where": 5}, "can't be read"),
    ({"group": ()}, "from 1 to 8"),
    ({"group": tuple("abcdefghi")}, "from 1 to 8"),
    ({"group": ("a", "a")}, "twice"),
    ({"group": ("a",), "mode": "rows"}, "primary key"),
    ({"group": ("a",), "key": "x.{record.b}"}, "contradict"),
    ({"key": "{body.a}"}, "key template"),
    ({"key": "orders.{table}", "mode": "rows"}, "its own key"),
    ({"key": "orders.{record.id}", "mode": "rows", "tables": TWO}, "put {table} into it"),
    ({"sort": "at"}, "mode='rows' only"),
    ({"deletes": "tombstone"}, "mode='rows' only"),
    ({"sort": "", "mode": "rows"}, "column's name"),
    ({"deletes": "keep", "mode": "rows"}, "'ignore' or 'tombstone'"),
    ({"numeric": "float"}, "'string' or 'number'"),
    ({"transform": "module"}, "module:name"),
    ({"transform": "a b:c"}, "module:name"),
    ({"transform": 5}, "module:name"),
    ({"slot": "Slot"}, "replication slot"),
    ({"slot": "s" * 64}, "replication slot"),
    ({"publication": ""}, "publication"),
    ({"publication": "p\n"}, "publication"),
    ({"publication": "ü" * 32}, "publication"),
    ({"rate": 0}, "from 1"),
    ({"rate": 1.5}, "from 1"),
    ({"rate": True}, "from 1"),
    ({"heartbeat": 0.5}, "from 1"),
    ({"heartbeat": float("nan")}, "from 1"),
    ({"heartbeat": float("inf")}, "from 1"),
    ({"heartbeat": "30s"}, "from 1"),
    ({"alarm": 0}, "at least 1 byte"),
    ({"alarm": None}, "at least 1 byte, not None"),
    ({"backfill": "yes"}, "true or false"),
]


@pytest.mark.parametrize(("settings", "expected"), REFUSED)
def test_invalid_settings_are_refused_in_a_sentence(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected) as refused:
        spec(**settings)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"tables": ['public."Odd.Name"', "sales.order"]},
        {"mode": "rows", "sort": "updated_at", "deletes": "tombstone", "key": "o.{table}.{record.id}", "tables": TWO},
        {"group": ("b", "a"), "key": "x.{record.a}.{record.b}"},
        {"actions": ["delete", "insert"]},
        {
            "where": "data.record.total > 0.10000000000000000000000000001 and data.changes.a is null",
            "numeric": "number",
        },
        {"columns": {'"public"."orders"': ["id"]}, "where": "data.record.id > 1"},
        {"database": "host=localhost dbname=shop", "rate": 1, "heartbeat": 1, "alarm": 1, "backfill": False},
        {"transform": "shop.capture:clean", "slot": "my_slot", "publication": "My Publication"},
    ],
)
def test_valid_settings_are_stored_and_read_again(settings: dict[str, Any]) -> None:
    made = spec(**settings)
    stored = msgspec.json.decode(msgspec.json.encode(made.settings()))
    assert PostgresSpec.stored("shop", "orders", stored) == made
    assert PostgresSpec.stored("shop", "orders", made.given()) == made
    assert PostgresSpec.shown(made.given()) == made.settings()


def test_settings_are_kept_in_one_form() -> None:
    made = spec(
        tables=['"public"."orders"', "sales.order"], columns={'public."orders"': ["id"]}, actions=["delete", "insert"],
        where=(field("record.id") == 1) & (field("record.b") > 2),
    )  # fmt: skip
    assert made.tables == ("public.orders", 'sales."order"')
    assert made.columns == {"public.orders": ("id",)}
    assert made.actions == ("insert", "delete")
    assert made.where == "data.record.id = 1 and data.record.b > 2"
    assert made.condition == parse(made.where)
    as_json = spec(where={"field": "data.record.id", "op": "=", "value": 1})
    assert as_json.where == "data.record.id = 1"


def test_only_what_was_given_is_given() -> None:
    assert spec().given() == {"tables": ["public.orders"]}
    assert spec(rate=5, actions=("insert", "update", "delete", "truncate")).given() == {
        "tables": ["public.orders"], "rate": 5,
    }  # fmt: skip


@pytest.mark.parametrize(
    "database",
    [
        "postgresql://u:secret@h:5432/shop",
        "host=h password=secret dbname=shop",
        "postgres://h/shop?password=secret&user=u",
    ],
)
def test_a_password_is_not_shown(database: str) -> None:
    shown = repr(spec(database=database))
    assert "secret" not in shown
    assert "shop" in shown


def test_a_spec_without_a_condition_has_none() -> None:
    assert spec().condition is None
