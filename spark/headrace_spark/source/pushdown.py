"""Filters of Spark's that the database makes, each with the same result as in Spark; the others stay with Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec
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

COLUMNS = ("key", "seq", "headers", "created_at", "data")

_ORDERED: dict[type[Filter], str] = {GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<="}
_COMPARED: dict[type[Filter], str] = {EqualTo: "=", EqualNullSafe: "<=>", **_ORDERED}
_TEXTUAL: dict[type[Filter], str] = {StringStartsWith: "starts", StringEndsWith: "ends", StringContains: "contains"}

_LEAST, _MOST = -(2**63), 2**63 - 1


class Pushed(msgspec.Struct):
    """What was taken over.

    Attributes:
        tests: as `headrace.pushed_condition` takes them.
        first, last: seqs outside of which nothing can match, so that the ranges are cut from what is left.
    """

    tests: list[dict[str, Any]] = []
    first: int = _LEAST
    last: int = _MOST

    def take(self, filters: Iterable[Filter], compares_bytes: Callable[[], bool]) -> Iterator[Filter]:
        """Take over what can be, and hand back the others.

        Args:
            filters: all of which must hold.
            compares_bytes: whether the database orders text as Spark does; asked only if that matters.
        """
        for each in filters:
            inner = each.child if isinstance(each, Not) else each
            test = _test(inner)
            ordered = type(inner) in _ORDERED and inner.attribute == ("key",)  # type: ignore[attr-defined]
            if test is None or (ordered and not compares_bytes()):
                yield each
                continue
            self.tests.append({**test, "not": isinstance(each, Not)})
            if inner is each and test["column"] == "seq":
                self._narrow(test["op"], each.value)  # type: ignore[attr-defined]

    def _narrow(self, op: str, value: Any) -> None:
        match op:
            case "=" | "<=>":
                low, high = value, value
            case ">" | ">=":
                low, high = value + (op == ">"), _MOST
            case "<" | "<=":
                low, high = _LEAST, value - (op == "<")
            case _:
                low, high = min(value), max(value)
        self.first, self.last = max(self.first, low), min(self.last, high)


def _test(each: Filter) -> dict[str, Any] | None:
    """The test for a filter, or None if it is not one that the database makes the same."""
    path: tuple[str, ...] = getattr(each, "attribute", ())
    if len(path) != 1 or path[0] not in COLUMNS:
        return None
    column = path[0]
    if isinstance(each, (IsNull, IsNotNull)):
        return {"column": column, "op": "is null" if isinstance(each, IsNull) else "is not null"}
    op: str | None
    if isinstance(each, In):
        op = "in"
        values: tuple[Any, ...] = tuple(each.value)
        value: Any = [_literal(column, one) for one in values]
        known = bool(values) and all(one is not None for one in value)
    else:
        op = _COMPARED.get(type(each)) or (_TEXTUAL.get(type(each)) if column == "key" else None)
        value = _literal(column, getattr(each, "value", None))
        known = value is not None
    return {"column": column, "op": op, "value": value} if op and known else None


def _literal(column: str, value: Any) -> str | None:
    """A value as the database reads it for that column; None if there is none that is certainly the same."""
    if column == "key":
        good = isinstance(value, str) and "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
        return value if good else None
    if column == "seq":
        good = isinstance(value, int) and not isinstance(value, bool) and _LEAST <= value <= _MOST
        return str(value) if good else None
    if column == "created_at" and isinstance(value, datetime) and value.tzinfo is not None:
        return value.isoformat()
    return None
