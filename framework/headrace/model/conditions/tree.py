"""The tree of a condition. Constructors check every rule, so an existing tree is always valid.

In JSON a node has the fields of its struct: `{"field": "data.total", "op": ">", "value": 100}`, `{"and": [...]}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal, NoReturn

import msgspec
from msgspec.structs import force_setattr

from headrace.model.clock import zoned
from headrace.model.conditions.paths import canonical, root
from headrace.model.errors import InvalidFilter

MAX_JSON_BYTES = 100_000
MAX_DEPTH = 32
MAX_LEAVES = 500
MAX_VALUES = 1_000
MAX_STRING = 10_000
MAX_PATTERN = 1_000
MAX_MAGNITUDE = 400  # decimal digits and powers of ten

Scalar = str | bool | Decimal
CompareOp = Literal["=", "!=", "<", "<=", ">", ">="]
InOp = Literal["in", "not in"]
NullOp = Literal["is null", "is not null"]
MatchOp = Literal["like", "ilike", "regex"]

_JOIN = "join conditions by `&` and `|`, turn one round by `~`, and put each comparison into parentheses"
_encoder = msgspec.json.Encoder(decimal_format="number")


class Refused(InvalidFilter):
    """An invalid node. `reason` is a sentence fragment that explains why. The caller adds the place."""

    def __init__(self, reason: str) -> None:
        self.reason = printable(reason)
        super().__init__(f"The condition is invalid: {self.reason}.")


class Condition(msgspec.Struct, frozen=True):
    """A condition that selects messages. `&` and `|` combine conditions, and `~` negates one."""

    def __and__(self, other: object) -> And:
        return And((self, _joinable(other)))

    def __or__(self, other: object) -> Or:
        return Or((self, _joinable(other)))

    __rand__ = __and__  # the left operand is not a condition, and is rejected
    __ror__ = __or__

    def __invert__(self) -> Condition:
        return Not(self)

    def __bool__(self) -> NoReturn:
        # Without this, `a == 1 and b == 2` would silently become its second half, and so would `1 < a < 5`.
        raise InvalidFilter(f"A condition is neither true nor false before it meets a message: {_JOIN}.")


class Compare(Condition, frozen=True):
    """Compares a field with one value."""

    field: str
    op: CompareOp
    value: Scalar

    def __post_init__(self) -> None:
        _settle_field(self)
        value = _scalar(self.field, self.op, self.value)
        if isinstance(value, bool) and self.op not in ("=", "!="):
            raise Refused(f"true and false have no order for `{self.op}`, write = or !=")
        force_setattr(self, "value", value)


class In(Condition, frozen=True):
    """Whether a field has one of the values, or none of them."""

    field: str
    op: InOp
    value: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        _settle_field(self)
        if not isinstance(self.value, Iterable) or isinstance(self.value, (str, bytes)):
            raise Refused(f"`{self.op}` needs a list of values, not {shown(self.value)}")
        values = tuple(self.value)
        if not 1 <= len(values) <= MAX_VALUES:
            raise Refused(f"`{self.op}` needs from 1 to {MAX_VALUES:,} values, not {len(values):,}")
        force_setattr(self, "value", tuple(_scalar(self.field, self.op, value) for value in values))


class Null(Condition, frozen=True):
    """Whether a field is missing or null, or neither."""

    field: str
    op: NullOp

    def __post_init__(self) -> None:
        _settle_field(self)
        if _kind(self.field) != "any":
            raise Refused(f"{self.field} is never null, leave the test out")


class Match(Condition, frozen=True):
    """Whether a field's text matches a pattern."""

    field: str
    op: MatchOp
    value: str

    def __post_init__(self) -> None:
        _settle_field(self)
        if _kind(self.field) not in ("any", "string"):
            raise Refused(f"`{self.op}` is for strings and {self.field} is not one, write =, !=, <, <=, > or >=")
        if not isinstance(self.value, str):
            raise Refused(f"`{self.op}` needs its pattern as a string, not {shown(self.value)}")
        check_text(self.value, "pattern", MAX_PATTERN)
        if self.op != "regex" and (len(self.value) - len(self.value.rstrip("\\"))) % 2:
            raise Refused("the pattern ends in a backslash that escapes nothing, double it or leave it out")


class And(Condition, frozen=True):
    """All of at least two conditions. A nested `And` is flattened."""

    conditions: tuple[Condition, ...] = msgspec.field(name="and")

    def __post_init__(self) -> None:
        force_setattr(self, "conditions", _flattened(self, And))


class Or(Condition, frozen=True):
    """Any of at least two conditions. A nested `Or` is flattened."""

    conditions: tuple[Condition, ...] = msgspec.field(name="or")

    def __post_init__(self) -> None:
        force_setattr(self, "conditions", _flattened(self, Or))


class Not(Condition, frozen=True):
    """The negation of a condition."""

    condition: Condition = msgspec.field(name="not")

    def __post_init__(self) -> None:
        _joinable(self.condition)
        _bounded(self)


def encode(condition: Condition) -> str:
    """The condition as JSON text, with numbers as they were written. Raises `InvalidFilter` if it is too long."""
    encoded = _encoder.encode(condition)
    if len(encoded) > MAX_JSON_BYTES:
        raise Refused(f"it is longer than {MAX_JSON_BYTES:,} bytes of JSON, shorten its lists or split it")
    return encoded.decode()


