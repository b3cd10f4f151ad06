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
)

from headrace.model.errors import ConfigurationError
from headrace_spark.frames.columns import ArrayColumn, Column, Field, MapColumn, ScalarColumn, StructColumn

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


def decoded(kind: DataType, path: str = "") -> Decoded:
    """Return the msgspec type that decodes JSON into this Spark type, and its column.

    Args:
        path: the path of the type in the schema, for error messages.

    Raises:
        ConfigurationError: the type has no JSON form.
    """
    match kind:
        case StructType():
            return _record(kind, path)
        case ArrayType():
            item, column = decoded(kind.elementType, f"{path}[]")
            nullable = kind.containsNull
            return list[item | None] if nullable else list[item], ArrayColumn(column, nullable=nullable)  # type: ignore[valid-type]
        case MapType():
            return _pairs(kind, path)
        case CharType() | VarcharType():
            return Annotated[str, msgspec.Meta(max_length=kind.length)], ScalarColumn(StringType())
        case FloatType() | DoubleType():
            return _NUMBER, ScalarColumn(kind, float)
    for whole, bits in _BITS.items():
        if isinstance(kind, whole):
            return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)], ScalarColumn(kind)
    for simple, python in _SIMPLE.items():
        if isinstance(kind, simple):
            return python, ScalarColumn(kind)
    raise ConfigurationError(
        f"The schema's {path.removeprefix('.') or 'type'} is of type {kind.simpleString()}, which has no form in JSON. Use a string, or leave the column out."
    )


def _pairs(kind: MapType, path: str) -> Decoded:
    if not isinstance(kind.keyType, (StringType, *_BITS)):
        raise ConfigurationError(
            f"The schema's {path.removeprefix('.')} is a map with keys of type {kind.keyType.simpleString()}. Use strings or whole numbers as keys."
        )
    key, keys = decoded(kind.keyType, path)
    value, column = decoded(kind.valueType, f"{path}[]")
    nullable = kind.valueContainsNull
    python = dict[key, value | None] if nullable else dict[key, value]  # type: ignore[valid-type]
    return python, MapColumn(keys, column, nullable=nullable)


def _record(kind: StructType, path: str) -> Decoded:
    if len(set(kind.names)) < len(kind.names):
        raise ConfigurationError(f"The schema has two columns of the same name{f' in {path}' if path else ''}.")
    names = {
        f"f{place}": field.name for place, field in enumerate(kind)
    }  # a column's name may be no identifier in Python
    made = [
        (name, field, decoded(field.dataType, f"{path}.{field.name}")) for name, field in zip(names, kind, strict=True)
    ]
    struct = msgspec.defstruct(
        "Row", [_defined(name, field, python) for name, field, (python, _) in made], rename=names, kw_only=True
    )
    return struct, StructColumn(
        [Field(field.name, _getter(name), column, field.nullable) for name, field, (_, column) in made]
    )


def _defined(name: str, field: StructField, python: Any) -> Any:
    return (name, python | None, None) if field.nullable else (name, python)


def _getter(name: str) -> Callable[[Any], Any]:
    return attrgetter(name)
