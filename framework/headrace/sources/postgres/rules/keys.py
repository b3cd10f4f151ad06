"""Keys of captured messages. Messages with the same key are delivered in order.

By default a key is `{schema}.{table}.` and the values of the primary key, or of the columns that
the source groups by. A template such as `orders.{record.region}.{record.id}` has one of these in
each pair of braces:

- `record.column` is the value of a column. Further steps lead into a JSON column, as in
  `record.data.customer.id`, where a number picks from a list. A step that is no plain word is in
  double quotes: `record."odd column"`.
- `schema` and `table` are those of the table, and `name` is the source's name.

A value becomes one token by the rules of `headrace.sources.templates`, in the form that it has in
the message. A list or an object becomes its JSON text. Different values may become the same token,
such as `a.b` and `a_b`. With mode `changes` such rows only share their order, which does no harm.
With mode `rows` one row would replace the other. A value that a token can't hold unchanged therefore gets `~` and 32
digits of its SHA-256 there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from headrace.model.conditions.paths import STEP
from headrace.model.errors import ConfigurationError, HeadraceError
from headrace.model.keys import MAX_KEY_BYTES
from headrace.sources.postgres import table_names
from headrace.sources.postgres.pgoutput.messages import UNCHANGED, Value
from headrace.sources.postgres.tables import Table
from headrace.sources.postgres.values import Converter
from headrace.sources.templates import MAX_VALUE_BYTES, Template, sha256, token, value_at

Tokenizer = Callable[[bytes], str]
KeyMaker = Callable[[Sequence[Value]], str]

_HASH_DIGITS = 32
_HASHED = re.compile(rf"~[0-9A-F]{{{_HASH_DIGITS}}}\Z")
_INTEGERS = frozenset((20, 21, 23, 26))
_AS_TEXT = frozenset(
    (18, 19, 25, 1042, 1043, 1700, 2950)
)  # char, name, text, bpchar, varchar, numeric, uuid: the text is the value

# Numbers with a point keep their digits, since keys are made of them.
_decoder = msgspec.json.Decoder(float_hook=str)


class NoKey(HeadraceError):
    """Raised when a change lacks values that its key is made of."""


class Field(NamedTuple):
    """A parsed field in braces: a column and a path into it, or a property of the table or the source."""

    kind: str
    column: str = ""
    path: tuple[str, ...] = ()


class RowKeyTemplate(Template):
    """A parsed template of the keys of captured messages.

    Args:
        text: as described above.

    Raises:
        ConfigurationError: the template is invalid, or makes no valid keys.

    Attributes:
        columns: the columns that it uses.
        of_table: whether it has the field `table`, so that different tables have different keys.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ConfigurationError(f"A key template is text such as 'orders.{{record.id}}', not {text!r:.80}.")
        super().__init__(text)
        self.parsed_fields = [_field(field, text) for field in self.fields]
        self.columns = tuple(dict.fromkeys(field.column for field in self.parsed_fields if field.kind == "record"))
        self.of_table = any(field.kind == "table" for field in self.parsed_fields)


def _field(field: str, template: str) -> Field:
    if field in ("schema", "table", "name"):
        return Field(field)
    steps, at = [], len("record")
    while field.startswith("record") and (step := STEP.match(field, at)):
        steps.append(step[2] if step[1] is None else step[1].replace('""', '"'))
        at = step.end()
    if not steps or not all(steps) or at < len(field):
        raise ConfigurationError(
            f"The key template {template!r} has the unknown field {{{field}}}. Use {{record.column}}, {{table}}, {{schema}} or {{name}}."
        )
    return Field("record", steps[0], tuple(steps[1:]))


class KeySettings(Protocol):
    """The settings of a source that keys depend on, see `PostgresSpec`."""

    @property
    def name(self) -> str: ...
    @property
    def mode(self) -> str: ...
    @property
    def key(self) -> str | None: ...


def key_maker(
    spec: KeySettings,
    table: Table,
    columns: Sequence[str],
    indexes: Mapping[str, int],
    type_oids: Mapping[str, int],
    converters: Mapping[str, Converter],
) -> KeyMaker:
    """Return a function that makes the keys of a table's rows.

    Args:
        spec: the source's settings.
        columns: the columns of a default key.
        indexes: each column's index in a row. `type_oids` and `converters` have the same columns.

    Returns:
        A function of a row. It raises `NoKey` if values are missing.
    """
    literals, fields = _default(table, columns) if spec.key is None else _templated(spec.name, spec.key, table)
    if not fields and spec.mode == "rows":
        return _raising(
            f"The table {table.name} has no primary key, so its rows can't be identified. Add one, or set mode='changes'."
        )
    absent = [field.column for field in fields if field.column not in indexes]
    if absent:
        return _raising(
            f"The key of the message needs the column {absent[0]!r}, which the table {table.name} did not have at the time of the change. Change"
            " the source's group or key."
        )
    exact = spec.mode == "rows"
    parts = [
        (
            indexes[field.column],
            field.column,
            _tokenizer(field.path, type_oids[field.column], converters[field.column], exact),
        )
        for field in fields
    ]
    return _key_maker(literals, parts, table.name)


