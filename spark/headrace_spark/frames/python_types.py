"""Maps Python types to columns: the Spark type of each field of a msgspec Struct.

    bool, int, float, str      boolean, bigint, double, string         bytes          binary
    Decimal                    decimal(38, 18), or as its Meta says    datetime       timestamp, or
    timestamp_ntz with Meta(tz=False)
    date                       date                                    Enum, Literal  string or
    bigint, as its values are
    list, set, tuple[X, …]     array                                   dict           map
    Struct, dataclass,         struct                                  UUID, time, timedelta:
        string, as in JSON
      TypedDict, NamedTuple
    X | None                   the same, nullable                      other unions, `Any`, `Raw`
    and the rest: string, JSON text

Set a decimal's digits with `Annotated[Decimal, Meta(extra={"precision": 12, "scale": 2})]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
from msgspec import inspect
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from headrace.model.errors import ConfigurationError
from headrace_spark.frames.columns import ArrayColumn, Column, Field, MapColumn, ScalarColumn, StructColumn

_STRUCTS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)
_ARRAYS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)
_SIMPLE: dict[type[inspect.Type], DataType] = {
    inspect.BoolType: BooleanType(),
    inspect.IntType: LongType(),
    inspect.FloatType: DoubleType(),
    inspect.StrType: StringType(),
    inspect.DateType: DateType(),
    inspect.BytesType: BinaryType(),
}


def struct_column(given: Any) -> StructColumn:
    """The column for a type with fields.

    Raises:
        ConfigurationError: the type has no fields, contains itself, or contains something that
            can't be decoded from JSON.
    """
    try:
        info = inspect.type_info(given)
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"schema={given!r} can't be decoded from JSON: {error}.") from error
    if not isinstance(info, _STRUCTS):
        raise ConfigurationError(
            f"schema={given!r} has no fields. Give a msgspec.Struct, a dataclass, a TypedDict, a NamedTuple, or a DDL string"
            " such as 'id bigint, total double'."
        )
    return _record(info, ())


def _column(info: Any, above: tuple[type, ...], extra: dict[str, Any]) -> Column:
    if isinstance(info, inspect.Metadata):
        return _column(info.type, above, info.extra or {})
    if isinstance(info, inspect.UnionType):
        return _of_union(info, above, extra)
    if isinstance(info, _STRUCTS):
        return _record(info, above)
    if isinstance(info, _ARRAYS):
        return ArrayColumn(_column(info.item_type, above, {}), nullable=_nullable(info.item_type))
    if isinstance(info, inspect.DictType):
        return _pairs(info, above)
    if isinstance(info, inspect.CustomType):
        raise ConfigurationError(
            f"The schema has a {info.cls.__name__!r}, which can't be decoded from JSON. Use a Struct or a built-in type."
        )
    return _leaf(info, extra)


def _leaf(info: Any, extra: dict[str, Any]) -> Column:
    simple = _SIMPLE.get(type(info))
    if simple is not None:
        return ScalarColumn(simple)
    match info:
        case inspect.DecimalType():
            return ScalarColumn(_decimal(extra))
        case inspect.DateTimeType():
            return ScalarColumn(TimestampNTZType() if info.tz is False else TimestampType())
        case inspect.ByteArrayType() | inspect.MemoryViewType():
            return ScalarColumn(BinaryType(), bytes)
        case inspect.UUIDType() | inspect.TimeType() | inspect.TimeDeltaType():
            return ScalarColumn(StringType(), msgspec.to_builtins)
        case inspect.EnumType():
            return _of_values([one.value for one in info.cls], attrgetter("value"))
        case inspect.LiteralType():
            return _of_values(info.values, None)
    return _text()


def _text() -> Column:
    return ScalarColumn(StringType(), lambda value: msgspec.json.encode(value).decode())


def _decimal(extra: dict[str, Any]) -> DecimalType:
    precision, scale = extra.get("precision", 38), extra.get("scale", 18 if "precision" not in extra else 0)
    if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and 1 <= precision <= 38):
        raise ConfigurationError(
            f"A decimal of the schema has precision={precision!r} and scale={scale!r}. The precision must be from 1 to 38, and the scale from 0 to the precision."
        )
    return DecimalType(precision, scale)


def _of_values(values: Sequence[Any], convert: Callable[[Any], Any] | None) -> Column:
    kind = LongType() if all(isinstance(value, int) for value in values) else StringType()
    if isinstance(kind, LongType) or all(isinstance(value, str) for value in values):
        return ScalarColumn(kind, convert)
    return _text()


def _of_union(info: inspect.UnionType, above: tuple[type, ...], extra: dict[str, Any]) -> Column:
    kinds = [one for one in info.types if not isinstance(one, inspect.NoneType)]
    if len(kinds) == 1:
        return _column(kinds[0], above, extra)
    if all(isinstance(one, (inspect.IntType, inspect.FloatType)) for one in kinds):
        return ScalarColumn(DoubleType(), float)
    return _text()


def _pairs(info: inspect.DictType, above: tuple[type, ...]) -> Column:
    keys = _column(info.key_type, above, {})
    if not isinstance(keys.kind, (StringType, LongType)):
        return _text()
    return MapColumn(keys, _column(info.value_type, above, {}), nullable=_nullable(info.value_type))


def _record(info: Any, above: tuple[type, ...]) -> StructColumn:
    if info.cls in above:
        raise ConfigurationError(
            f"The schema's {info.cls.__name__!r} contains itself, which a Spark type can't. Annotate that field as msgspec.Raw, which is JSON text."
        )
    inside = (*above, info.cls)
    return StructColumn([_field(info, field, inside) for field in info.fields])


def _field(info: Any, field: inspect.Field, above: tuple[type, ...]) -> Field:
    column = _column(field.type, above, {})
    if isinstance(info, inspect.TypedDictType):
        get: Callable[[Any], Any] = itemgetter(field.name) if field.required else lambda value: value.get(field.name)
        return Field(field.encode_name, get, column, not field.required or _nullable(field.type))
    get = attrgetter(field.name)
    if not _may_be_unset(field):
        return Field(field.encode_name, get, column, _nullable(field.type))
    return Field(field.encode_name, lambda value: _or_null(get(value)), column, True)


def _may_be_unset(field: inspect.Field) -> bool:
    return field.default is msgspec.UNSET or (
        not field.required and field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    )


def _or_null(value: Any) -> Any:
    return None if value is msgspec.UNSET else value


def _nullable(info: Any) -> bool:
    if isinstance(info, inspect.Metadata):
        return _nullable(info.type)
    if isinstance(info, inspect.UnionType):
        return any(_nullable(one) for one in info.types)
    return isinstance(info, (inspect.NoneType, inspect.AnyType))
