"""Read conditions that users pass: text, JSON (as text or decoded), or a tree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from headrace.model.conditions.text import parse_text
from headrace.model.conditions.tree import (
    MAX_DEPTH,
    MAX_JSON_BYTES,
    OPS,
    And,
    Condition,
    Not,
    Null,
    Or,
    Refused,
    encode,
    shown,
)
from headrace.model.errors import InvalidFilter

_SHAPE = '{"field": "data.total", "op": ">", "value": 100}, {"and": […]}, {"or": […]} or {"not": …}'


def parse(value: str | Mapping[str, Any] | Condition) -> Condition:
    """Read a condition.

    Args:
        value: text such as `data.status = 'paid' and data.total > 100`, JSON as text or decoded, or a condition.

    Raises:
        InvalidFilter: the condition is invalid. The error says what would be right, and for text at which
            character it fails.
    """
    if isinstance(value, Condition):
        condition = value
    elif isinstance(value, Mapping):
        condition = _node(value, "", 1)
    elif not isinstance(value, str):
        raise InvalidFilter(
            f"A condition is text such as 'data.total > 100', a dict of its JSON, or field(…) > 100, not {shown(value)}."
        )
    elif len(value) > MAX_JSON_BYTES:
        raise Refused(f"it is longer than {MAX_JSON_BYTES:,} characters, shorten its lists or split it")
    elif value.lstrip().startswith("{"):
        condition = _node(_decoded(value), "", 1)
    else:
        condition = parse_text(value)
    encode(condition)  # raises if it is too long
    return condition


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, parse_float=Decimal, parse_int=Decimal)
    except (ValueError, RecursionError) as error:
        raise InvalidFilter(f"The condition starts with {{ and is not JSON: {str(error) or 'too deep'}.") from None


def _node(value: Any, place: str, depth: int) -> Condition:
    """Read one node of the JSON. `place` is its position, such as `and[0].`."""
    if isinstance(value, Condition):
        return value
    if depth > MAX_DEPTH:
        raise Refused(f"it is nested more than {MAX_DEPTH} deep, flatten it")
    match value:
        case {"and": list() | tuple() as parts, **rest} if parts and not rest:
            return _list(And, parts, f"{place}and", depth)
        case {"or": list() | tuple() as parts, **rest} if parts and not rest:
            return _list(Or, parts, f"{place}or", depth)
        case {"not": part, **rest} if not rest:
            return Not(_node(part, f"{place}not.", depth + 1))
        case {"field": _, "op": _}:
            return _leaf(value, place)
    raise InvalidFilter(f"The condition{_at(place)} must be {_SHAPE}, not {shown(value)}.")


def _list(kind: type[And | Or], parts: list[Any] | tuple[Any, ...], place: str, depth: int) -> Condition:
    found = tuple(_node(part, f"{place}[{number}].", depth + 1) for number, part in enumerate(parts))
    return found[0] if len(found) == 1 else kind(found)


def _leaf(leaf: Mapping[str, Any], place: str) -> Condition:
    op = leaf["op"]
    kind = OPS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise InvalidFilter(f"The condition{_at(place)} has the operator {shown(op)}: write one of {', '.join(OPS)}.")
    wanted = {"field", "op"} if kind is Null else {"field", "op", "value"}
    if leaf.keys() != wanted:
        raise InvalidFilter(
            f"The condition{_at(place)} with {op!r} must have exactly {', '.join(sorted(wanted))}, not {shown(sorted(map(str, leaf)))}."
        )
    try:
        return kind(**leaf)
    except Refused as error:
        raise InvalidFilter(f"The condition{_at(place)} is invalid: {error.reason}.") from None


def _at(place: str) -> str:
    return f" at {place.rstrip('.')}" if place else ""
