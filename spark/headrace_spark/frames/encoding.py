"""Encodes Arrow batches as messages, inside a Python task.

`headrace_spark.frames.outgoing` does the same in the plan.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Sequence
from datetime import UTC
from math import isfinite
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
from pyspark.sql.pandas.types import is_variant
from pyspark.sql.types import VariantVal

from headrace.model.errors import InvalidData, InvalidInput

KEY, HEADERS, DATA = "key", "headers", "data"

MESSAGE_COLUMNS = ("seq", "created_at")
"""Columns of a message that was read.

They may stand beside `data` and are dropped, since a new message gets its own.
"""

_Convert = Callable[[Any], Any]
_encode = msgspec.json.Encoder().encode

MESSAGES = pa.schema([(KEY, pa.string()), (HEADERS, pa.string()), (DATA, pa.string())])
"""The Arrow schema of messages: the key, the headers as JSON text or null, and the data as JSON text."""


def encode(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Encode rows as messages with the string columns `key`, `headers` and `data`.

    Args:
        batch: rows with columns that `headrace_spark.frames.outgoing.check` has accepted.

    Raises:
        InvalidInput: a key or data is null.
        InvalidData: JSON can't hold a value, such as a time after the year 9999.
    """
    names = batch.schema.names
    columns = {name: batch.column(place) for place, name in enumerate(names)}
    headers = _texts(columns[HEADERS]) if HEADERS in columns else pa.nulls(batch.num_rows, pa.string())
    data = _texts(columns[DATA]) if DATA in columns else _objects(columns)
    encoded = pa.RecordBatch.from_arrays([columns[KEY].cast(pa.string()), headers, data], schema=MESSAGES)
    refuse_nulls(encoded)
    return encoded


def refuse_nulls(messages: pa.RecordBatch | pa.Table) -> None:
    """Raise `InvalidInput` if a key or data is null."""
    for name in (KEY, DATA):
        count = messages.column(name).null_count
        if count:
            raise InvalidInput(
                f"{count} of {messages.num_rows} rows of the DataFrame have a null `{name}`. Every message has a key and data."
                " Filter these rows out, or fill in the values."
            )


def _objects(columns: dict[str, pa.Array]) -> pa.Array:
    """All columns except the key and the headers, as a JSON object for each row."""
    names = [name for name in columns if name not in (KEY, HEADERS)]
    values = [_values(columns[name]) for name in names]
    return pa.array([_json(dict(zip(names, row, strict=True))) for row in zip(*values, strict=True)], pa.string())


def _texts(column: pa.Array) -> pa.Array:
    """A column as JSON text. A string already is JSON text."""
    if _is_text(column.type) or pa.types.is_null(column.type):
        return column.cast(pa.string())
    return pa.array([None if value is None else _json(value) for value in _values(column)], pa.string())


def _json(value: Any) -> str:
    return _encode(value).decode()


def _values(column: pa.Array) -> Sequence[Any]:
    """The column's values in the form that msgspec writes as wanted."""
    try:
        found: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    except (OverflowError, ValueError) as error:
        raise InvalidData(f"A value of the DataFrame can't be written as JSON: {error}.") from error
    convert = _converter(column.type)
    return found if convert is None else [None if value is None else convert(value) for value in found]


def _converter(kind: pa.DataType) -> _Convert | None:
    """The converter for values of this type, or None if msgspec can write them unchanged."""
    if pa.types.is_decimal(kind):
        return lambda value: f"{value:f}"
    if pa.types.is_float32(kind):
        return _float32
    if pa.types.is_floating(kind):
        return lambda value: value if isfinite(value) else _non_finite(value)
    if pa.types.is_timestamp(kind):
        return _timestamp if kind.tz is not None else lambda value: value.isoformat(timespec="microseconds")
    if pa.types.is_date(kind):
        return lambda value: value.isoformat()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_map(kind):
        return _of_map(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_list(kind)
    if pa.types.is_struct(kind):
        return _of_variant if is_variant(kind) else _of_struct(kind)
    return None


def _of_map(kind: pa.MapType) -> _Convert | None:
    inner = _converter(kind.item_type)
    if inner is None:
        return None if _is_text(kind.key_type) else lambda value: {str(name): one for name, one in value.items()}
    return lambda value: {str(name): None if one is None else inner(one) for name, one in value.items()}


def _of_list(kind: pa.ListType) -> _Convert | None:
    inner = _converter(kind.value_type)
    return None if inner is None else lambda value: [None if one is None else inner(one) for one in value]


def _of_struct(kind: pa.StructType) -> _Convert | None:
    inner = [(field.name, convert) for field in kind if (convert := _converter(field.type)) is not None]
    if not inner:
        return None

    def converted(value: dict[str, Any]) -> dict[str, Any]:
        for name, convert in inner:
            if value[name] is not None:
                value[name] = convert(value[name])
        return value

    return converted


def _of_variant(value: dict[str, bytes]) -> msgspec.Raw:
    try:
        text = VariantVal(**value).toJson()
    except RecursionError:
        raise InvalidData("A variant of the DataFrame is nested too deeply to be written as JSON.") from None
    if "inf" in text or "nan" in text:  # PySpark writes such numbers as Python does
        text = _NOT_FINITE.sub(lambda found: _quoted_number(found[0]), text)
    return msgspec.Raw(text.encode())


_NOT_FINITE = re.compile(r'"(?:[^"\\]|\\.)*"|-?inf|nan')
"""A string, or a number that JSON does not have."""


def _quoted_number(text: str) -> str:
    return text if text.startswith('"') else f'"{_non_finite(float(text))}"'


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _timestamp(value: Any) -> str:
    return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _non_finite(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _float32(value: float) -> float | str:
    """The shortest number that equals this one in single precision, as Java writes it.

    For example it is 0.1, not 0.10000000149011612.
    """
    if not isfinite(value):
        return _non_finite(value)
    for digits in range(6, 9):
        short = float(f"{value:.{digits}g}")
        if struct.unpack("f", struct.pack("f", short))[0] == value:
            return short
    return float(f"{value:.9g}")
