"""Evaluate a condition on a message in Python, with the same result as in the database, as sources do for each change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from headrace.model.clock import zoned
from headrace.model.conditions.paths import DOCUMENTS, split
from headrace.model.conditions.patterns import compiled
from headrace.model.conditions.tree import And, Compare, Condition, In, Match, Not, Null, Or, Scalar

_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")
_WHOLE = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+")
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda found, value: found < value,
    "<=": lambda found, value: found <= value,
    ">": lambda found, value: found > value,
    ">=": lambda found, value: found >= value,
}
_HUGE = 10**9  # larger powers of ten make no difference


class _Object(list[tuple[str, Any]]):
    """A JSON object as a list of pairs, in which a name may occur twice."""


def matches(
    condition: Condition,
    key: str,
    data: str,
    headers: str | None = None,
    seq: int = 0,
    created_at: datetime | None = None,
) -> bool:
    """Whether the message meets the condition. `data` and `headers` are JSON text. A time without a zone is in UTC. Raises
    `UnsupportedPattern` for a `regex` that `patterns` does not compile.
    """
    at = created_at or datetime.fromtimestamp(0, UTC)
    message: dict[str, Any] = {
        "key": key,
        "seq": Decimal(seq),
        "created_at": zoned(at),
        "data": _read(data),
        "headers": _read(headers or "null"),
    }
    return _meets(condition, message)


def _meets(condition: Condition, message: dict[str, Any]) -> bool:
    match condition:
        case And(conditions):
            return all(_meets(part, message) for part in conditions)
        case Or(conditions):
            return any(_meets(part, message) for part in conditions)
        case Not(inner):
            return not _meets(inner, message)
        case Null(field, op):
            return (_find(message, field) is None) is (op == "is null")
        case In(field, op, values):
            found = _find(message, field)
            among = any(_equal(found, _value(field, value)) for value in values)
            return among if op == "in" else found is not None and not among
        case Compare(field, op, literal):
            found, value = _find(message, field), _value(field, literal)
            if op in ("=", "!="):
                return found is not None and _equal(found, value) is (op == "=")
            return type(found) is type(value) and _ORDER[op](found, value)
        case Match(field, op, pattern):
            found = _find(message, field)
            return isinstance(found, str) and compiled(op, pattern).search(found) is not None
    raise TypeError(f"no condition: {condition!r}")


def _equal(found: Any, value: Any) -> bool:
    return type(found) is type(value) and bool(found == value)


def _value(field: str, literal: Scalar) -> Any:
    return datetime.fromisoformat(str(literal)) if field == "created_at" else literal


def _find(message: dict[str, Any], field: str) -> Any:
    """The field's value, or None if it is missing or null."""
    name, *steps = split(field)
    found = message[name]
    if name in DOCUMENTS:
        values = _all(found, steps)
        found = values[-1] if values else None
    return found


def _all(value: Any, steps: list[str]) -> list[Any]:
    """The values at the path, in the order of the text. There are several if an object has the same name twice."""
    if not steps:
        return [value]
    step, *rest = steps
    if isinstance(value, _Object):
        return [found for name, part in value if name == step for found in _all(part, rest)]
    if isinstance(value, list) and _WHOLE.fullmatch(step) and -len(value) <= int(step) < len(value):
        return _all(value[int(step)], rest)
    return []


def _read(text: str) -> Any:
    """Parse JSON with exact numbers. Returns None for JSON that Postgres can't parse."""
    broken = False

    def made(pairs: list[tuple[str, Any]]) -> _Object:
        nonlocal broken
        broken = broken or any(_unreadable(name) or _unreadable(value) for name, value in pairs)
        return _Object(pairs)

    value = json.loads(text, object_pairs_hook=made, parse_int=_number, parse_float=_number)
    return None if broken or _unreadable(value) else value


def _unreadable(value: Any) -> bool:
    if isinstance(value, str):
        return any(char == "\0" or "\ud800" <= char <= "\udfff" for char in value)
    return isinstance(value, list) and not isinstance(value, _Object) and any(map(_unreadable, value))


def _number(text: str) -> Decimal:
    """Parse a number. If its power of ten is beyond Decimal, returns a number that compares with any literal
    in the same way.
    """
    match = _NUMBER.fullmatch(text)
    assert match is not None, text
    sign, whole, fraction, power = match.groups()
    digits = (whole + (fraction or "")).lstrip("0")
    # Python refuses to read integers of many thousand digits.
    size = (
        int((power or "0")[:12])
        if len((power or "0").lstrip("+-0")) <= 9
        else _HUGE * (-1 if "-" in (power or "") else 1)
    )
    return Decimal(f"{sign}{digits}e{max(-_HUGE, min(_HUGE, size)) - len(fraction or '')}") if digits else Decimal(0)
