"""The digest of all that a captured source depends on in the server's catalog.

The server makes it, so a look at thousands of partitions is one query that transfers a few bytes and locks nothing. As
long as it is the same, everything is as it was when it was looked at: the tables behind the names, their
`fingerprints`, the publication and its row filters, and the relations of which the server refuses writes, see
`coverage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.sources.postgres import table_names
from headrace.sources.postgres.connection.arrays import oid_array, text_array
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog, fingerprints

# The tree has the tables, their partitions, and the tables that inherit from them. Publications of all makers count. A
# row of a catalog that was changed has another `xmin`.
_DIGEST = """
    with recursive tree (oid) as (
        select c.oid from pg_catalog.pg_class as c where c.oid = any ($1::pg_catalog.oid[])
        union select i.inhrelid from tree as t join pg_catalog.pg_inherits as i on i.inhparent = t.oid
    )
    select md5(concat(
        (select string_agg(f::text, ',' order by f.oid) from ({fingerprints}) as f),
        (select string_agg(concat(c.oid, c.relkind, c.relpersistence), ',' order by w.place)
           from unnest($3::text[], $4::text[]) with ordinality as w(schema, relation, place)
                left join pg_catalog.pg_namespace as n on n.nspname = w.schema
                left join pg_catalog.pg_class as c on c.relnamespace = n.oid and c.relname = w.relation),
        (select string_agg(concat_ws(' ', c.oid, c.relname, c.relnamespace, c.relkind, c.relpersistence, c.relreplident,
                    (select string_agg(concat(i.indexrelid, i.indkey, i.indisprimary, i.indimmediate, i.indisvalid, i.indisreplident, i.indpred is null), ',' order by i.indexrelid)
                       from pg_catalog.pg_index as i where i.indrelid = c.oid and i.indisunique),
                    (select string_agg(concat(a.attname, a.attgenerated), ',' order by a.attnum) from pg_catalog.pg_attribute as a
                      where a.attrelid = c.oid and a.attnum > 0 and a.attgenerated <> '' and not a.attisdropped)), ',' order by c.oid)
           from tree as t join pg_catalog.pg_class as c on c.oid = t.oid),
        (select string_agg(concat(a.attrelid, '.', a.attnum), ',' order by a.attrelid, a.attnum) from pg_catalog.pg_attribute as a
          where a.attrelid = any ($1::pg_catalog.oid[]) and a.attnum > 0 and {not_null}),
        (select string_agg(concat(w.oid, '.', a.relid::pg_catalog.oid), ',' order by w.oid, a.place)
           from unnest($1::pg_catalog.oid[]) as w(oid) cross join pg_catalog.pg_partition_ancestors(w.oid) with ordinality as a(relid, place)),
        (select string_agg(concat(p.oid, '.', p.xmin, pg_catalog.pg_has_role(p.pubowner, 'USAGE')), ',' order by p.oid) from pg_catalog.pg_publication as p),
        (select string_agg(concat(r.oid, '.', r.xmin), ',' order by r.oid) from pg_catalog.pg_publication_rel as r),
        {of_schemas},
        (select pg_catalog.obj_description(p.oid, 'pg_publication') from pg_catalog.pg_publication as p where p.pubname = $2)))
"""
_OF_SCHEMAS = "(select string_agg(s.oid::text, ',' order by s.oid) from pg_catalog.pg_publication_namespace as s)"


async def digest(connection: SourceConnection, tables: Iterable[int], names: Sequence[str], publication: str) -> str:
    """Return the digest.

    Args:
        connection: a connection to the captured database.
        tables: the oids of the source's tables.
        names: the names of the tables that it is to capture, each `schema.table`.
        publication: the name of the publication.
    """
    parts = [table_names.split(name) for name in names]
    of_schemas = _OF_SCHEMAS if connection.version >= 150000 else "null"
    ((found,),) = await connection.query(
        _DIGEST.format(fingerprints=fingerprints.sql(connection), not_null=catalog.NOT_NULL, of_schemas=of_schemas),
        oid_array(tables),
        publication,
        text_array(schema for schema, _ in parts),
        text_array(relation for _, relation in parts),
    )
    return found or ""
