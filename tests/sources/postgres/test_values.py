"""Conversions of a value's text to JSON, listed one by one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.postgres.values import TypeInfo, converter

TYPES = {
    info.oid: info
    for info in [
        TypeInfo(1007, "_int4", "array", 23),
        TypeInfo(1009, "_text", "array", 25),
        TypeInfo(1020, "_box", "array", 603, ";"),
        TypeInfo(1022, "_float8", "array", 701),
        TypeInfo(1185, "_timestamptz", "array", 1184),
        TypeInfo(3904, "int4range", "range", 23),
        TypeInfo(3910, "tstzrange", "range", 1184),
        TypeInfo(4451, "int4multirange", "multirange", 3904),
        TypeInfo(20000, "positive", "domain", 23),
        TypeInfo(20001, "_positive", "array", 20000),
        TypeInfo(20002, "pair", "composite", attributes=(("a", 23), ('say "b"', 25))),
        TypeInfo(20003, "_pair", "array", 20002),
        TypeInfo(20004, "pairs", "domain", 20003),
        TypeInfo(20005, "holder", "composite", attributes=(("pairs", 20003), ("span", 3910), ("inner", 20002))),
        TypeInfo(20006, "textrange", "range", 25),
        TypeInfo(20007, "textmultirange", "multirange", 20006),
        TypeInfo(20008, "nothing", "composite"),
        TypeInfo(20009, "lone", "composite", attributes=(("only", 25),)),
        TypeInfo(20010, "mood", "enum"),
    ]
}

EXPECTED: list[tuple[int, str, str]] = [
    (16, "t", "true"),
    (16, "f", "false"),
    (17, "\\x6869", '"\\\\x6869"'),
    (20, "-9223372036854775808", "-9223372036854775808"),
    (22, "", "[]"),
    (22, "1 -2 3", "[1,-2,3]"),
    (25, 'a "b" \\ \n é', '"a \\"b\\" \\\\ \\n é"'),
    (114, ' {"a" : 1} ', ' {"a" : 1} '),
    (701, "1e-300", "1e-300"),
    (701, "-0", "-0.0"),
    (701, "NaN", '"NaN"'),
    (701, "-Infinity", '"-Infinity"'),
    (1700, "0.10", '"0.10"'),
    (1700, "NaN", '"NaN"'),
    (1082, "2023-10-15", '"2023-10-15"'),
    (1082, "0044-03-15 BC", '"-0043-03-15"'),
    (1082, "0001-03-15 BC", '"0000-03-15"'),
    (1082, "4714-11-24 BC", '"-4713-11-24"'),
    (1082, "10000-01-01", '"+10000-01-01"'),
    (1082, "5874897-12-31", '"+5874897-12-31"'),
    (1082, "infinity", '"infinity"'),
    (1082, "-infinity", '"-infinity"'),
    (1083, "14:30:00", '"14:30:00"'),
    (1114, "2023-10-15 14:30:00.5", '"2023-10-15T14:30:00.5"'),
    (1114, "0044-03-15 12:00:00 BC", '"-0043-03-15T12:00:00"'),
    (1114, "12345-06-07 08:09:10", '"+12345-06-07T08:09:10"'),
    (1114, "infinity", '"infinity"'),
    (1184, "2023-10-15 14:30:00.123456+00", '"2023-10-15T14:30:00.123456Z"'),
    (1184, "0044-03-15 12:00:00+00 BC", '"-0043-03-15T12:00:00Z"'),
    (1184, "294276-12-31 23:59:59.999999+00", '"+294276-12-31T23:59:59.999999Z"'),
    (1184, "-infinity", '"-infinity"'),
    (1186, "P1Y2M", '"P1Y2M"'),
    (1266, "14:30:00+02", '"14:30:00+02:00"'),
    (1266, "14:30:00.5-05:30", '"14:30:00.5-05:30"'),
    (2950, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"'),
    (1007, "{}", "[]"),
    (1007, "{1,NULL,-3}", "[1,null,-3]"),
    (1007, "[0:1][2:3]={{1,2},{3,4}}", "[[1,2],[3,4]]"),
    (1009, '{a,NULL,"NULL","",  "b \\"c\\" \\\\ {d},"}'.replace("  ", ""), '["a",null,"NULL","","b \\"c\\" \\\\ {d},"]'),
    (1009, '[5:5]={"x=y"}', '["x=y"]'),
    (1009, "{x=y}", '["x=y"]'),
    (1020, "{(1,2),(0,0);(3,4),(1,1)}", '["(1,2),(0,0)","(3,4),(1,1)"]'),
    (1022, "{1.5,NaN,NULL,-Infinity}", '[1.5,"NaN",null,"-Infinity"]'),
    (1185, '{"2023-10-15 14:30:00+00",infinity}', '["2023-10-15T14:30:00Z","infinity"]'),
    (3904, "[1,5)", '{"lower":1,"upper":5,"bounds":"[)"}'),
    (3904, "(,)", '{"lower":null,"upper":null,"bounds":"()"}'),
    (3904, "empty", '{"lower":null,"upper":null,"bounds":"empty"}'),
    (3910, '["2023-01-01 00:00:00+00",)', '{"lower":"2023-01-01T00:00:00Z","upper":null,"bounds":"[)"}'),
    (4451, "{}", "[]"),
    (4451, "{(,1),[3,4)}", '[{"lower":null,"upper":1,"bounds":"()"},{"lower":3,"upper":4,"bounds":"[)"}]'),
    (20000, "7", "7"),
    (20001, "{1,2}", "[1,2]"),
    (20002, '(1,"two ""2""")', '{"a":1,"say \\"b\\"":"two \\"2\\""}'),
    (20002, "(,)", '{"a":null,"say \\"b\\"":null}'),
    (20002, '(1,"")', '{"a":1,"say \\"b\\"":""}'),
    (20002, "(1,x,new)", '"(1,x,new)"'),
    (20002, "(1)", '"(1)"'),
    (20004, '{"(1,\\"a b\\")",NULL,"(,)"}', '[{"a":1,"say \\"b\\"":"a b"},null,{"a":null,"say \\"b\\"":null}]'),
    (
        20005,
        '("{""(1,\\\\""a b\\\\"")""}","[""2023-01-01 00:00:00+00"",)","(2,)")'.replace('""2023-01-01 00:00:00+00""', '""""2023-01-01 00:00:00+00""""').replace('""""', '""'),
        '{"pairs":[{"a":1,"say \\"b\\"":"a b"}],"span":{"lower":"2023-01-01T00:00:00Z","upper":null,"bounds":"[)"},"inner":{"a":2,"say \\"b\\"":null}}',
    ),
    (20006, '["","a,b""\\\\)"]', '{"lower":"","upper":"a,b\\"\\\\)","bounds":"[]"}'),
    (20007, '{["",a),["b ]","c,"]}', '[{"lower":"","upper":"a","bounds":"[)"},{"lower":"b ]","upper":"c,","bounds":"[]"}]'),
    (20008, "()", "{}"),
    (20009, "()", '{"only":null}'),
    (20009, '("a")', '{"only":"a"}'),
    (20010, 'so "so"', '"so \\"so\\""'),
    (99999, "of nobody knows what", '"of nobody knows what"'),
]  # fmt: skip


