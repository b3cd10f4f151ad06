"""Maps Spark types to types that msgspec decodes, each with the column for the decoded values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
)

from headrace.model.errors import ConfigurationError
from headrace_spark.frames.columns import (
    ArrayColumn,
    Column,
    Field,
    MapColumn,
    ScalarColumn,
    StructColumn,
    VariantColumn,
)

Decoded = tuple[Any, Column]
"""A type that msgspec decodes, and the column for its values."""

_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_NUMBER = float | Literal["NaN", "Infinity", "-Infinity"]  # the form in which our own JSON writes non-finite numbers
_SIMPLE: dict[type[DataType], Any] = {
    BooleanType: bool,
    BinaryType: bytes,
    DateType: date,
    DecimalType: Decimal,
    StringType: str,
    TimestampType: datetime,
    TimestampNTZType: Annotated[datetime, msgspec.Meta(tz=False)],
}


def decoded(kind: DataType, path: str = "", *, any_as_text: bool = False) -> Decoded:
    """Return the msgspec type that decodes JSON into this Spark type, and its column.

    Args:
        path: the path of the type in the schema, for error messages.
        any_as_text: whether a nullable string takes any JSON value, as JSON text, like Spark's `from_json`.

    Raises:
        ConfigurationError: the type has no JSON form.
    """
    match kind:
        case StructType():
            return _record(kind, path, any_as_text)
        case ArrayType():
            nullable = kind.containsNull
            item, column = _inner(kind.elementType, f"{path}[]", nullable, any_as_text)
            return list[item], ArrayColumn(column, nullable=nullable)  # type: ignore[valid-type]
        case MapType():
            return _pairs(kind, path, any_as_text)
        case CharType() | VarcharType():
            return Annotated[str, msgspec.Meta(max_length=kind.length)], ScalarColumn(StringType())
        case FloatType() | DoubleType():
            return _NUMBER, ScalarColumn(kind, float)
        case VariantType():
            return msgspec.Raw, VariantColumn()
    for whole, bits in _BITS.items():
        if isinstance(kind, whole):
            return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)], ScalarColumn(kind)
    for simple, python in _SIMPLE.items():
        if isinstance(kind, simple):
            return python, ScalarColumn(kind)
    raise ConfigurationError(
        f"The schema's {path.removeprefix('.') or 'type'} is of type {kind.simpleString()}, which has no form in JSON. Use a string, or leave the column out."
    )


def _inner(kind: DataType, path: str, nullable: bool, any_as_text: bool) -> Decoded:
    """The type of a field, an element or a value, which may be null if it is nullable."""
    if nullable and any_as_text and type(kind) is StringType:
        return msgspec.Raw, ScalarColumn(kind, _json_text)
    python, column = decoded(kind, path, any_as_text=any_as_text)
    takes_null = python is msgspec.Raw  # a null is a value of a variant
    return python | None if nullable and not takes_null else python, column


def _json_text(raw: msgspec.Raw) -> str | None:
    """A string as it is, null as None, and any other JSON value as its text."""
    text = bytes(raw)
    if text.startswith(b'"'):
        return msgspec.json.decode(text, type=str)
    return None if text == b"null" else text.decode()


def _pairs(kind: MapType, path: str, any_as_text: bool) -> Decoded:
    if not isinstance(kind.keyType, (StringType, *_BITS)):
        raise ConfigurationError(
            f"The schema's {path.removeprefix('.')} is a map with keys of type {kind.keyType.simpleString()}. Use strings or whole numbers as keys."
        )
    key, keys = decoded(kind.keyType, path)
    nullable = kind.valueContainsNull
    value, column = _inner(kind.valueType, f"{path}[]", nullable, any_as_text)
    return dict[key, value], MapColumn(keys, column, nullable=nullable)  # type: ignore[valid-type]


def _record(kind: StructType, path: str, any_as_text: bool) -> Decoded:
    if len(set(kind.names)) < len(kind.names):
        raise ConfigurationError(f"The schema has two columns of the same name{f' in {path}' if path else ''}.")
    if unreadable := [name for name in kind.names if not is_readable(name)]:
        raise ConfigurationError(
            f"The schema's column {unreadable[0]!r}{f' in {path}' if path else ''} has a quote, a backslash or a control character in its name, which is"
            " not supported. Leave it out."
        )
    names = {
        f"f{place}": field.name for place, field in enumerate(kind)
    }  # a column's name may be no identifier in Python
    made = [
        (name, field, _inner(field.dataType, f"{path}.{field.name}", field.nullable, any_as_text))
        for name, field in zip(names, kind, strict=True)
    ]
    struct = msgspec.defstruct(
        "Row", [_defined(name, field, python) for name, field, (python, _) in made], rename=names, kw_only=True
    )
    return struct, StructColumn(
        [Field(field.name, _getter(name), column, field.nullable) for name, field, (_, column) in made]
    )


def is_readable(name: str) -> bool:
    """Whether a field of this name can be decoded."""
    return not any(char in '"\\' or char < " " for char in name)


def _defined(name: str, field: StructField, python: Any) -> Any:
    return (name, python, None) if field.nullable else (name, python)


def _getter(name: str) -> Callable[[Any], Any]:
    return attrgetter(name)
