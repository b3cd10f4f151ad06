"""Reads tables from the captured server's catalog."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace import store
from headrace.sources.postgres import table_names
from headrace.sources.postgres.connection.arrays import oid_array, text_array
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.tables import Table, TableColumn

OWN_TABLE = "{} belongs to Headrace, whose tables hold secrets and can't be captured."

NOT_NULL = """(a.attnotnull and not exists (
                    select from pg_catalog.pg_constraint as n
                     where n.conrelid = a.attrelid and n.contype = 'n' and not n.convalidated and n.conkey = array[a.attnum]))"""
"""Whether the column `a` has no nulls. From PostgreSQL 18 on, `not null` may be `not valid`: older rows may have some."""

# Reads the fields of `Table`. The key is the primary key. Without one it is a unique index over
# columns that are not null, where the replica identity comes first, then the narrowest. A
# partitioned table itself has no rows, so its estimate is the sum over its leaves. The last column
# is a table of Headrace: itself, or one that is a part of it or inherits from it. Stored
# generated columns are published from PostgreSQL 18 on. A publication may have a list of columns.
_TABLES = f"""
    with wanted as (
        select c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident, c.reltuples
          from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
         where c.oid = any ($1::pg_catalog.oid[])
    ), indexes as (
        select i.indrelid, i.indisprimary, i.indisreplident, i.indexrelid,
               (select array_agg(a.attname::text order by k.place) from unnest(i.indkey) with ordinality as k(attnum, place)
                  join pg_catalog.pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum
                 where k.place <= i.indnkeyatts) as columns
          from pg_catalog.pg_index as i
         where i.indrelid in (select w.oid from wanted as w)
           and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null and i.indexprs is null
           and not exists (select from unnest(i.indkey) with ordinality as k(attnum, place)
                             join pg_catalog.pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum
                            where k.place <= i.indnkeyatts and not {NOT_NULL})
    ), listed as (
        select p.schemaname, p.tablename, to_jsonb(p) -> 'attnames' as columns
          from pg_catalog.pg_publication_tables as p where p.pubname = $2
    )
    select w.oid::pg_catalog.text, w.nspname, w.relname, w.relkind, w.relpersistence, w.relreplident,
           (select json_agg(json_build_array(
                       a.attname, a.atttypid::bigint, {NOT_NULL},
                       (a.attgenerated = '' or (a.attgenerated = 's' and $3 >= '18'))
                       and coalesce((select l.columns ? a.attname::text from listed as l
                                      where l.schemaname = w.nspname and l.tablename = w.relname), true),
                       coalesce((select l.columns ? a.attname::text from listed as l
                                  where l.schemaname = w.nspname and l.tablename = w.relname), true)) order by a.attnum)
              from pg_catalog.pg_attribute as a where a.attrelid = w.oid and a.attnum > 0 and not a.attisdropped),
           to_json(x.columns), x.indisprimary,
           case w.relreplident when 'd' then (select to_json(i.columns) from indexes as i where i.indrelid = w.oid and i.indisprimary)
                               when 'i' then (select to_json(i.columns) from indexes as i where i.indrelid = w.oid and i.indisreplident) end,
           case when w.relkind = 'p'
                then (select sum(greatest(leaf.reltuples, 0))::bigint from pg_catalog.pg_partition_tree(w.oid) as t
                        join pg_catalog.pg_class as leaf on leaf.oid = t.relid where t.isleaf)
                when w.reltuples >= 0 then w.reltuples::bigint end,
           (select r.oid::pg_catalog.oid::text from pg_catalog.pg_partition_root(w.oid) as r(oid) where r.oid <> w.oid),
           (with recursive tree (oid) as (
                select w.oid union all select i.inhrelid from pg_catalog.pg_inherits as i join tree as t on t.oid = i.inhparent)
            select json_agg(json_build_array(l.name, l.columns) order by l.name)
              from (select min(pg_catalog.format('%I.%I', n.nspname, c.relname)) as name, x.columns
                      from tree as t join pg_catalog.pg_class as c on c.oid = t.oid join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
                           cross join lateral (
                               select coalesce(array_agg(a.attname::text order by a.attnum), '{{}}') as columns
                                 from pg_catalog.pg_index as i cross join unnest(i.indkey) with ordinality as k(attnum, place)
                                      join pg_catalog.pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum
                                where i.indrelid = c.oid and k.place <= i.indnkeyatts
                                  and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident end) as x
                     where w.relkind = 'p' and c.relkind = 'r' and c.relreplident <> 'f' and not (c.relreplident = 'd' and w.relreplident = 'd')
                     group by x.columns) as l),
           (with recursive tree (oid) as (
                select w.oid union select i.inhrelid from pg_catalog.pg_inherits as i join tree as t on t.oid = i.inhparent)
            select min(pg_catalog.format('%I.%I', n.nspname, c.relname))
              from tree as t join pg_catalog.pg_class as c on c.oid = t.oid join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
             where n.nspname = any ($4::text[]))
      from wanted as w
           left join lateral (select * from indexes as i where i.indrelid = w.oid
                               order by i.indisprimary desc, i.indisreplident desc, cardinality(i.columns), i.indexrelid limit 1) as x on true
