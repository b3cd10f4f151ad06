"""Finds the Spark type of payloads from a sample of them, in plain code and by the rules of Spark's JSON reader."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from headrace.model.errors import InvalidInput
from headrace_spark.frames.spark_types import is_readable

MAX_FIELDS = 1000
"""Maximum number of fields that are found, at all depths together."""
MAX_DEPTH = 32
"""Depth below which a value is taken as JSON text."""

_DECIMAL_DIGITS = 38


def infer(texts: Iterable[str]) -> StructType | None:
    """The type that takes all of these payloads, with its fields by name. Payloads that are no JSON objects are passed over.

    Fields that are numbers in one payload and something else in another are strings, and so are those that are always null.
    Fields with a quote, a backslash or a control character in their names are left out.

    Returns:
        The type, or None if there is no object with a field.

    Raises:
        InvalidInput: the payloads have more than `MAX_FIELDS` fields, or fields whose names differ in case only, which Spark
            takes for one.
    """
    found: DataType = NullType()
    for text in texts:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            continue
        if isinstance(value, dict):
            found = _merged(found, _type(value, 0))
            _check_size(found)
    if not isinstance(found, StructType) or not found.fields:
        return None
    _check_case(found)
    return _final(found)  # type: ignore[return-value]


def _type(value: Any, depth: int) -> DataType:
    match value:
        case None:
            return NullType()
        case bool():
            return BooleanType()
        case int() if -(2**63) <= value < 2**63:
            return LongType()
        case int():
            digits = len(str(abs(value)))
            return DecimalType(digits, 0) if digits <= _DECIMAL_DIGITS else DoubleType()
        case float():
            return DoubleType()
        case list() if depth < MAX_DEPTH:
            none: DataType = NullType()
            return ArrayType(reduce(_merged, (_type(one, depth + 1) for one in value), none))
        case dict() if depth < MAX_DEPTH:
            # A struct needs a field. Spark has no type for an object without one.
            fields = [StructField(name, _type(one, depth + 1)) for name, one in value.items() if is_readable(name)]
            return StructType(sorted(fields, key=lambda field: field.name))
    return StringType()


def _merged(one: DataType, other: DataType) -> DataType:
    if one == other or isinstance(other, NullType):
        return one
    if isinstance(one, NullType):
        return other
    if isinstance(one, StructType) and isinstance(other, StructType):
        return _merged_structs(one, other)
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_merged(one.elementType, other.elementType))
    numbers = (LongType, DecimalType, DoubleType)
    if isinstance(one, numbers) and isinstance(other, numbers):
        if isinstance(one, DoubleType) or isinstance(other, DoubleType):
            return DoubleType()
        return DecimalType(max(_digits(one), _digits(other)), 0)
    return StringType()


def _merged_structs(one: StructType, other: StructType) -> StructType:
    fields = {field.name: field.dataType for field in one}
    for field in other:
        fields[field.name] = _merged(fields[field.name], field.dataType) if field.name in fields else field.dataType
    return StructType([StructField(name, fields[name]) for name in sorted(fields)])


def _digits(kind: DataType) -> int:
    return kind.precision if isinstance(kind, DecimalType) else 20


def _final(kind: DataType) -> DataType:
    """The type with strings for what no value was found of, as for a struct without fields."""
    if isinstance(kind, StructType) and kind.fields:
        return StructType([StructField(field.name, _final(field.dataType)) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_final(kind.elementType))
    return StringType() if isinstance(kind, (NullType, StructType)) else kind


def _check_size(kind: DataType) -> None:
    if _fields(kind) > MAX_FIELDS:
        raise InvalidInput(
            f"inferSchema finds more than {MAX_FIELDS} fields in the payloads. Name those that you need with dataSchema, such as"
            " 'region string, attributes map<string, string>'."
        )


def _check_case(kind: DataType, path: str = "") -> None:
    if isinstance(kind, ArrayType):
        _check_case(kind.elementType, path)
    if isinstance(kind, StructType):
        names: dict[str, str] = {}
        for field in kind:
            other = names.setdefault(field.name.lower(), field.name)
            if other != field.name:
                raise InvalidInput(
                    f"inferSchema finds the fields '{path}{other}' and '{path}{field.name}', which Spark takes for one. Name those that"
                    f" you need with dataSchema, such as '{field.name} string', each name once."
                )
            _check_case(field.dataType, f"{path}{field.name}.")


def _fields(kind: DataType) -> int:
    if isinstance(kind, StructType):
        return len(kind.fields) + sum(_fields(field.dataType) for field in kind)
    return _fields(kind.elementType) if isinstance(kind, ArrayType) else 0
