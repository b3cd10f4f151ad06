"""Conditions on content: three ways to write a condition, one tree, and clear errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.conditions import (
    CREATED_AT,
    KEY,
    SEQ,
    And,
    Compare,
    Condition,
    In,
    Match,
    Not,
    Null,
    Or,
    describe,
    encode,
    field,
    matches,
    parse,
)
from headrace.model.errors import InvalidFilter

_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
_steps = st.sampled_from(["a", "b", "0", "-1", "in", "odd key", "", 'q"q', "d.d", "ä", "\n"]) | _texts
_paths = st.lists(_steps, max_size=4).map(lambda steps: "".join('."' + step.replace('"', '""') + '"' for step in steps))
_fields = st.builds(lambda root, path: root + path, st.sampled_from(["data", "headers"]), _paths)
_numbers = st.one_of(
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**50), max_value=10**50),
)
_scalars = st.one_of(_texts, st.booleans(), _numbers)
_zones = st.sampled_from([None, UTC, timezone(timedelta(hours=-11, minutes=30))])
_times = st.builds(
    lambda time, zone: time.replace(tzinfo=zone),
    st.datetimes(datetime.fromisoformat("0002-01-01"), datetime.fromisoformat("9998-01-01")),
    _zones,
)
_leaves = st.one_of(
    st.builds(Compare, _fields, st.sampled_from(["=", "!="]), _scalars),
    st.builds(Compare, _fields, st.sampled_from(["<", "<=", ">", ">="]), _texts | _numbers),
    st.builds(In, _fields, st.sampled_from(["in", "not in"]), st.lists(_scalars, min_size=1, max_size=4)),
    st.builds(Null, _fields, st.sampled_from(["is null", "is not null"])),
    st.builds(Match, _fields, st.just("regex"), _texts),
    st.builds(
        Match, _fields, st.sampled_from(["like", "ilike"]), _texts.map(lambda text: text.replace("\\", "\\\\") + "%")
    ),
    st.builds(Compare, st.just("key"), st.sampled_from(["=", "<"]), _texts),
    st.builds(Compare, st.just("seq"), st.sampled_from(["=", ">="]), st.integers(0, 2**63)),
    st.builds(Compare, st.just("created_at"), st.just(">"), _times),
)
conditions: st.SearchStrategy[Condition] = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Not, inner),
    ),
    max_leaves=8,
)


def refusal(make: Callable[[], Any]) -> str:
    """The error message, which must be one sentence on one printable line."""
    with pytest.raises(InvalidFilter) as caught:
        make()
    said = str(caught.value)
    assert "\n" not in said
    assert said.isprintable()
    assert said[0].isupper()
    assert said[-1] == "."
    assert len(said) < 420
    return said


@given(conditions)
def test_a_condition_described_or_encoded_is_read_as_the_same_again(condition: Condition) -> None:
    for text in (describe(condition), encode(condition)):
        again = parse(text)
        assert again == condition
        assert encode(again) == encode(condition)
    assert parse(json.loads(encode(condition), parse_float=Decimal)) == condition
    assert parse(condition) is condition


@given(st.text(st.sampled_from("da.t 1'\"()=<>!,-enorilkugx\0\ud800\n{}[]:\\"), max_size=30) | _texts)
def test_any_other_text_gets_one_clear_sentence(text: str) -> None:
    try:
        condition = parse(text)
    except InvalidFilter:
        refusal(lambda: parse(text))
    else:
        assert parse(describe(condition)) == condition


def test_three_ways_to_write_the_same() -> None:
    wanted = And((Compare("data.status", "=", "paid"), Compare("data.total", ">", Decimal(100))))
    assert parse("data.status = 'paid' and data.total > 100") == wanted
    assert (field("status") == "paid") & (field("total") > 100) == wanted
    tree = {
        "and": [
            {"field": "data.status", "op": "=", "value": "paid"},
            {"field": "data.total", "op": ">", "value": 100},
        ]
    }
    assert parse(tree) == wanted
    assert json.loads(encode(wanted)) == tree


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("data.a = 1 or data.b = 2 and data.c = 3", {"or": ["a", {"and": ["b", "c"]}]}),
        ("(data.a = 1 or data.b = 2) and data.c = 3", {"and": [{"or": ["a", "b"]}, "c"]}),
        ("not data.a = 1 and data.b = 2", {"and": [{"not": "a"}, "b"]}),
        ("not (data.a = 1 and data.b = 2)", {"not": {"and": ["a", "b"]}}),
        ("not not data.a = 1", {"not": {"not": "a"}}),
        ("(data.a=1 and ((data.b=2)))and data.c=3", {"and": ["a", "b", "c"]}),
        ("data.a = 1 OR\n\tdata.b = 2 Or data.c = 3", {"or": ["a", "b", "c"]}),
    ],
)
def test_not_binds_closer_than_and_and_and_closer_than_or(text: str, tree: Any) -> None:
    leaves = {name: parse(f"data.{name} = {value}") for value, name in enumerate("abc", 1)}

    def built(node: Any) -> Any:
        if isinstance(node, str):
            return leaves[node]
        return {word: [*map(built, part)] if isinstance(part, list) else built(part) for word, part in node.items()}

    assert parse(text) == parse(built(tree))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data.x = 'it''s'", Compare("data.x", "=", "it's")),
        ("data.x<>-1.50e3", Compare("data.x", "!=", Decimal(-1500))),
        ("data.x = 0.1", Compare("data.x", "=", Decimal("0.1"))),
        ("data.x = TRUE", Compare("data.x", "=", True)),
        ("data.x in ('a', 1, false)", In("data.x", "in", ("a", Decimal(1), False))),
        ("data.x not in (1)", In("data.x", "not in", (Decimal(1),))),
        ("data.x is null", Null("data.x", "is null")),
        ("data.x IS NOT NULL", Null("data.x", "is not null")),
        ("data.x regex '^a'", Match("data.x", "regex", "^a")),
        ("data.x ilike 'a\\%%'", Match("data.x", "ilike", "a\\%%")),
        ("data.items.0.sku = 'a'", Compare("data.items.0.sku", "=", "a")),
        ("data.items.-1 = 'a'", Compare("data.items.-1", "=", "a")),
        ('data."odd key".c = 1', Compare('data."odd key".c', "=", Decimal(1))),
        ('data."plain" = 1', Compare("data.plain", "=", Decimal(1))),
        ('data."say ""hi""" = 1', Compare('data."say ""hi"""', "=", Decimal(1))),
        ("data.and.in.null = 1", Compare("data.and.in.null", "=", Decimal(1))),
        ("headers.content-type = 'a'", Compare("headers.content-type", "=", "a")),
        ("data.größe = 1", Compare("data.größe", "=", Decimal(1))),
        ("data = 1", Compare("data", "=", Decimal(1))),
        ("headers is null", Null("headers", "is null")),
        ("key like 'orders.%'", Match("key", "like", "orders.%")),
        ("seq >= 10", Compare("seq", ">=", Decimal(10))),
        ("created_at < '2030-01-31'", Compare("created_at", "<", "2030-01-31T00:00:00+00:00")),
        ("created_at < '2030-01-31T12:00:00+02:00'", Compare("created_at", "<", "2030-01-31T10:00:00+00:00")),
    ],
)
def test_examples_of_the_text(text: str, expected: Condition) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("", "at its end", "a test begins with a field"),
        ("total > 5", "at character 1 (▶total", "the field 'total' is unknown, write data.total"),
        ("DATA.x = 1", "at character 1", "is unknown"),
        ("key.a = 1", "at character 1", "write data.key.a"),
        ("data.total = null", "at character 12 (data.total ▶= null)", "write `data.total is null`"),
        ("data.total != null", "at character 12", "write `data.total is not null`"),
        ("data.x == 4", "at character 8", "write a single ="),
        ('data.x = "a"', "at character 10", "a string is in single quotes"),
        ("data.x = paid", "at character 10", "write 'paid' in single quotes"),
        ("data.x like 5", "at character 13", "`like` needs its pattern as a string"),
        ("data.x = 'abc", "at character 10 (data.x = ▶'abc)", "this string is never closed"),
        ("data.x = 1 rest", "at character 12 (data.x = 1 ▶rest)", "write `and` or `or`"),
        ("data.x = 1)", "at character 11", "never opened"),
        ("(data.x = 1", "at its end", "close the parenthesis"),
        ("data..x = 1", "at character 5", "no empty step"),
        ("data.x ~ 'a'", "at character 8", "write `regex`"),
        ("data.x contains 'a'", "at character 8", "the operator is unknown, write =, !=,"),
        ("data.x between 1 and 2", "at character 8", "write `data.x >= … and data.x <= …`"),
        ("data.x not like 'a'", "at character 8", "which takes messages without the field as well"),
        ("data.ok", "at its end", "a field alone is not a test"),
        ("data.ok and data.x = 1", "at character 9", "a field alone is not a test"),
        ("100 < data.total", "at character 1", "a test begins with its field"),
        ("data.x > true", "at character 10", "true and false have no order"),
        ("data.x > 1e999", "at character 10", "a power of ten from -400 to 400"),
        ("data.x > " + "9" * 5000, "at character 10", "at most 400 digits"),
        ("data.x = 01", "at character 10", "written as in JSON"),
        ("data.x = .5", "at character 10", "a field has a root"),
        ("data.x in ()", "at character 12", "a value belongs here"),
        ("data.x in (1, null)", "at character 15", "null can't be in a list"),
        ("data.x in 1", "at character 11", "in parentheses"),
        ("data.x in (" + "1," * 1000 + "1)", "at character 8", "from 1 to 1,000 values"),
        ("data.x is true", "at character 11", "only `null` or `not null`"),
        ("data.x like 'a\\'", "at character 13", "a backslash that escapes nothing"),
        ("data.x regex '" + "a" * 1001 + "'", "at character 14", "longer than 1,000 characters"),
        ("key > 5", "at character 7", "key is a string"),
        ("key is null", "at character 1", "key is never null"),
        ("seq = '5'", "at character 7", "seq is a number"),
        ("seq like '5'", "at character 10", "`like` is for strings"),
        ("created_at > 'yesterday'", "at character 14", "such as '2030-01-31T12:00:00Z'"),
        ("created_at > 5", "at character 14", "such as '2030-01-31T12:00:00Z'"),
        ("data.x = 'a\0'", "at character 10", "holds a NUL character"),
        ("data.x = '\ud800'", "at character 10", "half of a surrogate pair"),
        ("(" * 1000, "at character", "nested more than 32 deep"),
        ("not " * 1000 + "data.x = 1", "at character", "nested more than 32 deep"),
        (" or ".join(["data.x = 1"] * 501), "at character 1 ", "more than 500 tests"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_a_text_that_is_no_condition_gets_the_place_and_what_would_be_right(text: str, at: str, said: str) -> None:
    found = refusal(lambda: parse(text))
    assert at in found
    assert said in found


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (5, "not 5"),
        (None, "not None"),
        ({}, 'must be {"field"'),
        ({"and": []}, 'must be {"field"'),
        ({"and": [{"field": "data.x", "op": "is null"}], "or": []}, 'must be {"field"'),
        ({"and": [{"field": "data.x", "op": "is null"}, {"not": 5}]}, "at and[1].not must be"),
        ({"field": "x", "op": "is null"}, "write data.x"),
        ({"field": "data.x", "op": "=="}, "has the operator '==': write one of =, !=,"),
        ({"field": "data.x", "op": ["="]}, "has the operator"),
        ({"field": "data.x", "op": "="}, "must have exactly field, op, value"),
        ({"field": "data.x", "op": "is null", "value": None}, "must have exactly field, op"),
        ({"field": "data.x", "op": "=", "value": None}, "write `data.x is null`"),
        ({"field": "data.x", "op": "=", "value": float("nan")}, "a number has"),
        ({"field": "data.x", "op": "=", "value": 10**5000}, "a number has"),
        ({"field": "data.x", "op": "=", "value": {"a": 1}}, "a string, a number, true or false"),
        ({"field": "data.x", "op": "=", "value": [1]}, "write `in` for several"),
        ({"field": "data.x", "op": "in", "value": 1}, "needs a list of values"),
        ({"field": 5, "op": "is null"}, "a field is text"),
        ({"field": "data.x", "op": "like", "value": 1}, "needs its pattern as a string"),
        ('{"field": "data.x"', "is not JSON"),
        ('{"not":' * 5000, "is not JSON"),
        ('{"not":' * 50 + "1" + "}" * 50, "nested more than 32 deep"),
        ({"field": "data.x", "op": "in", "value": ["x" * 200] * 1000}, "longer than 100,000 bytes"),
        ("data.x = '" + "x" * 100_000, "longer than 100,000 characters"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_an_invalid_tree_gets_the_place_of_the_error(value: Any, said: str) -> None:
    assert said in refusal(lambda: parse(value))


def test_conditions_in_python() -> None:
    assert parse("data.a.b in ('x', 1)") == field("a.b").in_(["x", 1])
    assert parse("data.a not in (true)") == field("a").not_in({True})
    assert parse("data.a is null or data.b is not null") == field("a").is_null() | field("b").is_not_null()
    assert parse("not data.a like 'x%'") == ~field("a").like("x%")
    assert parse("data.a ilike 'x%' and data.a regex 'x'") == field("a").ilike("x%") & field("a").matches("x")
    assert parse("data.a >= 0.1 and data.a <= 1 and data.a < 2 and data.a != 3") == (
        (field("a") >= 0.1) & (field("a") <= Decimal(1)) & (field("a") < 2) & (field("a") != 3)
    )
    assert parse('data."odd key" = 1') == (field('"odd key"') == 1)
    time = datetime(2030, 1, 31, 14, tzinfo=timezone(timedelta(hours=2)))
    built = (KEY == "k") & (SEQ > 5) & (CREATED_AT > time)  # noqa: SIM300
    assert describe(built) == "key = 'k' and seq > 5 and created_at > '2030-01-31T12:00:00+00:00'"
    without_zone = CREATED_AT > datetime.fromisoformat("2030-01-31")  # noqa: SIM300
    assert describe(without_zone) == "created_at > '2030-01-31T00:00:00+00:00'"


def test_a_field_is_one_of_the_data_unless_it_names_data_or_headers_as_its_root() -> None:
    assert describe(field("total") == 1) == "data.total = 1"
    assert describe(field("data.total") == 1) == "data.total = 1"
    assert describe(field("headers.trace") == "x") == "headers.trace = 'x'"
    assert describe(field("data.headers.x") == 1) == "data.headers.x = 1"
    assert describe(field("headers") == 1) == "data.headers = 1"
    assert describe(field("key") == 1) == "data.key = 1"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: bool(field("a") == 1), "join conditions by `&` and `|`"),
        (lambda: (field("a") == 1) and (field("b") == 2), "join conditions by `&` and `|`"),
        (lambda: not (field("a") == 1), "turn one round by `~`"),  # noqa: SIM201
        (lambda: 1 < field("a") < 5, "join conditions by `&` and `|`"),
        (lambda: field("a") == 1 & field("b") == 2, "in parentheses"),
        (lambda: ~field("a"), "is compared with nothing"),
        (lambda: field("a") or 1, "is compared with nothing"),
        (lambda: (field("a") == 1) & True, "True is not a condition"),
        (lambda: True | (field("a") == 1), "True is not a condition"),
        (lambda: field("a") == field("b"), "not with another field"),  # type: ignore[operator]
        (lambda: field("a") == None, "write `data.a is null`"),  # noqa: E711
        (lambda: field("a") == datetime.fromisoformat("2030-01-01"), "JSON has no times"),
        (lambda: field("a").in_([]), "from 1 to 1,000 values, not 0"),
        (lambda: field("a").in_("abc"), "needs a list of values"),
        (lambda: field("a b") == 1, "put odd ones in double quotes"),
        (lambda: field("") == 1, "has a bad step"),
        (lambda: field(5), "a field is text"),  # type: ignore[arg-type]
        (lambda: field(".".join("a" * 40)) == 1, "more than 32 steps"),
        (lambda: SEQ == "5", "seq is a number"),
        (lambda: SEQ.is_null(), "seq is never null"),
    ],
)
def test_a_slip_in_python_is_refused_and_never_a_wrong_condition(make: Callable[[], Any], said: str) -> None:
    assert said in refusal(make)


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("data.x = 1", ['{"x": 1}', '{"x": 1.0}', '{"x": 10e-1}'], ['{"x": "1"}', '{"x": true}', '{"x": null}', "{}", "[]", "1"]),
        ("data.x != 1", ['{"x": 2}', '{"x": "1"}', '{"x": {}}'], ['{"x": 1.0}', '{"x": null}', "{}"]),
        ("data.x not in (1, 'a')", ['{"x": "b"}', '{"x": []}'], ['{"x": "a"}', '{"x": null}', "{}"]),
        ("not data.x = 1", ["{}", '{"x": null}', '{"x": "1"}'], ['{"x": 1}']),
        ("data.x > 5", ['{"x": 6}', '{"x": 1e400000}'], ['{"x": 5}', '{"x": "6"}', '{"x": -1e400000}']),
        ("data.x = true", ['{"x": true}'], ['{"x": "true"}', '{"x": 1}', '{"x": false}']),
        ("data.x is null", ["{}", '{"x": null}', "[]", "null", '{"x": "\\ud800"}'], ['{"x": 0}', '{"x": "null"}']),
        ("data.x.0.y = 'a'", ['{"x": [{"y": "a"}]}', '{"x": {"0": {"y": "a"}}}'], ['{"x": {"y": "a"}}', '{"x": []}']),
        ("data.x.-1 = 3", ['{"x": [1, 2, 3]}'], ['{"x": [3, 2, 1]}', '{"x": []}']),
        ("data.x = 2", ['{"x": 1, "x": 2}'], ['{"x": 2, "x": 1}']),
        ("data.x ilike 'a_C%'", ['{"x": "ABCD"}'], ['{"x": "bAbc"}', '{"x": "ac"}', '{"x": 5}']),
        ("data.x like 'ä\\%'", ['{"x": "\\u00e4%"}'], ['{"x": "\\u00c4%"}', '{"x": "äa"}']),
        ("data = 5", ["5", " 5.0 "], ['"5"', "[5]"]),
    ],
)  # fmt: skip
def test_examples_of_judging(text: str, yes: list[str], no: list[str]) -> None:
    assert [matches(parse(text), "k", data) for data in yes + no] == [True] * len(yes) + [False] * len(no)
