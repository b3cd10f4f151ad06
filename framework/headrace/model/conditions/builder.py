"""Build conditions in Python: `(field("status") == "paid") & (field("total") > 100)`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import NoReturn

from headrace.model.conditions.paths import DOCUMENTS, root
from headrace.model.conditions.tree import Compare, Condition, In, Match, Null, Refused, shown

Value = str | bool | int | float | Decimal | datetime


class Field:
    """A field of a message. Comparing it makes a condition, see `field`."""

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
        """The field is equal to one of the values. At least one value is required."""
        return In(self.name, "in", values)  # type: ignore[arg-type]

    def not_in(self, values: Iterable[Value]) -> Condition:
        """The field is present, not null, and equal to none of the values."""
        return In(self.name, "not in", values)  # type: ignore[arg-type]

    def is_null(self) -> Condition:
        """The field is missing or null."""
        return Null(self.name, "is null")

    def is_not_null(self) -> Condition:
        """The field is present and not null."""
        return Null(self.name, "is not null")

    def like(self, pattern: str) -> Condition:
        """The field is a string that matches the pattern. `%` stands for any text, `_` for one character."""
        return Match(self.name, "like", pattern)

    def ilike(self, pattern: str) -> Condition:
        """As `like`, but ignores the case of the letters A to Z."""
        return Match(self.name, "ilike", pattern)

    def matches(self, regex: str) -> Condition:
        """The field is a string that the PostgreSQL regular expression matches. The database rejects an
        invalid expression.
        """
        return Match(self.name, "regex", regex)

    def _compared(self, op: str, value: object) -> Condition:
        if isinstance(value, Field):
            raise Refused(f"a field compares with a value, not with another field such as {value!r}")
        return Compare(self.name, op, value)  # type: ignore[arg-type]

    def _misplaced(self, *_: object) -> NoReturn:
        # Python parses `field("a") == 1 & field("b") == 2` as `field("a") == (1 & field("b")) == 2`.
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

    A path that begins with `data.` or `headers.` is used unchanged, so `field("headers.trace")` is a
    header. A field of the data with such a name is `field("data.headers.x")`. Use `KEY`, `SEQ` and
    `CREATED_AT` for the message's own fields. `field("key")` is `data.key`. An invalid path raises
    `InvalidFilter` when the field is compared.
    """
    if not isinstance(path, str):
        raise Refused(f"a field is text such as 'total', not {shown(path)}")
    return Field(path if "." in path and root(path) in DOCUMENTS else f"data.{path}")
