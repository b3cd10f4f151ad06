"""Builds Arrow arrays of a known Spark type from decoded Python values.

Values are converted one column at a time, since row by row would be slow. A column is a tree like its type: a
`ScalarColumn` of values, a `VariantColumn` of JSON texts, a `StructColumn` of named columns, an `ArrayColumn` of one
column, or a `MapColumn` of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, Protocol

import msgspec
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType, VariantVal

UNFIT = (pa.ArrowException, OverflowError, RecursionError, ValueError, TypeError)
"""The errors that `build` raises for a value that its type can't hold."""


class Column(Protocol):
    """Builds an Arrow array from Python values."""

    @property
    def kind(self) -> DataType:
        """The Spark type."""

    def build(self, values: Sequence[Any]) -> pa.Array:
        """Build an array of the values, any of which may be None. Raises one of `UNFIT`."""


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type of a Spark type. Timestamps are in UTC."""
    return to_arrow_type(kind, timezone="UTC")


class ScalarColumn:
    """A column of scalar values, converted first if necessary."""

    def __init__(self, kind: DataType, convert: Callable[[Any], Any] | None = None) -> None:
        self.kind = kind
        self._convert = convert
        self._arrow = arrow_type(kind)

    def build(self, values: Sequence[Any]) -> pa.Array:
        """See `Column`."""
        convert = self._convert
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        return pa.array(values, self._arrow)


class VariantColumn:
    """A column of JSON values, each in the binary form in which Spark keeps values of any shape."""

    def __init__(self) -> None:
        self.kind = VariantType()
        self._arrow = arrow_type(self.kind)

    def build(self, values: Sequence[Any]) -> pa.Array:
        """See `Column`. The values are JSON texts, as `msgspec.Raw`."""
        variants = [None if value is None else VariantVal.parseJson(bytes(value).decode()) for value in values]
        return pa.array([None if one is None else self.kind.toInternal(one) for one in variants], self._arrow)


class Field(msgspec.Struct, frozen=True):
    """A column of a record. `name` is its name in Spark, and `get` takes its value out of the record."""

    name: str
    get: Callable[[Any], Any]
    column: Column
    nullable: bool


class StructColumn:
    """A struct column, made of other columns."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = fields
        self.kind = StructType([StructField(field.name, field.column.kind, field.nullable) for field in fields])
        self._arrow = list(arrow_type(self.kind))

    def build(self, values: Sequence[Any]) -> pa.Array:
        """See `Column`."""
        missing = [value is None for value in values]
        columns = [field.column.build(_extracted(field.get, values)) for field in self.fields]
        return pa.StructArray.from_arrays(columns, fields=self._arrow, mask=pa.array(missing) if any(missing) else None)


class ArrayColumn:
    """An array column. Its elements are of another column."""

    def __init__(self, column: Column, *, nullable: bool) -> None:
        self._column = column
        self.kind = ArrayType(column.kind, nullable)
        self._arrow = arrow_type(self.kind)

    def build(self, values: Sequence[Any]) -> pa.Array:
        """See `Column`."""
        inner = self._column.build(_flat(values))
        return pa.ListArray.from_arrays(_offsets(values), inner, type=self._arrow)


class MapColumn:
    """A map column from one column's values to another's."""

    def __init__(self, keys: Column, column: Column, *, nullable: bool) -> None:
        self._keys = keys
        self._column = column
        self.kind = MapType(keys.kind, column.kind, nullable)
        self._arrow = arrow_type(self.kind)

    def build(self, values: Sequence[Any]) -> pa.Array:
        """See `Column`."""
        keys = self._keys.build(_flat(values))
        inner = self._column.build(_flat(None if value is None else value.values() for value in values))
        return pa.MapArray.from_arrays(_offsets(values), keys, inner, type=self._arrow)


def _extracted(get: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    return [None if value is None else get(value) for value in values]


def _flat(values: Iterable[Any]) -> list[Any]:
    return list(chain.from_iterable(value for value in values if value is not None))


def _offsets(values: Sequence[Any]) -> pa.Array:
    """The offset of each value in the flat array, and the end of the last. A null value has a null offset."""
    ends = list(accumulate((0 if value is None else len(value) for value in values), initial=0))
    begins: list[int | None] = [None if value is None else at for value, at in zip(values, ends, strict=False)]
    return pa.array([*begins, ends[-1]], pa.int32())
