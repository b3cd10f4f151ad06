"""Filters in SQL: the generated SQL agrees with the rules of the Python model."""

from __future__ import annotations

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.model.keys import check_filter, check_key, matches
from tests.support.servers import run
from tests.support.words import filters, keys


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Some keys, and filters of which most match some of them."""
    some = draw(st.lists(keys(), min_size=8, max_size=25, unique=True))
    return some, draw(st.lists(filters(among=some), min_size=8, max_size=25))


async def judged(dsn: str, texts: list[str], some: list[str]) -> list[list[bool]]:
    """Evaluate each filter for each key, in one query of the conditions that consumers would store."""
    connection = await asyncpg.connect(dsn)
    try:
        conditions = await connection.fetchval(
            "select array_agg(headrace_internal.key_condition(array[filter]) order by place)"
            " from unnest($1::text[]) with ordinality as f(filter, place)",
            texts,
        )
        rows = await connection.fetch(
            f"select array[{', '.join(conditions)}] from unnest($1::text[]) with ordinality"
            ' as k(key0, place), lateral (select key0 collate "C" as key) as m order by place',
            some,
        )
        return [row[0] for row in rows]
    finally:
        await connection.close()


@given(batches())
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_the_database_judges_keys_as_the_model_does(dsn: str, batch: tuple[list[str], list[str]]) -> None:
    some, texts = batch
    for key, row in zip(some, run(judged(dsn, texts, some)), strict=True):
        assert dict(zip(texts, row, strict=True)) == {text: matches(text, key) for text in texts}, key


@pytest.mark.parametrize(
    ("filter_", "yes", "no"),
    [
        (">", ["a", "a.b", "*a", "%0A"], []),
        ("*", ["a", "\u200b", "日本", "a*", "'"], ["a.b"]),
        ("a.>", ["a.b", "a.b.c", "a.%0A"], ["a", "ab", "ab.c", "A.b"]),
        ("*.>", ["a.b", "a.b.c"], ["a"]),
        ("a.*.c", ["a.b.c", "a.\u200b.c", "a.*x.c"], ["a.c", "a.b.b.c", "xa.b.c", "a.b.cx", "a.b.c.d", "a.b.c\u200b"]),
        ("a.*.>", ["a.b.c", "a.b.c.d\u200b"], ["a.b", "a"]),
        ("a+.*", ["a+.b"], ["aa.b", "a.b"]),
        ("[a].*", ["[a].b"], ["a.b"]),
        ("a|b.*", ["a|b.c"], ["a", "b.c", "a.c"]),
        ("\\d.*", ["\\d.b"], ["1.b", "d.b"]),
        ("(?i)a.*", ["(?i)a.b"], ["A.b", "a.b"]),
        ("';drop/**/table/**/x;--.*", ["';drop/**/table/**/x;--.b"], ["a.b"]),
        ("$1.*.%s.$sql$", ["$1.b.%s.$sql$"], ["1.b.s.sql"]),
        ("a%.>", ["a%.b"], ["ab.c", "a.b"]),
        ("a_.>", ["a_.b"], ["ab.c"]),
        ("e\u0301.*", ["e\u0301.b"], ["\u00e9.b"]),
        (".".join("*" * 40), [".".join("a" * 40)], [".".join("a" * 39), ".".join("a" * 41)]),
        (".".join("*" * 500), [".".join("a" * 500)], [".".join("a" * 499)]),
        (".".join("b" * 20) + ".*.>", [".".join("b" * 22)], [".".join("b" * 21)]),
    ],
    ids=lambda value: repr(value)[:24] if isinstance(value, str) else "",
)
def test_examples(dsn: str, filter_: str, yes: list[str], no: list[str]) -> None:
    check_filter(filter_)
    some = [check_key(key) for key in yes + no]
    found = [row[0] for row in run(judged(dsn, [filter_], some))]
    assert found == [True] * len(yes) + [False] * len(no) == [matches(filter_, key) for key in some]


def test_several_filters_take_every_key_that_any_of_them_takes(dsn: str) -> None:
    async def condition(texts: list[str]) -> str:
        connection = await asyncpg.connect(dsn)
        try:
            found: str = await connection.fetchval("select headrace_internal.key_condition($1)", texts)
            return found
        finally:
            await connection.close()

    assert run(condition(["a.>", ">"])) == "true"
    assert run(condition(["a", "b.>", "c.*"])).count(" or ") == 2