def _default(table: Table, columns: Sequence[str]) -> tuple[list[str], list[Field]]:
    prefix = f"{token(table.schema)}.{token(table.relation)}"
    if not columns:  # rows can't be distinguished, so all changes of the table are kept in order
        return [prefix], []
    return [prefix + ".", *["."] * (len(columns) - 1), ""], [Field("record", column) for column in columns]


def _templated(source: str, text: str, table: Table) -> tuple[list[str], list[Field]]:
    template = RowKeyTemplate(text)
    known = {"schema": table.schema, "table": table.relation, "name": source}
    literals, fields = [template.literals[0]], []
    for field, literal in zip(template.parsed_fields, template.literals[1:], strict=True):
        if field.kind == "record":
            fields.append(field)
            literals.append(literal)
        else:
            literals[-1] += token(known[field.kind]) + literal
    return literals, fields


def _key_maker(literals: Sequence[str], parts: Sequence[tuple[int, str, Tokenizer]], table: str) -> KeyMaker:
    first, *rest = literals
    if not parts:
        return lambda row: first
    if len(parts) == 1:
        (index, column, tokenize), last = parts[0], rest[0]

        def of_one_column(row: Sequence[Value]) -> str:
            value = row[index]
            if value is None:
                return f"{first}_{last}"
            if value is UNCHANGED:
                raise _missing(column, table)
            return first + tokenize(value) + last

        return of_one_column
    steps = [(*part, literal) for part, literal in zip(parts, rest, strict=True)]

    def of_several_columns(row: Sequence[Value]) -> str:
        key = first
        for index, column, tokenize, literal in steps:
            value = row[index]
            if value is UNCHANGED:
                raise _missing(column, table)
            key += ("_" if value is None else tokenize(value)) + literal
        if len(key) > MAX_KEY_BYTES // 4 and len(key.encode()) > MAX_KEY_BYTES:
            key = first + sha256(key.encode())  # a primary key of many long columns
        return key

    return of_several_columns


def _raising(reason: str) -> KeyMaker:
    def refuse(row: Sequence[Value]) -> str:
        raise NoKey(reason)

    return refuse


def _missing(column: str, table: str) -> NoKey:
    return NoKey(
        f"The key of the message needs {table_names.quoted(column)}, whose value is not in the WAL for this change of {table}. Let the server"
        f" write it from now on: {full_identity(table)}"
    )


def old_key_missing(table: str) -> NoKey:
    return NoKey(
        f"The old primary key is not in the WAL for this change of {table}. Let the server write it from now on: {full_identity(table)}"
    )


def full_identity(table: str) -> str:
    """Return the statement that makes the server write all old values, and for which tables it is right."""
    return f"alter table {table} replica identity full (for each partition of a partitioned table, for no table with virtual columns)"


def _tokenizer(path: Sequence[str], type_oid: int, convert: Converter, exact: bool) -> Tokenizer:
    """Return a function that makes a token of a value's text."""
    if type_oid in _INTEGERS and not path:
        return bytes.decode
    make = _exact_token if exact else _text_token
    if type_oid in _AS_TEXT and not path:
        errors = "surrogateescape" if exact else "replace"  # in mode `rows`, invalid UTF-8 bytes must stay distinct
        return lambda value: make(value.decode("utf-8", errors))
    return lambda value: make(_text_of(value_at(_decoder.decode(convert(value)), path)))


def _text_of(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return ""
        case list() | dict():
            return msgspec.json.encode(value).decode()
    return str(value)


def _text_token(text: str) -> str:
    return text if text.isalnum() and len(text) <= MAX_VALUE_BYTES // 4 else token(text)


def _exact_token(text: str) -> str:
    """Return a token that no other text has."""
    if text.isalnum() and len(text) <= MAX_VALUE_BYTES // 4:
        return text
    shortened = token(text)
    if shortened == text and not _HASHED.search(text):
        return text
    start = shortened.encode()[: MAX_VALUE_BYTES - _HASH_DIGITS - 1].decode("utf-8", "ignore")
    return f"{start}~{sha256(text.encode('utf-8', 'surrogatepass'))[:_HASH_DIGITS]}"
