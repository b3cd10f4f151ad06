"""Encoding and validation of payloads for publishing."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import InvalidData
from headrace.model.payloads import encode, encode_headers, parallel

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
    for _ in range(100_000):
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
