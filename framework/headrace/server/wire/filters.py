"""The `filters` of the consume API. They map top-level fields of the data to required values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from headrace.model import conditions
from headrace.model.conditions import And, Compare, Condition, In, Match, Null, Or
from headrace.model.conditions.paths import join, split
from headrace.model.conditions.tree import Scalar
from headrace.model.errors import InvalidFilter

ANY = "*"

_SEQ = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


def condition_of(filters: Mapping[str, Any], stream: str | None = None) -> Condition | None:
    """Convert an object of filters to a condition. None if it matches everything.

    A list matches any of its values. Null matches a field that is missing or null. `*` matches
    anything, and is kept for records, since they are shown with it. Raises `InvalidFilter`.

    Args:
        stream: the name of the consumer's stream, if the filters are about records of the consume
            API. Members that a record's data lacks are filled from its message, and the filters
            match them as they are shown.
    """
    tests = [_test(name, value, stream) for name, value in filters.items() if stream is not None or value != ANY]
    if not tests:
        return None
    return tests[0] if len(tests) == 1 else And(tuple(tests))


def _test(name: str, value: Any, stream: str | None) -> Condition:
    field = join(("data", name))
    if value == ANY:  # the first test is true and cheap, the other one has the name
        return Or((Match("key", "like", "%"), Null(field, "is not null")))
    if value is None:
        if stream is not None and name in FILLED:
            raise InvalidFilter(f"The {name} of a record is never null. Leave the filter out, or give a value.")
        return Null(field, "is null")
    test = In(field, "in", tuple(value)) if isinstance(value, list) else Compare(field, "=", value)
    if stream is None or name not in FILLED:
        return test
    values = value if isinstance(value, list) else [value]
    filled = [found for one in values if isinstance(one, str) and (found := _filled(name, one, stream)) is not None]
    return Or((test, *filled)) if filled else test


FILLED = ("id", "collection_id", "resource_id", "upstream_updated_at")
"""Members of a record that are filled from its message if the data has none."""


def _filled(name: str, value: str, stream: str) -> Condition | None:
    """Return the condition for a member that is filled from the message, and has this value then.
    None if it can't have it."""
    missing = Null(join(("data", name)), "is null")
    match name:
        case "collection_id":
            return missing if value == stream else None
        case "resource_id":
            return And((missing, Compare("key", "=", value)))
        case "id":
            return And((missing, Compare("seq", "=", Decimal(value)))) if _SEQ.fullmatch(value) else None
    try:
        return And((missing, Compare("created_at", "=", value)))
    except InvalidFilter:  # not a time
        return None


def filters_of(where: str | None, stream: str | None = None) -> dict[str, Any] | None:
    """Convert a condition to an object of filters. None if no such object is equivalent. `stream` is as in `condition_of`."""
    if where is None:
        return {}
    condition = conditions.parse(where)
    found: dict[str, Any] = {}
    for test in condition.conditions if isinstance(condition, And) else (condition,):
        plain = test.conditions[0] if isinstance(test, Or) else test
        match plain:
            case Compare(field, "=", value):
                shown: Any = _plain(value)
            case In(field, "in", values):
                shown = [_plain(value) for value in values]
            case Null(field, "is null"):
                shown = None
            case Match() if isinstance(test, Or) and isinstance(test.conditions[1], Null):
                field, shown = test.conditions[1].field, ANY
            case _:
                return None
        path = split(field)
        if len(path) != 2 or path[0] != "data" or path[1] in found:
            return None
        if plain is not test and (shown is None or _test(path[1], shown, stream) != test):
            return None
        found[path[1]] = shown
    return found


def _plain(value: Scalar) -> str | bool | int | float:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value