"""

_OIDS = """
    select w.schema, w.relation, c.oid::pg_catalog.text, c.relkind, c.relpersistence
      from unnest($1::text[], $2::text[]) with ordinality as w(schema, relation, place)
           left join pg_catalog.pg_namespace as n on n.nspname = w.schema
           left join pg_catalog.pg_class as c on c.relnamespace = n.oid and c.relname = w.relation
     order by w.place
"""

# Without Headrace's own tables, since a stream often has the name of the table that it is captured
# from.
_EXISTING_TABLES = """
    select n.nspname, c.relname from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
     where c.relkind in ('r', 'p') and n.nspname <> 'information_schema' and n.nspname <> all ($1::text[]) and n.nspname !~ '^pg_'
     limit 10000
"""

_RELATION_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "c": "a type",
    "i": "an index",
    "I": "an index",
}


class LocatedTable(msgspec.Struct, frozen=True):
    """The result of looking up a table's name. `oid` is None if there is no such table. `problem` says
    why it can't be captured, and `mend` has the statement that corrects it.
    """

    name: str
    oid: str | None
    problem: str | None
    mend: str | None = None


async def load_tables(
    connection: SourceConnection, names: Sequence[str], publication: str | None = None
) -> dict[str, Table]:
    """Return the tables of these names, by the names as given.

    Args:
        connection: a connection to the captured database.
        names: each `schema.table`, with double quotes around what is not plain lower case.
        publication: a publication of the tables. If given, it determines which columns are
            published.

    Raises:
        SourceStopped: a table does not exist, or has no changes that can be captured.
    """
    located = await locate_tables(connection, names)
    if rejected := [table for table in located if table.problem]:
        raise SourceStopped(
            " ".join(table.problem or "" for table in rejected),
            " ".join(table.mend for table in rejected if table.mend) or None,
        )
    tables = {
        table.oid: table
        for table, _ in await _load(connection, [table.oid for table in located if table.oid], publication)
    }
    for table in tables.values():
        refuse_own(table)
    if len(tables) < len({table.oid for table in located}):
        raise SourceStopped("A captured table has just been dropped.")
    return {table.name: tables[int(table.oid)] for table in located if table.oid}


async def tables_with_oids(
    connection: SourceConnection, oids: Mapping[str, int], publication: str | None = None
) -> dict[str, Table]:
    """Return the tables with these oids, by their names in a source's settings. Those that are gone are left out. Raises
    `SourceStopped` for a table of Headrace.
    """
    loaded = {table.oid: table for table, _ in await _load(connection, [*map(str, oids.values())], publication)}
    for table in loaded.values():
        refuse_own(table)
    return {name: named(loaded[oid], name) for name, oid in oids.items() if oid in loaded}


def named(table: Table, name: str) -> Table:
    """Return the table under a source's name for it. Keys must not change when a table is renamed."""
    if table.name == name:
        return table
    schema, relation = table_names.split(name)
    return msgspec.structs.replace(table, name=name, schema=schema, relation=relation, renamed=table.sql_name)


async def existing_tables(connection: SourceConnection, names: Sequence[str]) -> list[Table]:
    """Return the tables of these names that exist and can be captured."""
    located = await locate_tables(connection, names)
    oids = [table.oid for table in located if table.oid is not None and table.problem is None]
    return [table for table, _ in await _load(connection, oids, None)]


async def table_with_oid(
    connection: SourceConnection, oid: int, publication: str | None = None
) -> tuple[Table, int | None] | None:
    """Return the table with this oid, and the oid of its root if it is a partition. None if the table
    is gone.
    """
    loaded = await _load(connection, [str(oid)], publication)
    return loaded[0] if loaded else None


