"""SQL expressions that convert Postgres values to JSON on the server, in the formats of change capture.

    boolean, integers, floats    unchanged, but NaN and the infinities are strings
    numeric                      a string, so that it is never rounded
    timestamptz                  ISO 8601 in UTC, with a Z
    timestamp, date, time, timetz    ISO 8601
    json, jsonb                  unchanged
    arrays, composites, ranges   arrays, objects, {"lower", "upper", "bounds"}
    all others                   a string of the value's text, bytea as `\\x6869`

Years without exactly four digits are written as the server writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.model.text.sql import quoted

SETTINGS = {
    "client_encoding": "UTF8",
    "datestyle": "ISO,MDY",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "lc_monetary": "C",
}
"""Session settings for reading values."""


class Type(msgspec.Struct, frozen=True):
    """A type in the catalog, with the attributes used here.

    Attributes:
        oid: its oid.
        name: its SQL name, with its schema where that is needed.
        kind: base, domain, composite, array, range or multirange. An enum is base.
        element: the type of an array's elements, a domain's base, a range's bounds, or a
            multirange's ranges.
        attributes: the names and types of a composite.
    """

    oid: int
    name: str
    kind: str = "base"
    element: int = 0
    attributes: tuple[tuple[str, int], ...] = ()


# A type is classified by its output function. Therefore int2vector and oidvector, which the catalog calls
# arrays, are base types here.
TYPES = """
    select t.oid::bigint, pg_catalog.format_type(t.oid, null), k.kind,
           coalesce(case k.kind when 'array' then t.typelem when 'domain' then t.typbasetype
                                when 'range' then r.rngsubtype when 'multirange' then m.rngtypid end, 0)::bigint,
           (select json_agg(json_build_array(a.attname, a.atttypid::bigint) order by a.attnum)::text from pg_catalog.pg_attribute as a
             where a.attrelid = t.typrelid and k.kind = 'composite' and a.attnum > 0 and not a.attisdropped)
      from pg_catalog.pg_type as t
           left join pg_catalog.pg_range as r on r.rngtypid = t.oid
           left join pg_catalog.pg_range as m on m.rngmultitypid = t.oid
           cross join lateral (select case when t.typtype = 'd' then 'domain'
                                           when t.typoutput = 'pg_catalog.array_out'::regproc then 'array'
                                           when t.typtype = 'c' then 'composite'
                                           when t.typtype = 'r' then 'range'
                                           when t.typtype = 'm' then 'multirange'
                                           else 'base' end as kind) as k
     where t.oid = any(string_to_array($1::text, ',')::oid[])
"""


def load_types(fetch: Callable[..., list[tuple[Any, ...]]], oids: Sequence[int]) -> dict[int, Type]:
    """Load the types, and all types that they are made of.

    Args:
        fetch: runs a query with arguments.
        oids: the oids of the types.
    """
    known: dict[int, Type] = {}
    wanted = set(oids)
    while wanted:
        for oid, name, kind, element, attributes in fetch(TYPES, ",".join(map(str, sorted(wanted)))):
            members = tuple((str(name), int(type_)) for name, type_ in msgspec.json.decode(attributes or "[]"))
            known[oid] = Type(oid, name, kind, element, members)
        parts = {
            part for type_ in known.values() for part in (type_.element, *(oid for _, oid in type_.attributes)) if part
        }
        wanted = parts - known.keys()
    return known


_UNCHANGED = "to_json({0})"
_AS_TEXT = "to_json({0}::text)"
_IN_UTC = """replace(to_json({0})::text, '+00:00"', 'Z"')::json"""
_BASE = {
    16: _UNCHANGED,  # bool
    20: _UNCHANGED,  # int8
    21: _UNCHANGED,  # int2
    23: _UNCHANGED,  # int4
    26: "to_json({0}::bigint)",  # oid
    22: "array_to_json(string_to_array({0}::text, ' ')::bigint[])",  # int2vector
    30: "array_to_json(string_to_array({0}::text, ' ')::bigint[])",  # oidvector
    114: "{0}::json",  # json
    3802: "{0}::json",  # jsonb
    700: _UNCHANGED,  # float4
    701: _UNCHANGED,  # float8
    1082: _UNCHANGED,  # date
    1114: _UNCHANGED,  # timestamp
    1184: _IN_UTC,  # timestamptz
    1266: r"to_json({0}::text || case when {0}::text ~ '[+-]\d\d$' then ':00' else '' end)",  # timetz
}
_ARRAYS = {1184: _IN_UTC, 1700: "to_json({0}::text[])", 26: "to_json({0}::bigint[])"}


def as_json(oid: int, value: str, types: Mapping[int, Type]) -> str:
    """Return a SQL expression for the JSON of a value.

    Args:
        oid: the value's type.
        value: a SQL expression for the value.
        types: the result of `load_types`.
    """
    type_ = types.get(oid)
    if type_ is None or oid in _BASE or type_.kind == "base":
        return _BASE.get(oid, _AS_TEXT).format(value)
    if type_.kind == "domain":
        return as_json(type_.element, f"({value})::{types[type_.element].name}", types)
    if type_.kind == "array":
        return _array(type_.element, value, types)
    if type_.kind == "composite":
        fields = ", ".join(
            f"{as_json(part, f'({value}).{quoted(name)}', types)} as {quoted(name)}" for name, part in type_.attributes
        )
        composed = (
            f"(select row_to_json(composed) from (select {fields}) as composed)" if fields else f"to_json({value})"
        )
        return f"case when ({value})::text is not null then {composed} end"
    if type_.kind == "range":
        return _range(type_.element, value, types)
    inner = as_json(type_.element, "part", types)
    return f"case when {value} is not null then (select coalesce(json_agg({inner}), '[]') from unnest({value}) as part) end"


def _array(element: int, value: str, types: Mapping[int, Type]) -> str:
    kind = types[element].kind
    if kind == "base" and element not in (22, 30, 1266):
        return _ARRAYS.get(element, _UNCHANGED).format(value)
    place = f"i{len(value)}"  # the expression of an inner array is longer, so its index variable gets another name
    inner = as_json(element, f"({value})[{place}]", types)
    return (
        f"case when {value} is not null then (select coalesce(json_agg({inner} order by {place}), '[]')"
        f" from generate_subscripts({value}, 1) as {place}) end"
    )


def _range(bound: int, value: str, types: Mapping[int, Type]) -> str:
    lower, upper = as_json(bound, f"lower({value})", types), as_json(bound, f"upper({value})", types)
    bounds = (
        f"case when isempty({value}) then 'empty' else case when lower_inc({value}) then '[' else '(' end"
        f" || case when upper_inc({value}) then ']' else ')' end end"
    )
    return f"case when {value} is not null then json_build_object('lower', {lower}, 'upper', {upper}, 'bounds', {bounds}) end"
