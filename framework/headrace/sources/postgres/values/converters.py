"""Maps types to their converters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from headrace.sources.postgres.values import datetimes, nested, scalars
from headrace.sources.postgres.values.scalars import Converter
from headrace.sources.postgres.values.types import TypeInfo

_NUMERIC = 1700

# The oids are part of Postgres's protocol, and never change, see pg_type.dat. All other types have
# the text converter.
_BUILT_IN: dict[int, Converter] = {
    16: scalars.boolean,
    17: scalars.hexadecimal,  # bytea
    20: scalars.integer,  # int8
    21: scalars.integer,  # int2
    22: scalars.vector,  # int2vector
    23: scalars.integer,  # int4
    26: scalars.integer,  # oid
    30: scalars.vector,  # oidvector
    114: scalars.json,
    700: scalars.floating,  # float4
    701: scalars.floating,  # float8
    1082: datetimes.date,
    1083: scalars.quoted,  # time
    1114: datetimes.timestamp,
    1184: datetimes.timestamptz,
    1186: scalars.quoted,  # interval
    1266: datetimes.timetz,
    2950: scalars.quoted,  # uuid
    3802: scalars.json,  # jsonb
    6437: scalars.integer,  # oid8, from PostgreSQL 19 on
}


def converter(oid: int, types: Mapping[int, TypeInfo], *, numeric: Literal["string", "number"] = "string") -> Converter:
    """Return the converter of a type's values to JSON.

    Args:
        oid: the type. Values of a type that is neither built in nor in `types` become strings.
        types: the types that consist of others, see `load_types`.
        numeric: whether `numeric` becomes a string or a number. Neither loses a digit here, but
            JSON parsers may round numbers.

    Returns:
        A function from a value's text, made under `SETTINGS`, to its JSON text. It never raises for
        text that a server wrote.
    """
    if oid == _NUMERIC:
        return scalars.quoted if numeric == "string" else scalars.number
    built_in = _BUILT_IN.get(oid)
    if built_in is not None:
        return built_in
    info = types.get(oid)
    return (
        scalars.text if info is None else _nested_converter(info, lambda part: converter(part, types, numeric=numeric))
    )


def _nested_converter(info: TypeInfo, converter_of: Callable[[int], Converter]) -> Converter:
    if info.kind == "composite":
        return nested.composite([(name, converter_of(oid)) for name, oid in info.attributes])
    if info.element is None:
        return scalars.text
    part = converter_of(info.element)
    if info.kind == "array":
        return nested.array(part, info.delimiter.encode())
    if info.kind == "range":
        return nested.range_(part)
    if info.kind == "multirange":
        return nested.multirange(part)
    return part  # the converter of a domain's base type