@pytest.mark.parametrize(("oid", "text", "expected"), EXPECTED)
def test_the_text_of_a_value_becomes_this_json(oid: int, text: str, expected: str) -> None:
    assert converter(oid, TYPES)(text.encode()).decode() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.10", "0.10"), ("-" + "9" * 1000, "-" + "9" * 1000), ("NaN", '"NaN"'), ("Infinity", '"Infinity"')],
)
def test_a_numeric_may_be_a_number_with_all_its_digits(text: str, expected: str) -> None:
    assert converter(1700, TYPES, numeric="number")(text.encode()).decode() == expected


def test_a_numeric_in_an_array_is_what_others_are() -> None:
    types = {1231: TypeInfo(1231, "_numeric", "array", 1700)}
    assert converter(1231, types, numeric="number")(b"{1.50,NaN}") == b'[1.50,"NaN"]'
    assert converter(1231, types)(b"{1.50,NaN}") == b'["1.50","NaN"]'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'"\u0000"', r'"\ufffd"'),
        (r'"\\u0000"', r'"\\u0000"'),
        (r'"\\\u0000"', r'"\\\ufffd"'),
        (r'"\ud83d\ude00"', r'"\ud83d\ude00"'),
        (r'"\ud83d"', r'"\ufffd"'),
        (r'"\ude00\ud83d"', r'"\ufffd\ufffd"'),
        (r'"\uD83D\\uDE00"', r'"\ufffd\\uDE00"'),
        (r'"\u00e9\n"', r'"\u00e9\n"'),
    ],
)
def test_an_escape_in_json_that_stands_for_no_character_is_replaced(text: str, expected: str) -> None:
    assert converter(114, {})(text.encode()).decode() == expected


@given(st.binary())
def test_a_string_of_any_bytes_becomes_json_with_what_is_no_utf8_replaced(value: bytes) -> None:
    assert json.loads(converter(25, {})(value)) == value.decode(errors="replace")


@given(st.lists(st.one_of(st.none(), st.binary(max_size=8).map(lambda value: value.replace(b"\0", b"")))))
def test_bytes_that_are_no_utf8_may_be_anywhere_in_an_array(values: list[bytes | None]) -> None:
    quoted = [
        b"NULL" if one is None else b'"' + one.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"' for one in values
    ]
    expected = [None if one is None else one.decode(errors="replace") for one in values]
    assert json.loads(converter(1009, TYPES)(b"{" + b",".join(quoted) + b"}")) == expected


def test_json_that_is_no_utf8_stays_json() -> None:
    assert json.loads(converter(114, {})(b'{"caf\xe9": "\xff"}')) == {"caf\ufffd": "\ufffd"}


@pytest.mark.parametrize("unit", [b"x", b'\\"', b"\\\\", "é".encode()])
def test_a_long_text_in_an_array_in_a_composite_is_converted(unit: bytes) -> None:
    value = unit * 1_000_000
    assert json.loads(converter(1009, TYPES)(b'{"' + value + b'"}')) == [json.loads(b'"' + value + b'"')]
    composite = b'("' + value.replace(b'\\"', b'""') + b'")'
    assert json.loads(converter(20009, TYPES)(composite)) == {"only": json.loads(b'"' + value + b'"')}
