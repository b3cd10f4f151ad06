"""Keys and filters, with the grammar of NATS subjects."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import InvalidFilter, InvalidInput, InvalidKey
from headrace.model.keys import check_filter, check_filters, check_key, matches
from tests.support.words import filters, keys


def is_key(text: str) -> bool:
    """A second, slow implementation of the grammar."""
    return (
        1 <= len(text.encode()) <= 1024
        and not has_refused(text)
        and all(t not in ("", "*", ">") for t in text.split("."))
    )


def has_refused(text: str) -> bool:
    """Whether a character is a blank or a control character, by the tables of Unicode."""
    return any(char.isspace() or unicodedata.category(char) == "Cc" for char in text)


def is_filter(text: str) -> bool:
    tokens = text.split(".")
    return 1 <= len(text.encode()) <= 1024 and not has_refused(text) and "" not in tokens and ">" not in tokens[:-1]


def naively(wanted: list[str], tokens: list[str]) -> bool:
    """Whether the tokens match, compared one by one."""
    if wanted == [">"]:
        return tokens != []
    if not wanted or not tokens:
        return wanted == tokens
    return wanted[0] in ("*", tokens[0]) and naively(wanted[1:], tokens[1:])


def complaint(check: Callable[[str], str], text: str) -> str:
    """The error message of `check`, which must be one sentence on one line."""
    with pytest.raises(InvalidInput) as caught:
        check(text)
    said = str(caught.value)
    assert "\n" not in said
    assert said[0].isupper()
    assert said[-1] == "."
    assert ". " not in said.replace(repr(text), "")
    assert len(said) < 300
    return said


@given(keys())
def test_every_key_of_the_grammar_is_taken_as_it_is(key: str) -> None:
    assert check_key(key) is key


@given(filters())
def test_every_filter_of_the_grammar_is_taken_as_it_is(text: str) -> None:
    assert check_filter(text) is text


@given(st.text(st.sampled_from("ab.*>\n\0 ü"), max_size=8))
def test_a_key_is_refused_exactly_when_it_breaks_the_grammar(text: str) -> None:
    if is_key(text):
        assert check_key(text) == text
    else:
        complaint(check_key, text)


@given(st.text(st.sampled_from("ab.*>\n\0 ü"), max_size=8))
def test_a_filter_is_refused_exactly_when_it_breaks_the_grammar(text: str) -> None:
    if is_filter(text):
        assert check_filter(text) == text
    else:
        complaint(check_filter, text)


@given(st.data())
def test_matching_agrees_with_a_naive_second_formulation(data: st.DataObject) -> None:
    key = data.draw(keys())
    text = data.draw(filters(among=[key]) | filters())
    assert matches(text, key) == naively(text.split("."), key.split("."))


@given(keys())
def test_a_key_is_a_filter_for_itself_and_the_whole_filter_takes_it(key: str) -> None:
    assert matches(key, key)
    assert matches(">", key)
    assert not matches(key + ".>", key)
    assert matches(key + ".>", key + ".more")


@pytest.mark.parametrize(
    ("filter_", "key", "expected"),
    [
        ("orders.*.42", "orders.us.42", True),
        ("orders.*.42", "orders.us.west.42", False),
        ("orders.>", "orders.us.42", True),
        ("orders.>", "orders", False),
        ("*", "orders", True),
        ("*", "orders.us", False),
        ("*.>", "orders", False),
        ("*.>", "orders.us", True),
        ("a*", "a*", True),
        ("a*", "ab", False),
        ("a.>b", "a.>b", True),
        ("a.>b", "a.c", False),
        ("A", "a", False),
    ],
)
def test_examples_of_matching(filter_: str, key: str, expected: bool) -> None:
    assert matches(filter_, key) is expected


@pytest.mark.parametrize("text", ["a*", "*a", "**", ">>", "a.b>.c", "a.*-", "*%0A.a", "k" * 1024, "ü" * 512])
def test_wildcards_inside_a_longer_token_are_ordinary_characters(text: str) -> None:
    assert check_key(text) == text
    assert check_filter(text) == text


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", "The key is empty: it needs at least one token"),
        (".", "has an empty token: dots part tokens"),
        (".a", "has an empty token"),
        ("a.", "has an empty token"),
        ("a..b", "The key 'a..b' has an empty token"),
        ("*", "has a token that is exactly '*'"),
        ("a.*.b", "has a token that is exactly '*': that is a filter's wildcard, write the real token."),
        ("a.>", "has a token that is exactly '>'"),
        (">.a", "has a token that is exactly '>'"),
        ("k" * 1025, "is longer than 1024 bytes of UTF-8."),
        ("ü" * 513, "is longer than 1024 bytes"),
        ("a\0b", "holds a NUL character, which Postgres can't store: leave it out."),
        (
            "a b",
            "has the character U+0020: blanks and control characters are no part of a key, write '_' or '%20' instead.",
        ),
        ("a.\n", "has the character U+000A"),
        (
            "a\u2028",
            "has the character U+2028: blanks and control characters are no part of a key, write '_' or '%E2%80%A8'",
        ),
        ("a\ud800", "holds half of a surrogate pair"),
    ],
)
def test_a_bad_key_gets_one_clear_sentence(key: str, said: str) -> None:
    assert said in complaint(check_key, key)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "The filter is empty"),
        ("a.>.b", "The filter 'a.>.b' has '>' in the middle: it stands for all the rest"),
        (">.a", "has '>' in the middle"),
        ("a..b", "has an empty token"),
        ("*." * 512 + "*", "is longer than 1024 bytes"),
        ("a\0", "holds a NUL character"),
        ("a b.>", "has the character U+0020: blanks and control characters are no part of a filter"),
        ("\udfff", "holds half of a surrogate pair"),
    ],
)
def test_a_bad_filter_gets_one_clear_sentence(text: str, said: str) -> None:
    assert said in complaint(check_filter, text)


def test_of_all_characters_those_are_refused_that_unicode_calls_space_or_control() -> None:
    """And dots, which make an empty token, wildcards, and halves of surrogate pairs."""
    for char in map(chr, range(sys.maxunicode + 1)):
        refused = has_refused(char) or char in ".*>" or unicodedata.category(char) == "Cs"
        assert refused == (taken(check_key, char) is None), repr(char)


def taken(check: Callable[[str], str], text: str) -> str | None:
    try:
        return check(text)
    except InvalidInput:
        return None


def test_a_value_that_is_no_string_is_named() -> None:
    with pytest.raises(InvalidKey, match="not int"):
        check_key(42)  # type: ignore[arg-type]
    with pytest.raises(InvalidFilter, match="not bytes"):
        check_filter(b"a")  # type: ignore[arg-type]


def test_a_consumer_has_one_filter_or_several_but_not_none() -> None:
    assert check_filters("a.>") == ("a.>",)
    assert check_filters(["a", "b.*"]) == ("a", "b.*")
    with pytest.raises(InvalidFilter, match="'>' takes every message"):
        check_filters([])
    with pytest.raises(InvalidFilter, match="middle"):
        check_filters(["a", "b.>.c"])