def children(condition: Condition) -> tuple[Condition, ...]:
    match condition:
        case And(conditions) | Or(conditions):
            return conditions
        case Not(inner):
            return (inner,)
    return ()


def shown(value: object) -> str:
    """A value for an error message, shortened."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        text = "that number"
    return text if len(text) <= 60 else text[:57] + "…"


def printable(text: str) -> str:
    """The text with each unprintable character replaced by a space, for error messages."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def check_text(text: str, what: str, limit: int) -> None:
    """Raises `Refused` for text that Postgres can't store, or that is too long."""
    if len(text) > limit:
        raise Refused(f"the {what} is longer than {limit:,} characters")
    if "\0" in text:
        raise Refused(f"the {what} {shown(text)} holds a NUL character, which no text in Postgres can, leave it out")
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise Refused(f"the {what} {shown(text)} holds half of a surrogate pair, which is not text, fix its encoding")


def canonical_time(value: object) -> str:
    """A time as ISO text in UTC. A time without a zone is in UTC already. Raises `Refused`."""
    try:
        if isinstance(value, str) and re.search(r"\.\d{7}", value) is None:
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return zoned(value).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        pass
    raise Refused(
        f"created_at compares with a time to the microsecond such as '2030-01-31T12:00:00Z', not {shown(value)}"
    )


def _kind(field: str) -> str:
    return {"key": "string", "seq": "number", "created_at": "time"}.get(root(field), "any")


_OPS: dict[type[Condition], tuple[str, ...]] = {
    Compare: ("=", "!=", "<", "<=", ">", ">="),
    In: ("in", "not in"),
    Null: ("is null", "is not null"),
    Match: ("like", "ilike", "regex"),
}
OPS: dict[str, Callable[..., Condition]] = {op: kind for kind, ops in _OPS.items() for op in ops}


def _settle_field(node: Compare | In | Null | Match) -> None:
    if node.op not in _OPS[type(node)]:
        raise Refused(f"the operator {shown(node.op)} is unknown here, write one of {', '.join(OPS)}")
    if not isinstance(node.field, str):
        raise Refused(f"a field is text such as 'data.total', not {shown(node.field)}")
    try:
        check_text(node.field, "field", 1_000)
        force_setattr(node, "field", canonical(node.field))
    except ValueError as error:
        raise error if isinstance(error, Refused) else Refused(str(error)) from None


def _scalar(field: str, op: str, value: object) -> Scalar:
    """The value as the tree stores it. Raises `Refused` if the field can't be compared with it."""
    kind = _kind(field)
    if value is None:
        raise Refused(f"nothing compares with null, write `{field} is {'not ' if op in ('!=', 'not in') else ''}null`")
    if kind == "time":
        return canonical_time(value)
    found: Scalar
    if isinstance(value, (str, bool)):
        found = value
    elif isinstance(value, (int, float, Decimal)):
        found = _number(value)
    elif isinstance(value, datetime):
        raise Refused("JSON has no times, write the text that the field holds")
    elif isinstance(value, (list, tuple, set, frozenset)):
        raise Refused(f"`{op}` compares with one value, write `in` for several")
    else:
        raise Refused(f"`{op}` compares with a string, a number, true or false, not {shown(value)}")
    if isinstance(found, str):
        check_text(found, "string", MAX_STRING)
    if kind == "string" and not isinstance(found, str):
        raise Refused(f"key is a string, write {str(value)!r} in quotes")
    if kind == "number" and (isinstance(found, (str, bool))):
        raise Refused(f"seq is a number and {shown(value)} is not one, write one without quotes")
    return found


def _number(value: int | float | Decimal) -> Decimal:
    if isinstance(value, int) and value.bit_length() > 4 * MAX_MAGNITUDE:
        number = Decimal("inf")
    else:
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if (
        not number.is_finite()
        or len(number.as_tuple().digits) > MAX_MAGNITUDE
        or abs(number.adjusted()) > MAX_MAGNITUDE
    ):
        raise Refused(f"a number has at most {MAX_MAGNITUDE} digits and a power of ten from -400 to 400")
    return number


def _joinable(other: object) -> Condition:
    if not isinstance(other, Condition):
        raise Refused(f"{shown(other)} is not a condition, {_JOIN}")
    return other


def _flattened(node: And | Or, kind: type[And | Or]) -> tuple[Condition, ...]:
    flat: list[Condition] = []
    for child in node.conditions:
        flat += child.conditions if isinstance(child, kind) else [_joinable(child)]
    if len(flat) < 2:
        raise Refused(f"`{kind.__name__.lower()}` needs at least two conditions")
    force_setattr(node, "conditions", tuple(flat))
    _bounded(node)
    return tuple(flat)


def _bounded(condition: Condition) -> None:
    """Raises `Refused` if the condition is too deep or has too many leaves."""
    level: list[Condition] = [condition]
    leaves = depth = 0
    while level:
        depth += 1
        leaves += sum(not children(node) for node in level)
        level = [child for node in level for child in children(node)]
    if depth > MAX_DEPTH:
        raise Refused(f"it is nested more than {MAX_DEPTH} deep, flatten it")
    if leaves > MAX_LEAVES:
        raise Refused(f"it has more than {MAX_LEAVES} tests, write `in` for alternatives")
