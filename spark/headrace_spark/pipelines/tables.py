"""Postgres tables as a source: reads the catalog, cuts a table into ranges for tasks, and builds their queries.

A table is read by ranges of `ctid`, the position of a row in its file. Postgres 14 and later read
such a range directly, without an index. A partitioned table is read partition by partition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from adbc_driver_manager import Error

from headrace.model.errors import HeadraceError, InvalidInput
from headrace.model.text.sql import quoted
from headrace_spark.pipelines.rowkeys import KeyShape
from headrace_spark.pipelines.values import as_json, load_types

Fetch = Callable[..., list[tuple[Any, ...]]]

_SERVER_ERROR = re.compile(r"ERROR:\s+(.+)")
_BLOCK = 8192
_MAX_PARTITIONS = 10_000


class UnknownTable(HeadraceError, LookupError):
    """No table has that name."""

    exit_code = 66  # EX_NOINPUT


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table in the catalog.

    Attributes:
        schema, name: the names in the catalog.
        columns: names and types, in their order, without dropped columns.
        key: the columns of the primary key, or else of a unique index over columns that are not
            null. It is empty if there is neither.
        leaves: the relations that hold its rows: the table itself, or its partitions. Each has its
            SQL name and its size in bytes, which is -1 if it can't be read by ctid.
    """

    schema: str
    name: str
    columns: tuple[tuple[str, int], ...]
    key: tuple[str, ...]
    leaves: tuple[tuple[str, int], ...]

    def columns_named(self, names: Sequence[str] | None) -> tuple[tuple[str, int], ...]:
        """The columns with these names, or all for None. Raises `InvalidInput` for an unknown name."""
        if names is None:
            return self.columns
        known = dict(self.columns)
        for name in names:
            if name not in known:
                raise InvalidInput(
                    f"The table {self.schema}.{self.name} has no column {name!r}. Its columns are {', '.join(known)}."
                )
        return tuple((name, known[name]) for name in names)


def find_table(fetch: Fetch, name: str) -> Table:
    """Read a table from the catalog. A name without a schema is resolved by the search path.

    Raises:
        UnknownTable: there is no such table.
        InvalidInput: the name is invalid.
    """
    try:
        found = fetch("select pg_catalog.to_regclass($1::text)::oid::bigint", name)
    except Error as error:
        raise InvalidInput(
            f"{name!r} is not a valid table name. Write schema.table, such as public.orders or 'public.\"Odd Name\"'."
        ) from error
    oid = found[0][0]
    rows = fetch(_TABLE, oid) if oid is not None else []
    if not rows:
        raise UnknownTable(
            f"The table {name!r} does not exist in the database. Write schema.table, such as public.orders."
        )
    schema, relation, columns, key, leaves = rows[0]
    return Table(
        schema=schema,
        name=relation,
        columns=tuple(map(tuple, msgspec.json.decode(columns or "[]"))),
        key=tuple(msgspec.json.decode(key or "[]")),
        leaves=tuple(map(tuple, msgspec.json.decode(leaves or "[]"))),
    )


def find_locked_table(fetch: Fetch, name: str) -> Table:
    """Lock a table, with all relations that hold its rows, until the end of the transaction, and read it from the catalog.

    The lock is that of any reader. It keeps away what rewrites or drops a table, such as `VACUUM FULL`. Raises what
    `find_table` does.
    """
    found = find_table(fetch, name)
    relation = f"{quoted(found.schema)}.{quoted(found.name)}"
    fetch(f"select 1 from {relation} limit 0")  # LOCK TABLE refuses a materialized view
    return find_table(fetch, relation)


