"""The `filters` of the consume API. They map top-level fields of the data to required values."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from headrace.model import conditions
from headrace.model.conditions import And, Compare, Condition, In, Null
from headrace.model.conditions.paths import join, split
from headrace.model.conditions.tree import Scalar

ANY = "*"


def condition_of(filters: Mapping[str, Any]) -> Condition | None:
    """Convert an object of filters to a condition. None if it matches everything.

    A list matches any of its values. Null matches a field that is missing or null. `*` matches
    anything. Raises `InvalidFilter`.
    """
    tests = [_test(join(("data", name)), value) for name, value in filters.items() if value != ANY]
    if not tests:
        return None
    return tests[0] if len(tests) == 1 else And(tuple(tests))


def _test(field: str, value: Any) -> Condition:
    if value is None:
        return Null(field, "is null")
    if isinstance(value, list):
        return In(field, "in", tuple(value))
    return Compare(field, "=", value)


def filters_of(where: str | None) -> dict[str, Any] | None:
    """Convert a condition to an object of filters. None if no such object is equivalent. Filters
    that were `*` are lost."""
    if where is None:
        return {}
    condition = conditions.parse(where)
    found: dict[str, Any] = {}
    for test in condition.conditions if isinstance(condition, And) else (condition,):
        match test:
            case Compare(field, "=", value):
                wanted: Any = _plain(value)
            case In(field, "in", values):
                wanted = [_plain(value) for value in values]
            case Null(field, "is null"):
                wanted = None
            case _:
                return None
        path = split(field)
        if len(path) != 2 or path[0] != "data" or path[1] in found:
            return None
        found[path[1]] = wanted
    return found


def _plain(value: Scalar) -> str | bool | int | float:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value
