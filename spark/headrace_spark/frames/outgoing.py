"""Plans the conversion of a DataFrame into messages, and checks its columns.

    key string                      the routing key
    data                            the data: a string is JSON text, and any other type is written
        as JSON
    all other columns               without a column `data`, together they are the JSON object
    headers                         optional: JSON text, a map or a struct. Null means none

JSON forms: numbers are unchanged, except that decimals are strings, so that they are never rounded,
as in captured changes. NaN and the infinities are strings. Timestamps are ISO 8601 in UTC with a Z.
Timestamps without a time zone have no Z. Dates are ISO, and binary is base64. A null field stays,
as null. A variant is the JSON that Spark's `to_json` makes of it.

The plan runs in Spark's JVM. `headrace_spark.frames.encoding` does the same for Arrow batches
inside a Python task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from headrace.model.errors import InvalidInput
from headrace_spark.frames.encoding import DATA, HEADERS, KEY, MESSAGE_COLUMNS, encode, refuse_nulls

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["check", "encode", "outgoing", "refuse_nulls"]

REQUIREMENTS = (
    "It needs a string column `key`, and either a column `data` or other columns, which together are the data."
    " `headers` is optional"
)

_TIMESTAMP = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": f"{_TIMESTAMP}'Z'",
    "timestampNTZFormat": _TIMESTAMP,
    "dateFormat": "yyyy-MM-dd",
}
_NUMBERS, _TIMES = (FractionalType, IntegralType), (DateType, TimestampNTZType, TimestampType)
_SCALARS = (BinaryType, BooleanType, NullType, StringType, VariantType, *_NUMBERS, *_TIMES)


def outgoing(frame: DataFrame) -> DataFrame:
    """Plan the frame's rows as messages: `key`, `headers` and `data`, all strings. The call is lazy.

    Rows with a null key or null data are still included. `refuse_nulls` raises for them once there
    are rows.

    Raises:
        InvalidInput: its columns can't become messages. See `check`.
    """
    schema = frame.schema
    check(schema)
    types = {field.name: field.dataType for field in schema}
    headers = json_text(HEADERS, types[HEADERS]) if HEADERS in types else sql.lit(None).cast("string")
    return frame.select(sql.col(KEY), headers.alias(HEADERS), _data(types).alias(DATA))


def check(schema: StructType) -> None:
    """Check that rows of this schema can become messages, before anything runs.

    Raises:
        InvalidInput: the message names the columns of the schema and what is required.
    """
    if len(set(schema.names)) < len(schema.names):
        raise _invalid_columns(schema, "has two columns of the same name")
    fields = {field.name: field.dataType for field in schema}
    if not isinstance(fields.get(KEY), StringType):
        raise _invalid_columns(
            schema, "has no string column `key`" if KEY not in fields else "has a `key` that is not a string"
        )
    if not isinstance(fields.get(HEADERS, StringType()), (StringType, MapType, StructType, NullType)):
        raise _invalid_columns(schema, "has `headers` that are neither JSON text nor a map or a struct")
    others = [name for name in schema.names if name not in (KEY, HEADERS, DATA)]
    if DATA in fields:
        more = [name for name in others if name not in MESSAGE_COLUMNS]
        if more:
            raise _invalid_columns(
                schema, f"has both `data` and {', '.join(more)}, and only one of them can be the data"
            )
    elif not others:
        raise _invalid_columns(schema, "has no column for the data")
    for field in schema:
        for path, kind in _unwritable(field.name, field.dataType):
            raise InvalidInput(
                f"The DataFrame's column {path} is of type {kind.simpleString()}, which has no form in JSON. Cast it to a string."
            )


def _invalid_columns(schema: StructType, problem: str) -> InvalidInput:
    columns = ", ".join(f"{field.name} {_short(field.dataType)}" for field in schema) or "none"
    return InvalidInput(f"The DataFrame {problem}. Its columns are: {columns}. {REQUIREMENTS}.")


def _short(kind: DataType) -> str:
    return f"{kind.simpleString():.60}"


def _unwritable(path: str, kind: DataType) -> Iterator[tuple[str, DataType]]:
    """The types inside this type that have no JSON form, each with its path."""
    if isinstance(kind, ArrayType):
        yield from _unwritable(f"{path}[]", kind.elementType)
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, (StringType, IntegralType)):
            yield f"{path} (its keys)", kind.keyType
        yield from _unwritable(f"{path}[]", kind.valueType)
    elif isinstance(kind, StructType):
        if len(set(kind.names)) < len(kind.names):
            yield path, kind
        for field in kind:
            yield from _unwritable(f"{path}.{field.name}", field.dataType)
    elif not isinstance(kind, _SCALARS):
        yield path, kind


def _data(types: dict[str, DataType]) -> Column:
    if DATA in types:
        return json_text(DATA, types[DATA])
    names = [name for name in types if name not in (KEY, HEADERS)]
    whole = StructType([StructField(name, types[name]) for name in names])
    return _json(sql.struct(*(_named(name) for name in names)), whole)


def json_text(name: str, kind: DataType) -> Column:
    """The column as JSON text. Null values stay null."""
    column = _named(name)
    if isinstance(kind, NullType):
        return sql.lit(None).cast("string")
    if isinstance(kind, StringType):
        return column.cast("string")
    if isinstance(kind, (ArrayType, MapType, StructType)):
        return _json(column, kind)
    # Spark can't write a scalar alone as JSON. It is therefore written in an array, and the
    # brackets are removed.
    alone = _json(sql.array(column), ArrayType(kind))
    return sql.when(column.isNotNull(), sql.substr(alone, sql.lit(2), sql.length(alone) - 2))


def _named(name: str) -> Column:
    return sql.col("`" + name.replace("`", "``") + "`")


def _json(column: Column, kind: DataType) -> Column:
    wanted = _for_json(kind)
    return sql.to_json(column if wanted == kind else column.cast(wanted), _JSON)


def _for_json(kind: DataType) -> DataType:
    """The type with all decimals and all keys of maps replaced by strings, at any depth."""
    if isinstance(kind, DecimalType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_for_json(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(StringType(), _for_json(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _for_json(field.dataType), field.nullable) for field in kind])
    return kind
