"""Row filters of publications, which PostgreSQL has from version 15 on.

A publication with a filter does not send all changes of a table. A backfill would read rows of which no change ever
comes, and a filter that is changed moves rows into and out of the stream without a change of theirs. So no captured
table may have one: the source's `where` selects rows instead, in backfills and changes alike.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.sources.postgres import table_names
from headrace.sources.postgres.connection.arrays import oid_array
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.tables import Table

# The table itself, its partitions, and the tables that it is a partition of. Columns of later versions are read
# through JSON.
_FILTERS = """
    select w.oid::pg_catalog.text, n.nspname, c.relname,
           case when to_jsonb(r) ->> 'prattrs' is not null
                then (select json_agg(a.attname order by a.attnum) from pg_catalog.pg_attribute as a
                       where a.attrelid = c.oid and to_jsonb(r) -> 'prattrs' @> to_jsonb(a.attnum)) end
      from pg_catalog.pg_publication_rel as r
           join pg_catalog.pg_publication as p on p.oid = r.prpubid
           join pg_catalog.pg_class as c on c.oid = r.prrelid join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
           join unnest($2::pg_catalog.oid[]) as w(oid)
             on c.oid = w.oid or c.oid in (select t.relid from pg_catalog.pg_partition_tree(w.oid) as t)
                or c.oid in (select a.relid from pg_catalog.pg_partition_ancestors(w.oid) as a)
     where p.pubname = $1 and to_jsonb(r) ->> 'prqual' is not null
     order by n.nspname, c.relname
"""


class RowFilter(msgspec.Struct, frozen=True):
    """A table of a publication with a row filter.

    Attributes:
        oid: the oid of the captured table that it concerns, which may be another one of the same partitions.
        name: the table with the filter.
        columns: the publication's list of its columns. Empty for all columns.
    """

    oid: int
    name: str
    columns: tuple[str, ...]


async def find_row_filters(connection: SourceConnection, publication: str, tables: Iterable[Table]) -> list[RowFilter]:
    """Return the row filters of a publication that concern these tables."""
    oids = oid_array(table.oid for table in tables)
    return [
        RowFilter(
            int(oid or 0), table_names.joined(schema or "", name or ""), tuple(msgspec.json.decode(columns or "[]"))
        )
        for oid, schema, name, columns in await connection.query(_FILTERS, publication, oids)
    ]


def problem(publication: str, filters: Iterable[RowFilter]) -> tuple[str, str]:
    """Return what is wrong with the filters of a publication, and the statements that remove them. They keep the lists of
    columns.
    """
    quoted, filtered = table_names.quoted(publication), {one.name: one.columns for one in filters}
    names = ", ".join(filtered)
    lists = {
        name: f" ({', '.join(map(table_names.quoted, columns))})" if columns else ""
        for name, columns in filtered.items()
    }
    again = ", ".join(name + columns for name, columns in lists.items())
    return (
        f"The publication {publication} has a row filter for {names}, so changes of other rows are not sent, and the stream would keep"
        " outdated rows. Remove the filter, and set where of the source, which backfills and changes have in common.",
        f"begin; alter publication {quoted} drop table {names}; alter publication {quoted} add table {again}; commit;",
    )
