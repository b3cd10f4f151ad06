"""Patterns of conditions mean the same in Python, as sources evaluate them, and in Postgres, as consumers do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.model.conditions.patterns import UnsupportedPattern, compiled

ALPHABET = "aAbBzZ_019 -\n\t\r.,]}{[()^$*+?|\\/:&~#'éßıſKÅ😀"
"""Characters of texts and patterns: also those that Python's or Postgres's syntax, or folding of case, treat specially."""

CLASSES = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word", "xdigit",
]  # fmt: skip

# The alphabet of the texts that a run of the test makes. A pattern often matches, since both have few characters.
texts = st.text(st.sampled_from("aAbB_0 -\né]"), max_size=8) | st.text(st.sampled_from(ALPHABET), max_size=5)
_character = st.sampled_from("aAbB_0 -/,:&~#'}é😀\n\t") | st.sampled_from(
    [r"\.", r"\\", r"\[", r"\]", r"\(", r"\{", r"\-", r"\n", r"\t", "{", "]"]
)
_shorthand = st.sampled_from([rf"\{letter}" for letter in "dswDSW"])
_constraint = st.sampled_from(["^", "$", r"\A", r"\Z", r"\y", r"\Y", r"\m", r"\M"])
_class = st.sampled_from(CLASSES).map("[:{}:]".format)
_inside = st.sampled_from(list("aAbBz_019 .,^$*+?|()é😀&~[\n")) | st.sampled_from([r"\]", r"\\", r"\-", r"\n"])
_range = st.sampled_from(["a-b", "A-z", "0-9", "W-c", " -~", "!-é", r"\t-\r", r"\--a"])
_bracket = st.builds(
    "[{}{}{}{}]".format,
    st.sampled_from(["", "^"]), st.sampled_from(["", "", "]", "-"]),
    st.lists(_inside | _range | _class | _shorthand, min_size=1, max_size=4).map("".join), st.sampled_from(["", "", "-"]),
)  # fmt: skip
_quantifier = st.sampled_from(["*", "+", "?", "{2}", "{0}", "{1,2}", "{2,}", "{0,7}", "*?", "+?", "??", "{1,2}?"])


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.builds("{}{})".format, st.sampled_from(["(", "(?:"]), inner)
    atom = _character | _shorthand | _bracket | st.just(".") | group
    piece = st.builds(str.__add__, atom, _quantifier | st.just("")) | atom | _constraint
    branch = st.lists(piece, max_size=4).map("".join)
    return st.lists(branch, min_size=1, max_size=3).map("|".join)


patterns = st.builds(
    str.__add__, st.sampled_from(["", "", "(?i)"]), st.recursive(_character, _nested, max_leaves=6)
) | st.text(st.sampled_from(ALPHABET + "mMyYdDwW:i=!<>" + "[]{}()|*\\"), max_size=10)  # fmt: skip


@pytest.fixture(scope="module")
def postgres(server_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        yield connection


def _matches(postgres: psycopg.Connection[Any], op: str, pattern: str, found: list[str]) -> list[bool]:
    """Whether the texts match, as a condition of a consumer is evaluated."""
    operator = "~" if op == "regex" else op
    query = f'select array(select t collate "C" {operator} %s from unnest(%s::text[]) with ordinality as u(t, n) order by n)'
    row = postgres.execute(query, (pattern, found)).fetchone()
    assert row is not None
    matches: list[bool] = row[0]
    return matches


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(pattern=patterns, found=st.lists(texts, min_size=20, max_size=40))
@example(pattern="[[:lower:]]+", found=["a", "A", "1", ""])
@example(pattern="a$", found=["a", "a\n"])
@example(pattern=r"\Y", found=["", "a", " "])
@example(pattern="a{,3}", found=["a", "aaa", "a{,3}"])
@example(pattern=r"\m\w+\M", found=["a", " a", "é"])
@example(pattern="(|a)*b", found=["aab", "b", "ac"])
@example(pattern="(?:(a?)*|b){2,}$", found=["ab", "bb", "ca"])
@example(pattern="^a{3,255}$", found=["aa", "aaa", "a" * 255, "a" * 256])
@example(pattern="(?i)[^W-c]", found=["x", "X", "d", "K"])
def test_a_regex_that_python_compiles_matches_the_same_in_postgres(
    postgres: psycopg.Connection[Any], pattern: str, found: list[str]
) -> None:
    try:
        compiled_pattern = compiled("regex", pattern)
    except UnsupportedPattern:
        return
    try:
        expected = _matches(postgres, "regex", pattern, found)
    except (
        psycopg.errors.InvalidRegularExpression
    ) as error:  # an edge of a word that is repeated takes it very many states
        if "too complex" not in str(error):
            raise
        return
    assert [compiled_pattern.search(text) is not None for text in found] == expected


@pytest.mark.parametrize(
    "pattern",
    [f"[[:{name}:]]" for name in CLASSES] + [rf"\{letter}" for letter in "dswDSW"] + ["[^[:alpha:]]", ".", "[^a]"],
)
@pytest.mark.parametrize("option", ["", "(?i)"])
def test_a_class_has_the_same_characters(postgres: psycopg.Connection[Any], pattern: str, option: str) -> None:
    characters = [chr(code) for code in range(1, 0x3000)] + ["\ud7ff", "ﬀ", "K", "😀", "\U0010ffff"]
    python = compiled("regex", option + pattern)
    assert [python.search(one) is not None for one in characters] == _matches(
        postgres, "regex", option + pattern, characters
    )


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    op=st.sampled_from(["like", "ilike"]),
    pattern=st.text(st.sampled_from("aAkK%_\\éſK.\n"), max_size=6),
    found=st.lists(texts | st.text(st.sampled_from("aAkKſKÉé.%_\\\n"), max_size=4), min_size=10, max_size=20),
)
def test_like_matches_the_same(postgres: psycopg.Connection[Any], op: str, pattern: str, found: list[str]) -> None:
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        return  # conditions refuse it
    python = compiled(op, pattern)
    assert [python.search(text) is not None for text in found] == _matches(postgres, op, pattern, found)
