"""Conditions in Python: `(field("status") == "paid") & (field("total") > 100)`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import NoReturn

from headrace.model.conditions.paths import DOCUMENTS, root
from headrace.model.conditions.tree import Compare, Condition, In, Match, Null, Refused, shown

Value = str | bool | int | float | Decimal | datetime


class Field:
    """A field to be compared. Its comparisons are conditions; see `field`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"field({self.name!r})"

    def __eq__(self, value: Value) -> Condition:  # type: ignore[override]
        return self._compared("=", value)

    def __ne__(self, value: Value) -> Condition:  # type: ignore[override]
        return self._compared("!=", value)

    def __lt__(self, value: Value) -> Condition:
        return self._compared("<", value)

    def __le__(self, value: Value) -> Condition:
        return self._compared("<=", value)

    def __gt__(self, value: Value) -> Condition:
        return self._compared(">", value)

    def __ge__(self, value: Value) -> Condition:
        return self._compared(">=", value)

    def in_(self, values: Iterable[Value]) -> Condition:
        """It is equal to one of the values, of which there is at least one."""
        return In(self.name, "in", values)  # type: ignore[arg-type]

    def not_in(self, values: Iterable[Value]) -> Condition:
        """It is there, not null, and equal to none of the values."""
        return In(self.name, "not in", values)  # type: ignore[arg-type]

    def is_null(self) -> Condition:
        """It is missing, or null."""
        return Null(self.name, "is null")

    def is_not_null(self) -> Condition:
        """It is there, and not null."""
        return Null(self.name, "is not null")

    def like(self, pattern: str) -> Condition:
        """It is a string that the pattern covers: `%` stands for any text, `_` for one character."""
        return Match(self.name, "like", pattern)

    def ilike(self, pattern: str) -> Condition:
        """As `like`, but for the case of the letters A to Z."""
        return Match(self.name, "ilike", pattern)

    def matches(self, regex: str) -> Condition:
        """It is a string in which PostgreSQL finds the regular expression; the database refuses one that is none."""
        return Match(self.name, "regex", regex)

    def _compared(self, op: str, value: object) -> Condition:
        if isinstance(value, Field):
            raise Refused(f"a field compares with a value, not with another field such as {value!r}")
        return Compare(self.name, op, value)  # type: ignore[arg-type]

    def _misplaced(self, *_: object) -> NoReturn:
        # `field("a") == 1 & field("b") == 2` is `field("a") == (1 & field("b")) == 2` to Python.
        raise Refused(
            f"{self!r} is compared with nothing, write a comparison such as `({self!r} == 1)`, in parentheses beside `&` and `|`"
        )

    __hash__ = None  # type: ignore[assignment]
    __and__ = __rand__ = __or__ = __ror__ = __invert__ = __bool__ = _misplaced


KEY = Field("key")
SEQ = Field("seq")
CREATED_AT = Field("created_at")


def field(path: str) -> Field:
    """A field of the data, by its path: `field("total")`, `field("items.0.sku")`, `field('"odd key".c')`.

    What begins with `data.` or `headers.` is taken as it is, so that `field("headers.trace")` is a header; a field of the data
    that has such a name is `field("data.headers.x")`. The message's own are `KEY`, `SEQ` and `CREATED_AT`; `field("key")` is
    `data.key`. Raises `InvalidFilter`, when it is compared, for a path that is none.
    """
    if not isinstance(path, str):
        raise Refused(f"a field is text such as 'total', not {shown(path)}")
    return Field(path if "." in path and root(path) in DOCUMENTS else f"data.{path}")
