"""Filter pushdown: the Spark filters that the database evaluates with the same result. Spark evaluates the others."""

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
    """The filters that are pushed down to the database.

    Attributes:
        tests: the filters in the form of `headrace.pushdown_condition`.
        first, last: bounds of seq outside of which nothing can match. Only this range is cut into
            parts.
    """

    tests: list[dict[str, Any]] = []
    first: int = _LEAST
    last: int = _MOST

    def take(self, filters: Iterable[Filter], compares_bytes: Callable[[], bool]) -> Iterator[Filter]:
        """Push down the filters that the database can evaluate, and return the others.

        Args:
            filters: filters that must all hold.
            compares_bytes: returns whether the database orders text as Spark does. It is called
                only if that matters.
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
    """The test for a filter, or None if the database does not evaluate it with the same result."""
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
    """A value as the database's text for that column, or None if no text certainly means the same."""
    if column == "key":
        good = isinstance(value, str) and "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
        return value if good else None
    if column == "seq":
        good = isinstance(value, int) and not isinstance(value, bool) and _LEAST <= value <= _MOST
        return str(value) if good else None
    if column == "created_at" and isinstance(value, datetime) and value.tzinfo is not None:
        return value.isoformat()
    return None
