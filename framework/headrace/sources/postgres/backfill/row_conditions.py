"""Compiles conditions on rows to SQL that the captured database evaluates, for a backfill of a part of
a table.

They have the syntax of streams' conditions (see `model/conditions`), with fields such as
`data.record.total`, the column's place in the message. They are evaluated by Postgres's own
comparison in the column's type. Numbers compare by value and times as times. Texts and patterns use
the column's collation, and enums the order of their declaration. A null column satisfies only `is
null` and negated tests. `json` and `jsonb` columns have deeper fields (`data.record.address.city`).
These compare as in conditions of streams, a number with numbers and a string with strings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn

from headrace.model.conditions import And, Compare, Condition, In, Match, Not, Null, Or, parse
from headrace.model.conditions.paths import split
from headrace.model.conditions.tree import Scalar
from headrace.model.errors import InvalidFilter
from headrace.sources.postgres.table_names import quoted
from headrace.sources.postgres.tables import Table, TableColumn

_BOOL = 16
_INTEGER_BITS = {20: 63, 21: 15, 23: 31}  # bits of integers
_NUMBERS = {*_INTEGER_BITS, 700, 701, 1700}
_TEXTS = {18, 19, 25, 1042, 1043}
_DOCUMENTS = {114: "json", 3802: "jsonb"}

_PATTERNS = {"like": "like", "ilike": "ilike", "regex": "~"}
_NEGATED = {"!=", "not in"}


def check_condition(where: str | Mapping[str, Any] | Condition | None, table: Table) -> None:
    """Raise `InvalidFilter` if a backfill of this table can't have the condition. A value that does
    not fit the column's type, such as an invalid date, is only found by the server.
    """
    if where is not None:
        compile_condition(where, table)


def compile_condition(where: str | Mapping[str, Any] | Condition, table: Table) -> tuple[str, list[str]]:
    """Return the condition as SQL, and its parameters as text, of which `$1` is the first. Raises
    `InvalidFilter`.
    """
    compiler = _Compiler(table)
    return compiler.compile(parse(where), null_is_false=False), compiler.params


class _Compiler:
    def __init__(self, table: Table) -> None:
        self.params: list[str] = []
        self._table = table
        self._columns = {column.name: column for column in table.columns}

    def compile(self, condition: Condition, *, null_is_false: bool) -> str:
        """Return the SQL of a condition.

        At the top level null has the same effect as false. With `null_is_false`, null has to become
        false, since the result may be negated.
        """
        match condition:
            case And(conditions):
                return " and ".join(f"({self.compile(part, null_is_false=null_is_false)})" for part in conditions)
            case Or(conditions):
                return " or ".join(f"({self.compile(part, null_is_false=null_is_false)})" for part in conditions)
            case Not(inner):
                return f"not ({self.compile(inner, null_is_false=True)})"
            case Null(field, op):
                return f"{self._nullable(field)} {op}"
            case Compare(field, op, value):
                test = self._comparison(field, op, [value])
            case In(field, op, values):
                test = self._comparison(field, op, values)
            case Match(field, op, pattern):
                test = self._match(field, op, pattern)
            case _:
                raise TypeError(f"no condition: {condition!r}")
        return f"coalesce({test}, false)" if null_is_false else test

    # --- fields

    def _column(self, field: str) -> tuple[TableColumn, tuple[str, ...]]:
        """Return the column of a field, and the path into it."""
        root, *steps = split(field)
        if root != "data" or len(steps) < 2 or steps[0] != "record":
            self._fail(f"can't use {field}. It can use columns, such as data.record.{self._example}")
        column = self._columns.get(steps[1])
        if column is None:
            self._fail(f"uses {field}, but {self._table.name} has no column {steps[1]!r}. It has {self._column_names}")
        if steps[2:] and column.type_oid not in _DOCUMENTS:
            self._fail(f"uses {field}, but the column {column.name!r} is neither json nor jsonb, so it has no fields")
        return column, tuple(steps[2:])

    def _nullable(self, field: str) -> str:
        """Return SQL that is null if the field is null. JSON's null counts as null."""
        column, path = self._column(field)
        name = quoted(column.name)
        return f"({self._json_text(name, path)})" if column.type_oid in _DOCUMENTS else name

    def _json_text(self, name: str, path: Sequence[str]) -> str:
        return f"{name} #>> {self._path(path)}"

    def _path(self, path: Sequence[str]) -> str:
        return f"array[{', '.join(self._param(step) + '::text' for step in path)}]::text[]"

    # --- comparisons

    def _comparison(self, field: str, op: str, values: Sequence[Scalar]) -> str:
        column, path = self._column(field)
        if column.type_oid in _DOCUMENTS:
            return self._in_document(column, path, op, values)
        name = quoted(column.name)
        if op in ("in", "not in"):
            return f"{name} {op} ({', '.join(self._literal(column, value, field) for value in values)})"
        return f"{name} {'<>' if op == '!=' else op} {self._literal(column, values[0], field)}"

    def _literal(self, column: TableColumn, value: Scalar, field: str) -> str:
        """Return a parameter for the value. Without a cast the server reads it as the column's type."""
        oid = column.type_oid
        if isinstance(value, bool):
            if oid != _BOOL:
                self._fail(
                    f"compares {field} with true or false, but the column is not a boolean. Write a value of its type"
                )
            return self._param("true" if value else "false")
        if isinstance(value, Decimal):
            if oid not in _NUMBERS:
                self._fail(f"compares {field} with a number, but the column is not a number. Write the value in quotes")
            return self._param(_digits(value)) + _cast(oid, value)
        if oid in _NUMBERS:
            self._fail(f"compares {field} with text, but the column is a number. Write the value without quotes")
        if oid == _BOOL:
            self._fail(f"compares {field} with text, but the column is a boolean. Write true or false")
        return self._param(value)

    def _in_document(self, column: TableColumn, path: Sequence[str], op: str, values: Sequence[Scalar]) -> str:
        """Return a comparison with a field in JSON, as conditions of streams define it. A value of
        another type is not equal, and has no order.
        """
        name, kind = quoted(column.name), _DOCUMENTS[column.type_oid]
        json_type = f"{kind}_typeof({name} #> {self._path(path)})"
        text = self._json_text(name, path)
        if op not in ("=", "!=", "in", "not in"):
            return self._json_comparison(json_type, text, op, values[0])
        same = " or ".join(self._json_comparison(json_type, text, "=", value) for value in values)
        return f"({text}) is not null and not ({same})" if op in _NEGATED else f"({same})"

    def _json_comparison(self, json_type: str, text: str, op: str, value: Scalar) -> str:
        if isinstance(value, bool):
            return (
                f"coalesce({json_type} = 'boolean' and ({text}) = {self._param('true' if value else 'false')}, false)"
            )
        if isinstance(value, Decimal):
            number = f"{self._param(_digits(value))}::numeric"
            return f"case when {json_type} = 'number' then ({text})::numeric {op} {number} else false end"
        return f"coalesce({json_type} = 'string' and ({text}) collate \"C\" {op} {self._param(value)}, false)"

    def _match(self, field: str, op: str, pattern: str) -> str:
        column, path = self._column(field)
        name = quoted(column.name)
        if column.type_oid in _DOCUMENTS:
            json_type = f"{_DOCUMENTS[column.type_oid]}_typeof({name} #> {self._path(path)})"
            return f"{json_type} = 'string' and ({self._json_text(name, path)}) collate \"C\" {_PATTERNS[op]} {self._param(pattern)}"
        if column.type_oid in _NUMBERS or column.type_oid == _BOOL:
            self._fail(f"has `{op}` on {field}, which is not text. Write a comparison")
        text = name if column.type_oid in _TEXTS else f"{name}::text"
        return f"{text} {_PATTERNS[op]} {self._param(pattern)}"

    # --- helpers

    def _param(self, value: str) -> str:
        self.params.append(value)
        return f"${len(self.params)}"

    def _fail(self, reason: str) -> NoReturn:
        raise InvalidFilter(f"The backfill's condition {reason}.")

    @property
    def _example(self) -> str:
        return next(iter(self._table.key or self._columns), "id")

    @property
    def _column_names(self) -> str:
        names = list(self._columns)
        return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


def _digits(value: Decimal) -> str:
    """Return the number without an exponent, which an integer's text can't have, and without trailing
    zeros after the point.
    """
    return format(value.to_integral_value() if value == value.to_integral_value() else value, "f")


def _cast(oid: int, value: Decimal) -> str:
    """Return the parameter's cast. A whole number that fits the column's type needs none, so that an
    index can be used. Others compare by value, as numeric.
    """
    bits = _INTEGER_BITS.get(oid)
    fits = bits is None or (value == value.to_integral_value() and abs(value) < 2**bits)
    return "" if fits else "::numeric"
