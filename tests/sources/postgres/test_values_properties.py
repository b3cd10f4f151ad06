"""Random values that a real server writes as text are equal after the conversion to JSON."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.sources.postgres.sessions import Session
from tests.support import servers

USER_TYPES = [
    """create type mood as enum ('sad', 'so "so"', 'happy, {very}', '(', 'NULL', '\\')""",
    "create domain positive as int check (value > 0)",
    "create domain tags as text[]",
    'create type inner_one as ("odd, name" int, "say ""b""" text, feel mood)',
    "create domain checked as inner_one",
    """create type deep as (
        a int, b text, c text[], d inner_one, e inner_one[], f float8, g boolean, h positive, i tags, j jsonb, k checked, l mood[],
        m positive[], n numeric, o int[])""",
    'create type textrange as range (subtype = text, collation = "C")',
    "create domain spans as textmultirange",
]

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
texts = st.text(st.one_of(characters, st.sampled_from('"\\{}[](),; \n\t\x01=')), max_size=10)
digits = st.text("0123456789", min_size=1, max_size=400)
numerics = st.tuples(
    st.sampled_from(["", "-"]), digits, st.one_of(st.just(""), digits.map(lambda after: "." + after))
).map("".join)
int4s = st.integers(-(2**31), 2**31 - 1)
moods = st.sampled_from(["sad", 'so "so"', "happy, {very}", "(", "NULL", "\\"])
documents = st.recursive(
    st.none() | st.booleans() | int4s | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


def arrays(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(maybe(strategy), max_size=3)


def canonical(numeric: str) -> str:
    """Return the number as Postgres writes it, without a negative zero and without leading zeros."""
    number = Decimal(numeric)
    return f"{number or number.copy_abs():f}"


inner_ones = st.fixed_dictionaries({"odd, name": maybe(int4s), 'say "b"': maybe(texts), "feel": maybe(moods)})
positives = st.integers(1, 2**31 - 1)
deep_ones = st.fixed_dictionaries(
    {
        "a": maybe(int4s), "b": maybe(texts), "c": maybe(arrays(texts)), "d": maybe(inner_ones), "e": maybe(arrays(inner_ones)),
        "f": maybe(st.floats(allow_nan=False, allow_infinity=False)), "g": maybe(st.booleans()), "h": maybe(positives),
        "i": maybe(arrays(texts)), "j": documents.filter(lambda one: one is not None), "k": maybe(inner_ones), "l": maybe(arrays(moods)),
        "m": maybe(arrays(positives)), "n": maybe(numerics.map(canonical)), "o": maybe(arrays(int4s)),
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def session(server_dsn: str) -> Iterator[Session]:
    with servers.clone(server_dsn, None) as dsn:
        session = Session(dsn)
        for statement in USER_TYPES:
            session.rows(statement)
        yield session
        session.close()


def converted(
    session: Session, type_name: str, given: Sequence[str], expression: str = "x", **settings: str
) -> list[bytes]:
    """Return the JSON of many values together: of `expression` over each text `x`."""
    convert = session.converter(type_name, **settings)
    sql = f"select ({expression})::{type_name} from json_array_elements_text($1::json) with ordinality as t(x, place) order by place"
    rows = session.rows(sql, json.dumps(given))
    return [convert(value) for [value] in rows if value is not None]


def bits(layout: str, value: float) -> bytes:
    return struct.pack(layout, value)


def float_of(text: bytes) -> float:
    return float(json.loads(text))


@given(st.lists(st.floats(), max_size=30))
@example([-0.0, 5e-324, 1.7976931348623157e308])
def test_a_double_keeps_its_every_bit(session: Session, given: list[float]) -> None:
    found = [float_of(one) for one in converted(session, "float8", [repr(one) for one in given])]
    assert [bits("d", one) for one in found if not math.isnan(one)] == [
        bits("d", one) for one in given if not math.isnan(one)
    ]
    assert [math.isnan(one) for one in found] == [math.isnan(one) for one in given]


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=30))
def test_a_single_keeps_its_every_bit(session: Session, given: list[float]) -> None:
    found = [float_of(one) for one in converted(session, "float4", [repr(one) for one in given])]
    assert [bits("f", one) for one in found] == [bits("f", one) for one in given]


@given(st.lists(numerics, max_size=10))
def test_a_numeric_keeps_its_every_digit(session: Session, given: list[str]) -> None:
    expected = list(map(canonical, given))
    assert [json.loads(one) for one in converted(session, "numeric", given)] == expected
    assert [one.decode() for one in converted(session, "numeric", given, numeric="number")] == expected


@given(st.lists(texts, max_size=20))
def test_a_text_is_the_same_text(session: Session, given: list[str]) -> None:
    assert [json.loads(one) for one in converted(session, "text", given)] == given


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_bytes_are_the_same_bytes(session: Session, given: list[bytes]) -> None:
    found = [json.loads(one) for one in converted(session, "bytea", ["\\x" + one.hex() for one in given])]
    assert [bytes.fromhex(one.removeprefix("\\x")) for one in found] == given


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_an_integer_is_the_same_integer(session: Session, given: list[int]) -> None:
    assert [json.loads(one) for one in converted(session, "int8", list(map(str, given)))] == given


@given(st.lists(st.datetimes(timezones=st.just(UTC)), max_size=20))
def test_a_time_is_the_same_time_to_the_microsecond(session: Session, given: list[datetime]) -> None:
    times = [one.isoformat() for one in given]
    assert [datetime.fromisoformat(json.loads(one)) for one in converted(session, "timestamptz", times)] == given
    local = [one.replace(tzinfo=None) for one in given]
    assert [datetime.fromisoformat(json.loads(one)) for one in converted(session, "timestamp", times)] == local


def year_of(iso: str) -> int:
    return int(iso[: iso.index("-", 1)])


@given(st.lists(st.integers(-2_451_545, 2_145_031_548), max_size=20))
def test_a_date_of_any_year_is_the_day_that_it_was(session: Session, given: list[int]) -> None:
    found = [json.loads(one) for one in converted(session, "date", list(map(str, given)), "date '2000-01-01' + x::int")]
    # Python has four-digit years only. The calendar repeats every 400 years, which are 146,097 days.
    cycles = [day // 146_097 for day in given]
    near = [date.fromordinal(date(2000, 1, 1).toordinal() + day % 146_097) for day in given]
    expected = [(day.year + 400 * cycle, f"{day:%m-%d}") for day, cycle in zip(near, cycles, strict=True)]
    assert [(year_of(one), one[-5:]) for one in found] == expected
    assert all(len(one.split("-")[-3]) >= 4 for one in found)
    assert [one[0] in "+-" for one in found] == [not 0 <= year <= 9999 for year, _ in expected]


@given(st.lists(maybe(texts), max_size=8))
def test_an_array_of_texts_has_the_same_elements(session: Session, given: list[str | None]) -> None:
    [found] = converted(session, "text[]", [json.dumps(given)], "array(select json_array_elements_text(x::json))")
    assert json.loads(found) == given


@given(deep_ones)
@example(dict.fromkeys("abcdefghiklmno") | {"j": {}})
def test_a_composite_of_everything_is_the_object_that_it_was_made_of(session: Session, given: dict[str, Any]) -> None:
    [found] = converted(session, "deep", [json.dumps(given)], "json_populate_record(null::deep, x::json)")
    assert json.loads(found) == given


@given(st.lists(deep_ones.map(lambda one: one["d"]), max_size=4))
def test_an_array_of_composites_is_an_array_of_objects(session: Session, given: list[Any]) -> None:
    expression = "array(select case when json_typeof(e) <> 'null' then json_populate_record(null::inner_one, e) end from json_array_elements(x::json) as e)"
    [found] = converted(session, "inner_one[]", [json.dumps(given)], expression)
    assert json.loads(found) == given


BOUNDS = st.sampled_from(["[]", "[)", "(]", "()"])


def in_order(bounds: tuple[str | None, str | None, str]) -> bool:
    low, high, _ = bounds
    return low is None or high is None or low.encode() < high.encode()


@given(st.lists(st.tuples(maybe(texts), maybe(texts), BOUNDS).filter(in_order), max_size=6))
def test_a_range_of_any_texts_has_its_bounds(session: Session, given: list[tuple[str | None, str | None, str]]) -> None:
    expression = "textrange(x::json ->> 0, x::json ->> 1, x::json ->> 2)"
    found = [json.loads(one) for one in converted(session, "textrange", [json.dumps(one) for one in given], expression)]
    # An infinite bound is never inclusive.
    expected = [
        {"lower": low, "upper": high, "bounds": ("(" if low is None else both[0]) + (")" if high is None else both[1])}
        for low, high, both in given
    ]
    assert found == expected


@given(st.lists(texts, unique=True, max_size=8))
def test_a_multirange_is_an_array_of_its_ranges(session: Session, given: list[str]) -> None:
    ends = sorted(given, key=str.encode)[: len(given) // 2 * 2]
    pairs = list(zip(ends[::2], ends[1::2], strict=True))
    ranges = "select range_agg(textrange(r ->> 0, r ->> 1)) from json_array_elements(x::json) as r"
    [found] = converted(session, "spans", [json.dumps(pairs)], f"coalesce(({ranges}), '{{}}')")
    assert json.loads(found) == [{"lower": low, "upper": high, "bounds": "[)"} for low, high in pairs]
