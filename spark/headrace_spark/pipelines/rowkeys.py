"""Message keys for table rows, by the rules of change capture: `{schema}.{table}.` and the primary key, or a template.

A field of a template is `{record.column}`, `{schema}` or `{table}`. A value becomes one token. In
it dots, spaces, `*`, `>` and unprintable characters become `_`. A null becomes `_` as well. A value
of more than 96 bytes is replaced by its SHA-256.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.model.errors import ConfigurationError
from headrace.model.keys import MAX_KEY_BYTES, check_key

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

MAX_VALUE_BYTES = 96  # bytes
_FIELD = re.compile(r"\{([^{}]*)\}")
_RECORD = re.compile(r'record\.(?:"((?:[^"]|"")+)"|([^."{}]+))')


class KeyShape(msgspec.Struct, frozen=True):
    """The parts of a key: fixed texts and the columns between them.

    Attributes:
        literals: the texts before, between and after the values.
        columns: the columns of the values. There is one fewer than there are literals.
    """

    literals: tuple[str, ...]
    columns: tuple[str, ...]

    def keys(self, values: Sequence[pa.Array]) -> pa.Array:
        """Build the keys of rows from an array of texts for each column."""
        import pyarrow.compute as pc  # type: ignore[import-untyped]

        parts: list[object] = [self.literals[0]]
        for array, text in zip(values, self.literals[1:], strict=True):
            parts += [_tokens(array), text]
        keys = pc.binary_join_element_wise(*parts, "")
        if len(values) > 1 and (pc.max(pc.binary_length(keys)).as_py() or 0) > MAX_KEY_BYTES:
            return _shortened(keys, self.literals[0])
        return keys


def default_shape(schema: str, table: str, primary_key: Sequence[str]) -> KeyShape:
    """The default keys of change capture. A table without a primary key has one key for all its rows."""
    prefix = f"{token(schema)}.{token(table)}"
    if not primary_key:
        return KeyShape((prefix,), ())
    return KeyShape((prefix + ".", *["."] * (len(primary_key) - 1), ""), tuple(primary_key))


def shape_of(template: str, schema: str, table: str) -> KeyShape:
    """Parse a key template.

    Raises:
        ConfigurationError: the template is invalid, or makes no valid keys.
    """
    pieces = _FIELD.split(template)
    literals, columns = [pieces[0]], []
    known = {"schema": token(schema), "table": token(table)}
    for field, text in zip(pieces[1::2], pieces[2::2], strict=True):
        if field in known:
            literals[-1] += known[field] + text
        elif found := _RECORD.fullmatch(field):
            columns.append(found[2] or found[1].replace('""', '"'))
            literals.append(text)
        else:
            raise ConfigurationError(
                f"The key template {template!r} has the unknown field {{{field}}}. Write {{record.column}}, {{table}} or {{schema}}."
            )
    if any(brace in text for text in literals for brace in "{}"):
        raise ConfigurationError(
            f"The key template {template!r} has an unmatched brace. Write fields as {{{{record.column}}}}."
        )
    check_key("x".join(literals))
    return KeyShape(tuple(literals), tuple(columns))


def token(text: str) -> str:
    """Convert a text into one token of a key."""
    if not text:
        return "_"
    if len(text) * 4 > MAX_VALUE_BYTES and len(text.encode("utf-8", "surrogatepass")) > MAX_VALUE_BYTES:
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest().upper()
    return text if text.isalnum() else "".join("_" if c in ".*> " or not c.isprintable() else c for c in text)


def _tokens(values: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pc.fill_null(values, "")
    plain = (
        pc.all(pc.utf8_is_alnum(values)).as_py()
        and (pc.max(pc.utf8_length(values)).as_py() or 0) * 4 <= MAX_VALUE_BYTES
    )
    return values if plain else pa.array([token(text) for text in values.to_pylist()], pa.string())


def _shortened(keys: pa.Array, prefix: str) -> pa.Array:
    """Replace keys that are too long by their SHA-256, as can happen with many long columns."""
    import pyarrow as pa

    def short(key: str) -> str:
        data = key.encode()
        return key if len(data) <= MAX_KEY_BYTES else prefix + hashlib.sha256(data).hexdigest().upper()

    return pa.array([short(key) for key in keys.to_pylist()], pa.string())