async def locate_tables(connection: SourceConnection, names: Sequence[str]) -> list[LocatedTable]:
    """Look up the names. A problem with a table is returned in its `LocatedTable`, not raised. Invalid names
    raise `ConfigurationError`.
    """
    parts = [table_names.split(name) for name in names]
    rows = await connection.query(
        _OIDS, text_array(schema for schema, _ in parts), text_array(relation for _, relation in parts)
    )
    missing = any(row[2] is None for row in rows)
    existing = (
        [
            (schema or "", relation or "")
            for schema, relation in await connection.query(_EXISTING_TABLES, text_array(store.SCHEMAS))
        ]
        if missing
        else []
    )
    located = []
    for name, (schema, _, oid, kind, persistence) in zip(names, rows, strict=True):
        problem = (
            _missing(name, existing)
            if oid is None and schema not in store.SCHEMAS
            else _not_capturable(name, kind or "", persistence or "", schema or "")
        )
        located.append(
            LocatedTable(
                name, oid, problem, f"alter table {name} set logged;" if problem and persistence == "u" else None
            )
        )
    return located


def refuse_own(table: Table, schema: str | None = None) -> None:
    """Raise `SourceStopped` for a table of Headrace, whose rows have secrets that no answer shows.

    Args:
        schema: the schema that the table was in at the time of a change.
    """
    own = table_names.joined(schema, table.relation) if schema in store.SCHEMAS else table.own_part
    if own is not None:
        raise SourceStopped(
            OWN_TABLE.format(own) + (f" It is a part of {table.name}." if own == table.own_part else "")
        )


def _missing(name: str, existing: Sequence[tuple[str, str]]) -> str:
    closest = _closest(*table_names.split(name), existing)
    return f"The captured database has no table {name}." + (
        f" Did you mean {table_names.joined(*closest)}?" if closest else ""
    )


def _closest(schema: str, relation: str, existing: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the table that was probably meant: one that differs in case, is in another schema, or has
    a similar name.
    """
    for other in existing:
        if (other[0].lower(), other[1].lower()) == (schema.lower(), relation.lower()):
            return other
    for other in existing:
        if other[1].lower() == relation.lower():
            return other
    close = difflib.get_close_matches(relation, [other for within, other in existing if within == schema], n=1)
    return (schema, close[0]) if close else None


def _not_capturable(name: str, kind: str, persistence: str, schema: str) -> str | None:
    """Return why the table can't be captured, or None."""
    if schema in store.SCHEMAS:
        return OWN_TABLE.format(name)
    if kind not in "rp":
        return f"{name} is {_RELATION_KINDS.get(kind, 'not a table')}, which has no changes itself. Capture the tables behind it."
    if schema in ("pg_catalog", "information_schema") or schema.startswith("pg_toast"):
        return f"{name} is a system table. System tables are not replicated."
    if persistence == "u":
        return f"{name} is unlogged, so its changes are not in the WAL."
    if persistence == "t":
        return f"{name} is a temporary table. Temporary tables are not replicated."
    return None


async def _load(
    connection: SourceConnection, oids: Sequence[str], publication: str | None
) -> list[tuple[Table, int | None]]:
    version = str(connection.version // 10_000)
    rows = await connection.query(_TABLES, oid_array(oids), publication, version, text_array(store.SCHEMAS))
    return [_table(row) for row in rows]


def _table(row: tuple[str | None, ...]) -> tuple[Table, int | None]:
    texts = [value or "" for value in row[:6]]
    columns, key, primary, identity_columns, estimate, root, leaf_identities, own_part = row[6:]
    oid, schema, relation, kind, _, identity = texts
    table_columns = tuple(TableColumn(*column) for column in _json(columns))
    old = [column.name for column in table_columns if column.published] if identity == "f" else _json(identity_columns)
    table = Table(
        oid=int(oid),
        name=table_names.joined(schema, relation),
        schema=schema,
        relation=relation,
        columns=table_columns,
        key=tuple(_json(key)),
        primary=primary == "t",
        identity=identity,
        identity_columns=tuple(old),
        partitioned=kind == "p",
        estimate=None if estimate is None else int(estimate),
        leaf_identities=tuple((name, frozenset(known)) for name, known in _json(leaf_identities)),
        own_part=own_part,
    )
    return table, int(root) if root else None


def _json(text: str | None) -> list[Any]:
    decoded: list[Any] = msgspec.json.decode(text) if text else []
    return decoded
