"""Keys of captured messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import ConfigurationError
from headrace.model.keys import check_key
from headrace.sources.postgres import table_names
from headrace.sources.postgres.pgoutput.messages import Insert
from headrace.sources.postgres.rules.keys import RowKeyTemplate
from headrace.sources.postgres.values import TypeInfo
from tests.sources.postgres.tables_for_tests import Shaped

DOMAIN = TypeInfo(oid=90_001, name="amount", kind="domain", element=20, delimiter=",", attributes=())
ARRAY = TypeInfo(oid=1007, name="_int4", kind="array", element=23, delimiter=",", attributes=())
TYPES = {DOMAIN.oid: DOMAIN, ARRAY.oid: ARRAY}


def key(type_oid: int, value: bytes, template: str | None = None, mode: str = "changes") -> str:
    shaped = Shaped((("id", type_oid),), key=("id",), types=TYPES, mode=mode, key_template=template)
    shaped.take(Insert(1, [value]))
    return shaped.keys[0].removeprefix("public.orders.")


@pytest.mark.parametrize(
    ("type_oid", "value", "token"),
    [
        (20, b"-5", "-5"),
        (16, b"t", "true"),
        (25, b"plain", "plain"),
        (25, b"a.b*c>d e", "a_b_c_d_e"),
        (25, "ünï🐘".encode(), "ünï🐘"),
        (25, b"", "_"),
        (25, b"\xff", "\N{REPLACEMENT CHARACTER}"),
        (1700, b"10.50", "10_50"),
        (1700, b"NaN", "NaN"),
        (701, b"1.5", "1_5"),
        (701, b"-Infinity", "-Infinity"),
        (2950, b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        (1082, b"2023-10-15", "2023-10-15"),
        (1184, b"2023-10-15 14:30:00.5+00", "2023-10-15T14:30:00_5Z"),
        (17, b"\\x6869", "\\x6869"),
        (3802, b'{"a": 1}', '{"a":1}'),
        (3802, b"null", "_"),
        (1007, b"{1,2}", "[1,2]"),
        (DOMAIN.oid, b"7", "7"),
        (123_456, b"anything", "anything"),
    ],
)
def test_a_value_is_one_token_in_the_form_that_it_has_in_the_message(type_oid: int, value: bytes, token: str) -> None:
    assert key(type_oid, value) == token


def test_a_value_that_is_too_long_is_replaced_by_its_hash() -> None:
    # head -c 97 /dev/zero | tr '\0' x | sha256sum
    assert key(25, b"x" * 97) == "19A8F07EEB7F3D0C0B7377E37D72ECCDE144CEFEB44BEAC9C3227131A526688D"


@pytest.mark.parametrize(
    ("template", "made"),
    [
        ("fixed", "fixed"),
        ("{record.id}", '{"a_b":[1,"x y"],"c":true}'.replace(" ", "_")),
        ("x.{record.id.c}", "x.true"),
        ('x.{record.id."a.b".1}', "x.x_y"),
        ("x.{record.id.nope.deeper}", "x._"),
        ("{name}.{schema}.{table}", "shop.public.orders"),
        ("{name}-{table}.{record.id.c}{record.id.c}", "shop-orders.truetrue"),
    ],
)
def test_a_template_reads_columns_and_into_them(template: str, made: str) -> None:
    assert key(3802, b'{"a.b": [1, "x y"], "c": true}', template) == made


def test_a_template_knows_its_columns() -> None:
    template = RowKeyTemplate('{table}.{record.a.b}.{record."Odd Col"}.{record.a}')
    assert template.columns == ("a", "Odd Col")
    assert template.of_table
    assert not RowKeyTemplate("{schema}.{record.table}").of_table


@pytest.mark.parametrize(
    "template",
    ["", "a..b", "{", "{record}", "{record.}", "{record..a}", "{record.a.}", "{recorda}", "{body.a}", "{action}", "{Table}",
     "{records.a}", '{record.""}', "{name.x}", ".".join(["{name}"] * 9), "x" * 300, 5],
)  # fmt: skip
def test_a_template_that_makes_no_keys_is_refused_in_a_sentence(template: Any) -> None:
    with pytest.raises(ConfigurationError, match="key template") as refused:
        RowKeyTemplate(template)
    assert "\n" not in str(refused.value)


VALUES = st.text(st.characters(exclude_characters="\0"), max_size=110) | st.text("a._ *>~0123456789ABCDEF", max_size=40)


@given(rows=st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=8), grouped=st.booleans())
def test_the_key_is_valid_for_all_values(rows: list[tuple[str, str]], grouped: bool) -> None:
    settings: dict[str, Any] = {"group": ("b", "a")} if grouped else {"mode": "rows"}
    shaped = Shaped((("a", 25), ("b", 1043)), key=("a", "b"), **settings)
    for row in rows:
        shaped.take(Insert(1, [value.encode("utf-8", "replace") for value in row]))
    assert all(check_key(key) == key and key.count(".") == 3 for key in shaped.keys)


@given(rows=st.sets(st.tuples(VALUES, VALUES), min_size=2, max_size=8))
def test_rows_never_share_a_key(rows: set[tuple[str, str]]) -> None:
    shaped = Shaped((("a", 25), ("b", 1043)), key=("a", "b"), mode="rows")
    encoded = {tuple(value.encode("utf-8", "replace") for value in row) for row in rows}
    for row in encoded:
        shaped.take(Insert(1, list(row)))
    assert len(set(shaped.keys)) == len(encoded)


def test_not_even_a_row_with_the_key_of_another_row() -> None:
    odd = key(25, b"a.b", mode="rows")
    assert odd.startswith("a_b~")
    assert key(25, odd.encode(), mode="rows") != odd
    long = key(25, b"x" * 97, mode="rows")
    assert key(25, b"x" * 98, mode="rows") != long
    assert len(long) <= 96


def test_a_primary_key_of_many_long_columns_makes_a_key_that_is_not_too_long() -> None:
    columns = tuple((f"c{n}", 25) for n in range(32))
    shaped = Shaped(columns, key=tuple(name for name, _ in columns))
    for last in (b"y", b"z"):
        shaped.take(Insert(1, [b"x" * 90] * 31 + [last]))
    first, second = map(check_key, shaped.keys)
    assert first != second
    assert first.startswith("public.orders.")


# --- names of tables


@pytest.mark.parametrize(
    ("written", "parts", "canonical"),
    [
        ("public.orders", ("public", "orders"), "public.orders"),
        ('"public"."orders"', ("public", "orders"), "public.orders"),
        ('public."Odd.Name"', ("public", "Odd.Name"), 'public."Odd.Name"'),
        ('"a""b".c$1', ('a"b', "c$1"), '"a""b"."c$1"'),
        ("sales.order", ("sales", "order"), 'sales."order"'),
        ("verkäufe.größe", ("verkäufe", "größe"), '"verkäufe"."größe"'),
    ],
)
def test_a_name_is_read_as_sql_reads_it(written: str, parts: tuple[str, str], canonical: str) -> None:
    assert table_names.split(written) == parts
    assert table_names.canonical(written) == canonical
    assert table_names.canonical(canonical) == canonical


@given(schema=st.text(min_size=1, max_size=20), table=st.text(min_size=1, max_size=20))
def test_any_name_can_be_written(schema: str, table: str) -> None:
    if "\0" not in schema + table and (schema + table).encode("utf-8", "replace").decode() == schema + table:
        assert table_names.split(table_names.joined(schema, table)) == (schema, table)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("orders", r"such as public\.orders"),
        ("public.Orders", r'Write public\."Orders" .*or public\.orders'),
        ("a.b.c", r"Write public\.orders"),
        ("", r"Write public\.orders"),
        ('public."', r"Write public\.orders"),
        ('public.""', r"Write public\.orders"),
        ("public.1st", r"Write public\.orders"),
        ('public."a\0"', "bytes of text"),
        ('public."\ud800"', "bytes of text"),
        (f'public."{"x" * 256}"', "255 bytes"),
        (None, r"Write public\.orders"),
    ],
)
def test_an_invalid_name_is_refused_in_a_sentence(written: Any, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        table_names.split(written)
