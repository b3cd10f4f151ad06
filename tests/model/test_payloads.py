"""Encoding and validation of payloads for publishing."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.durations import seconds
from headrace.model.errors import InvalidData, InvalidInput
from headrace.model.messages.payloads import encode, encode_headers, parallel, time_to_live, with_expiry

texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\0\\u0"'))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=10,
)


def holds_nul(value: Any) -> bool:
    """Whether any string in the data, field names included, contains a NUL."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(holds_nul(name) or holds_nul(inner) for name, inner in value.items())
    return isinstance(value, list) and any(holds_nul(inner) for inner in value)


@given(values)
def test_data_comes_out_of_its_json_as_it_went_in_unless_a_nul_is_in_it(value: Any) -> None:
    if holds_nul(value):
        with pytest.raises(InvalidData, match="NUL"):
            encode(value)
    else:
        assert json.loads(encode(value)) == value


@given(st.text(st.sampled_from('\\u0"x'), max_size=16))
def test_a_nul_is_found_in_raw_json_however_many_backslashes_stand_before_it(inner: str) -> None:
    text = f'"{inner}"'
    try:
        value = json.loads(text)
    except ValueError:
        return
    if holds_nul(value):
        with pytest.raises(InvalidData, match="NUL"):
            encode(msgspec.Raw(text.encode()))
    else:
        assert encode(msgspec.Raw(text.encode())) == text


def test_structs_and_other_types_of_msgspec_are_encoded() -> None:
    class Order(msgspec.Struct):
        total: int

    assert encode(Order(12)) == '{"total":12}'
    assert encode(msgspec.Raw(b'{"a" :  1}')) == '{"a" :  1}'


def too_deep() -> list[Any]:
    nested: list[Any] = []
    for _ in range(1_000_000):  # from Python 3.14 on, 100,000 fit the stack, and Postgres refuses them
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    "make", [object, lambda: {("a", "b"): 1}, lambda: "\ud800", lambda: msgspec.Raw(b"\xff"), too_deep, lambda: 1j]
)
def test_data_that_json_cannot_hold_gets_one_clear_sentence(make: Any) -> None:
    with pytest.raises(InvalidData, match=r"^The data can't be written as JSON: [^\n]*\.$"):
        encode(make())


def test_headers_are_the_text_of_an_object() -> None:
    assert encode_headers({"trace": "abc"}) == '{"trace":"abc"}'
    assert encode_headers({}) is None
    assert encode_headers(None) is None


@pytest.mark.parametrize(
    ("headers", "expires_in", "text"),
    [
        (None, 60, '{"headrace-expires-in":60}'),
        ("{}", "500ms", '{"headrace-expires-in":0.5}'),
        (' {"a": [1.50]} ', timedelta(minutes=1), '{"a": [1.50],"headrace-expires-in":60}'),
        (None, 3_153_600_000, '{"headrace-expires-in":3153600000}'),
        (None, 0.001, '{"headrace-expires-in":0.001}'),
        ('{"a": 1}', None, '{"a": 1}'),
    ],
)
def test_a_time_to_live_joins_the_headers(headers: str | None, expires_in: Any, text: str) -> None:
    assert with_expiry(headers, expires_in) == text
    if expires_in is not None:
        assert time_to_live(text) == seconds(expires_in)


def test_a_time_to_live_replaces_an_earlier_one() -> None:
    assert time_to_live(with_expiry('{"headrace-expires-in": 7}', 60)) == 60


@pytest.mark.parametrize("expires_in", [0, 0.0004, 3_153_600_001])
def test_a_time_to_live_out_of_range_is_refused(expires_in: float) -> None:
    with pytest.raises(InvalidInput, match="at least a millisecond and at most a hundred years"):
        with_expiry(None, expires_in)


@pytest.mark.parametrize("value", ["0", "-1", "null", "1e3", '"60s"', "[60]", "9" * 500, '"\\ud800"'])
def test_a_time_to_live_that_cant_be_read_is_none(value: str) -> None:
    assert time_to_live(f'{{"headrace-expires-in": {value}}}') is None
    assert time_to_live(f'{{"forwarded": {{"headrace-expires-in": {value}}}}}') is None


@pytest.mark.parametrize("headers", [["a"], "abc", {1: "a"}, 7])
def test_other_headers_are_refused(headers: Any) -> None:
    with pytest.raises(InvalidData, match="Headers are a mapping"):
        encode_headers(headers)


def test_messages_become_parallel_lists() -> None:
    keys, data, headers = parallel([("a", 1), ("b", {"x": 2}, {"h": 3}), ("c", None, None)])
    assert keys == ["a", "b", "c"]
    assert data == ["1", '{"x":2}', "null"]
    assert headers == [None, '{"h":3}', None]


@pytest.mark.parametrize("message", [("a",), ("a", 1, {}, 2), 7, None, ()])
def test_a_message_of_another_shape_is_named_with_its_place(message: Any) -> None:
    with pytest.raises(InvalidData, match=re.escape("Message 1 is not a (key, data) or (key, data, headers) tuple")):
        parallel([("a", 1), message])
