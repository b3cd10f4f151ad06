"""Reads from the server's catalog what types consist of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

import msgspec

Kind = Literal["base", "enum", "domain", "composite", "array", "range", "multirange"]


class TypeInfo(msgspec.Struct, frozen=True):
    """A type.

    Attributes:
        oid: its oid.
        name: its name without the schema.
        kind: its structure. Types that visibly contain no other types are `base`.
        element: the type of an array's elements, a domain's base type, the type of a range's
            bounds, or the range type of a multirange.
        delimiter: the separator of an array's elements. It is a comma for all built-in types but
            `box`.
        attributes: names and types of a composite's attributes.
    """

    oid: int
    name: str
    kind: Kind = "base"
    element: int | None = None
    delimiter: str = ","
    attributes: tuple[tuple[str, int], ...] = ()


class Queryable(Protocol):
    """A connection to the captured database, reduced to what is needed here."""

    async def query(self, sql: str, *params: str | None) -> list[tuple[str | None, ...]]: ...


# The output function determines a type's kind. Therefore int2vector and oidvector, which are arrays in the
# catalog, are base types here.
_TYPES = """
    select t.oid, t.typname, k.kind,
           case k.kind when 'array' then t.typelem when 'domain' then t.typbasetype
                       when 'range' then r.rngsubtype when 'multirange' then m.rngtypid end,
           coalesce(e.typdelim, ','),
           (select json_agg(json_build_array(a.attname, a.atttypid::bigint) order by a.attnum) from pg_catalog.pg_attribute as a
             where a.attrelid = t.typrelid and k.kind = 'composite' and a.attnum > 0 and not a.attisdropped)
      from pg_catalog.pg_type as t
           left join pg_catalog.pg_type as e on e.oid = t.typelem
           left join pg_catalog.pg_range as r on r.rngtypid = t.oid
           left join pg_catalog.pg_range as m on m.rngmultitypid = t.oid
           cross join lateral (select case when t.typtype = 'd' then 'domain'
                                           when t.typoutput = 'pg_catalog.array_out'::regproc then 'array'
                                           when t.typtype = 'c' then 'composite'
                                           when t.typtype = 'e' then 'enum'
                                           when t.typtype = 'r' then 'range'
                                           when t.typtype = 'm' then 'multirange'
                                           else 'base' end as kind) as k
     where t.oid = any ($1::pg_catalog.oid[])
"""


async def load_types(connection: Queryable, oids: Iterable[int], known: dict[int, TypeInfo]) -> None:
    """Add the types `oids`, and all types that they consist of, to `known`, unless they are there
    already.

    A type that is not in the catalog, because it was dropped, is added as a base type, so its
    values become strings. To reload a composite type after its attributes have changed, remove it
    from `known` first.

    Args:
        connection: a connection to the captured database.
        oids: types of columns.
        known: types by oid.

    Raises:
        SourceUnavailable, SourceRefused: errors of the connection's query.
    """
    missing = set(oids) - known.keys()
    while missing:
        found = [_info(row) for row in await connection.query(_TYPES, "{" + ",".join(map(str, sorted(missing))) + "}")]
        known.update((oid, TypeInfo(oid, "dropped")) for oid in missing)
        known.update((info.oid, info) for info in found)
        missing = {component for info in found for component in _component_oids(info)} - known.keys()


def _info(row: tuple[str | None, ...]) -> TypeInfo:
    names = ("oid", "name", "kind", "element", "delimiter")
    shape = dict(zip(names, row, strict=False))
    attributes = msgspec.json.decode(row[5] or "[]")
    return msgspec.convert({**shape, "attributes": attributes}, TypeInfo, strict=False)


def _component_oids(info: TypeInfo) -> list[int]:
    return [oid for _, oid in info.attributes] + ([] if info.element is None else [info.element])