# The key is chosen as in change capture. A leaf without storage (a view, a foreign table) is read
# as a whole.
_TABLE = """
    select n.nspname::text, c.relname::text,
           (select json_agg(json_build_array(a.attname, a.atttypid::bigint) order by a.attnum)::text from pg_catalog.pg_attribute as a
             where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
           (select (select json_agg(a.attname order by k.place)::text
                      from unnest(i.indkey::int2[]) with ordinality as k (attnum, place)
                           join pg_catalog.pg_attribute as a on a.attrelid = c.oid and a.attnum = k.attnum
                     where k.place <= i.indnkeyatts)
              from pg_catalog.pg_index as i
             where i.indrelid = c.oid and i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
               and not exists (select from unnest(i.indkey::int2[]) with ordinality as k (attnum, place)
                                 join pg_catalog.pg_attribute as a on a.attrelid = c.oid and a.attnum = k.attnum
                                where k.place <= i.indnkeyatts and not a.attnotnull)
             order by i.indisprimary desc, i.indisreplident desc, i.indexrelid limit 1),
           case when c.relkind = 'p'
                then (select json_agg(json_build_array(format('%I.%I', ln.nspname, l.relname),
                                                       case when l.relkind in ('r', 'm') then pg_catalog.pg_relation_size(l.oid) else -1 end)
                                      order by l.oid)::text
                        from pg_catalog.pg_partition_tree(c.oid) as p
                             join pg_catalog.pg_class as l on l.oid = p.relid join pg_catalog.pg_namespace as ln on ln.oid = l.relnamespace
                       where p.isleaf)
                else json_build_array(json_build_array(format('%I.%I', n.nspname, c.relname),
                                      case when c.relkind in ('r', 'm') and not c.relhassubclass
                                           then pg_catalog.pg_relation_size(c.oid) else -1 end))::text end
      from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
     where c.oid = $1::bigint::oid and c.relkind in ('r', 'p', 'm', 'v', 'f')
"""


def ranges(table: Table, partitions: int) -> list[str]:
    """Cut a table into ranges of about equal size. Each is the end of a query, with a relation and a condition.

    Args:
        table: the table.
        partitions: the approximate number of ranges.
    """
    partitions = min(max(partitions, 1), _MAX_PARTITIONS)
    blocks = {name: -(-size // _BLOCK) for name, size in table.leaves if size >= 0}
    width = max(1, -(-sum(blocks.values()) // partitions))
    found = []
    for name, size in table.leaves:
        if size < 0:
            found.append(f"from {name} as t where true")
            continue
        starts = range(0, max(blocks[name], 1), width)
        for start in starts:
            # The last range has no end. The file may have grown, and the snapshot decides which of
            # its rows are visible.
            end = f" and t.ctid < '({start + width},0)'::tid" if start != starts[-1] else ""
            found.append(f"from only {name} as t where t.ctid >= '({start},0)'::tid{end}")
    return found


def select_list(fetch: Fetch, table: Table, columns: Sequence[tuple[str, int]], shape: KeyShape) -> str:
    """Build the select list: the record as JSON text, followed by the columns of the key as text.

    Raises:
        InvalidInput: the table has no such column.
    """
    key = table.columns_named(shape.columns)
    types = load_types(fetch, [oid for _, oid in {*columns, *key}])
    fields = ", ".join(f"{as_json(oid, f't.{quoted(name)}', types)} as {quoted(name)}" for name, oid in columns)
    record = f"(select row_to_json(r) from (select {fields}) as r)::text as record"
    keys = [f"({as_json(oid, f't.{quoted(name)}', types)}) #>> '{{}}' as k{n}" for n, (name, oid) in enumerate(key)]
    return f"select {', '.join([record, *keys])}"


def check_condition(fetch: Fetch, query: str, where: str) -> None:
    """Check that a query with a user's condition can be planned. Raises `InvalidInput`."""
    try:
        fetch(f"{query} limit 0")
    except (Error, HeadraceError) as error:
        match = _SERVER_ERROR.search(str(error))
        reason = match[1] if match else " ".join(str(error).split())
        raise InvalidInput(f"The condition {where!r} is invalid: {reason.rstrip('.')}.") from error


def metadata(table: Table, taken_at: str, lsn: int) -> str:
    """The last members of a message's JSON, up to the number of the row, which the caller appends."""
    schema, name, at = (msgspec.json.encode(text).decode() for text in (table.schema, table.name, taken_at))
    return (
        f',"changes":null,"action":"read","metadata":{{"table_schema":{schema},"table_name":{name},'
        f'"commit_timestamp":{at},"commit_lsn":{lsn},"commit_idx":'
    )


__all__ = [
    "Fetch",
    "Table",
    "UnknownTable",
    "check_condition",
    "find_locked_table",
    "metadata",
    "ranges",
    "select_list",
]
