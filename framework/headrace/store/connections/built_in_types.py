"""The types that come with Postgres, as far as asyncpg has no codecs for them: arrays, ranges and multiranges.

On each new connection asyncpg asks the server what these are, by a query that takes the server several milliseconds. With
`jit` on, it changes that setting before and after it. But their oids are the same in all versions and installations of
Postgres: those below 10,000 are assigned by hand (`src/include/access/transam.h`, and `pg_type.dat` has them).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

Rows = Sequence[Mapping[str, Any]]
"""The answer of the server: a row for each type, and for the types that it consists of."""

# The oid of each type, that of its elements, and SQL's name of these.
_ARRAYS = {
    "json": (199, 114, "json"),
    "bool": (1000, 16, "boolean"),
    "bytea": (1001, 17, "bytea"),
    "int2": (1005, 21, "smallint"),
    "int4": (1007, 23, "integer"),
    "text": (1009, 25, "text"),
    "varchar": (1015, 1043, "character varying"),
    "int8": (1016, 20, "bigint"),
    "float4": (1021, 700, "real"),
    "float8": (1022, 701, "double precision"),
    "timestamp": (1115, 1114, "timestamp without time zone"),
    "date": (1182, 1082, "date"),
    "time": (1183, 1083, "time without time zone"),
    "timestamptz": (1185, 1184, "timestamp with time zone"),
    "interval": (1187, 1186, "interval"),
    "numeric": (1231, 1700, "numeric"),
    "uuid": (2951, 2950, "uuid"),
    "jsonb": (3807, 3802, "jsonb"),
}
# The oid of each range, that of its multirange, that of its bounds, and SQL's name of these.
_RANGES = {
    "int4": (3904, 4451, 23, "integer"),
    "num": (3906, 4532, 1700, "numeric"),
    "ts": (3908, 4533, 1114, "timestamp without time zone"),
    "tstz": (3910, 4534, 1184, "timestamp with time zone"),
    "date": (3912, 4535, 1082, "date"),
    "int8": (3926, 4536, 20, "bigint"),
}


class _NoStatement(NamedTuple):
    """In place of the statement that asyncpg would have sent. A name means that it has not replaced an unnamed one."""

    name: str = "none"


async def described(oids: Collection[int], ask: Callable[[], Awaitable[tuple[Rows, Any]]]) -> tuple[Rows, Any]:
    """Return the description of types that asyncpg wants, and the statement that it came by.

    Args:
        oids: the oids of the types.
        ask: asks the server about all of them.
    """
    if all(oid in _BUILT_IN for oid in oids):
        return [_BUILT_IN[oid] for oid in oids], _NoStatement()
    return await ask()


def _row(oid: int, name: str, kind: bytes = b"b", **columns: Any) -> dict[str, Any]:
    """A row of asyncpg's query."""
    empty = dict.fromkeys(("basetype", "elemdelim", "range_subtype", "attrtypoids", "attrnames", "basetype_name"))
    nothing = {"elemtype": 0, "elemtype_name": "-", "range_subtype_name": None}
    return {"oid": oid, "ns": "pg_catalog", "name": name, "kind": kind, "depth": 0, **empty, **nothing, **columns}


def _rows() -> list[dict[str, Any]]:
    arrays = [
        _row(oid, f"_{name}", elemtype=element, elemdelim=b",", elemtype_name=of)
        for name, (oid, element, of) in _ARRAYS.items()
    ]
    ranges = [
        _row(oid, f"{name}{suffix}", kind, range_subtype=bound, range_subtype_name=of)
        for name, (simple, multiple, bound, of) in _RANGES.items()
        for oid, suffix, kind in ((simple, "range", b"r"), (multiple, "multirange", b"m"))
    ]
    return arrays + ranges


_BUILT_IN = {row["oid"]: row for row in _rows()}
