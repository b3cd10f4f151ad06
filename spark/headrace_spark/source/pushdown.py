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

_MIN_SEQ, _MAX_SEQ = -(2**63), 2**63 - 1


class Pushed(msgspec.Struct):
    """The filters that are pushed down to the database.

    Attributes:
        tests: the filters in the form of `headrace_internal.pushdown_condition`.
        first, last: bounds of seq outside of which nothing can match. Only this range is cut into
            parts.
        columns: the columns on which the database evaluates filters.
    """

    columns: tuple[str, ...] = COLUMNS
    tests: list[dict[str, Any]] = []
    first: int = _MIN_SEQ
    last: int = _MAX_SEQ

    def push(self, filters: Iterable[Filter], compares_bytes: Callable[[], bool]) -> Iterator[Filter]:
        """Push down the filters that the database can evaluate, and return the others.

        Args:
            filters: filters that must all hold.
            compares_bytes: returns whether the database orders text as Spark does. It is called
                only if that matters.
        """
        for spark_filter in filters:
            inner = spark_filter.child if isinstance(spark_filter, Not) else spark_filter
            test = _test(inner)
            if test is not None and test["column"] not in self.columns:
                test = None
            ordered = type(inner) in _ORDERED and inner.attribute == ("key",)  # type: ignore[attr-defined]
            if test is None or (ordered and not compares_bytes()):
                yield spark_filter
                continue
            self.tests.append({**test, "not": isinstance(spark_filter, Not)})
            if inner is spark_filter and test["column"] == "seq" and "value" in test:
                self._narrow(test["op"], spark_filter.value)  # type: ignore[attr-defined]

    def _narrow(self, op: str, value: Any) -> None:
        match op:
            case "=" | "<=>":
                low, high = value, value
            case ">" | ">=":
                low, high = value + (op == ">"), _MAX_SEQ
            case "<" | "<=":
                low, high = _MIN_SEQ, value - (op == "<")
            case _:
                low, high = min(value), max(value)
        self.first, self.last = max(self.first, low), min(self.last, high)


def _test(spark_filter: Filter) -> dict[str, Any] | None:
    """The test for a filter, or None if the database does not evaluate it with the same result."""
    path: tuple[str, ...] = getattr(spark_filter, "attribute", ())
    if len(path) != 1 or path[0] not in COLUMNS:
        return None
    column = path[0]
    if isinstance(spark_filter, (IsNull, IsNotNull)):
        return {"column": column, "op": "is null" if isinstance(spark_filter, IsNull) else "is not null"}
    op: str | None
    if isinstance(spark_filter, In):
        op = "in"
        values: tuple[Any, ...] = tuple(spark_filter.value)
        value: Any = [_literal(column, one) for one in values]
        known = bool(values) and all(one is not None for one in value)
    else:
        op = _COMPARED.get(type(spark_filter)) or (_TEXTUAL.get(type(spark_filter)) if column == "key" else None)
        value = _literal(column, getattr(spark_filter, "value", None))
        known = value is not None
    return {"column": column, "op": op, "value": value} if op and known else None


def _literal(column: str, value: Any) -> str | None:
    """A value as the database's text for that column, or None if no text certainly means the same."""
    if column == "key":
        valid = isinstance(value, str) and "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
        return value if valid else None
    if column == "seq":
        valid = isinstance(value, int) and not isinstance(value, bool) and _MIN_SEQ <= value <= _MAX_SEQ
        return str(value) if valid else None
    if column == "created_at" and isinstance(value, datetime) and value.tzinfo is not None:
        return value.isoformat()
    return None
