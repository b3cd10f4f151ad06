"""Filters are pushed down where the database evaluates them like Spark. Spark evaluates the others."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from headrace_spark.source.pushdown import Pushed

KEY, SEQ, CREATED, DATA = ("key",), ("seq",), ("created_at",), ("data",)


def push(*filters: Filter, compares_bytes: bool = True) -> tuple[Pushed, list[Filter]]:
    pushed = Pushed()
    return pushed, list(pushed.push(filters, lambda: compares_bytes))


@pytest.mark.parametrize(
    ("filter_", "test"),
    [
        (EqualTo(KEY, "a"), {"column": "key", "op": "=", "value": "a", "not": False}),
        (EqualNullSafe(SEQ, 5), {"column": "seq", "op": "<=>", "value": "5", "not": False}),
        (Not(EqualTo(KEY, "a")), {"column": "key", "op": "=", "value": "a", "not": True}),
        (In(KEY, ("a", "b")), {"column": "key", "op": "in", "value": ["a", "b"], "not": False}),
        (StringStartsWith(KEY, "a"), {"column": "key", "op": "starts", "value": "a", "not": False}),
        (StringEndsWith(KEY, "a"), {"column": "key", "op": "ends", "value": "a", "not": False}),
        (StringContains(KEY, "a"), {"column": "key", "op": "contains", "value": "a", "not": False}),
        (IsNull(("headers",)), {"column": "headers", "op": "is null", "not": False}),
        (IsNotNull(DATA), {"column": "data", "op": "is not null", "not": False}),
        (
            GreaterThan(CREATED, datetime(2030, 1, 31, tzinfo=UTC)),
            {"column": "created_at", "op": ">", "value": "2030-01-31T00:00:00+00:00", "not": False},
        ),
    ],
)
def test_what_means_the_same_is_pushed(filter_: Filter, test: dict[str, object]) -> None:
    pushed, left = push(filter_)
    assert (pushed.tests, left) == ([test], [])


@pytest.mark.parametrize(
    "filter_",
    [
        EqualTo(("data", "total"), 5),
        EqualTo(DATA, "5"),
        StringContains(DATA, "a"),
        EqualTo(KEY, "a\0b"),
        EqualTo(KEY, "\ud800"),
        EqualTo(SEQ, 2**63),
        EqualTo(SEQ, True),
        In(KEY, ("a", None)),
        In(KEY, ()),
        GreaterThan(CREATED, datetime(2030, 1, 31)),  # noqa: DTZ001
    ],
)
def test_what_might_not_mean_the_same_stays_with_spark(filter_: Filter) -> None:
    pushed, left = push(filter_)
    assert (pushed.tests, left) == ([], [filter_])
    assert left[0] is filter_


def test_keys_are_compared_in_the_database_only_if_it_orders_them_by_bytes() -> None:
    ordered, equal = LessThan(KEY, "b"), EqualTo(KEY, "a")
    assert push(ordered, equal)[1] == []
    assert push(ordered, Not(ordered), equal, compares_bytes=False)[1] == [ordered, Not(ordered)]


def test_seqs_narrow_the_range_that_is_cut() -> None:
    pushed, _ = push(GreaterThan(SEQ, 5), LessThanOrEqual(SEQ, 90), In(SEQ, (4, 8, 200)), Not(EqualTo(SEQ, 8)))
    assert (pushed.first, pushed.last) == (6, 90)
    pushed, _ = push(GreaterThanOrEqual(SEQ, 5), LessThan(SEQ, 9))
    assert (pushed.first, pushed.last) == (5, 8)
    pushed, _ = push(EqualTo(SEQ, 7))
    assert (pushed.first, pushed.last) == (7, 7)
