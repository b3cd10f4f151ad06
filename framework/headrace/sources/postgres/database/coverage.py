"""The relations that a publication covers, and those of which the server would refuse writes.

The server refuses each update and delete of a relation that is published with these actions, if the old row can't be
identified in the WAL or an identifying column can't be published. A partition has its own identity, and a table
without `only` brings the tables that inherit from it. A capture must therefore look at all of them before it publishes
a table, and again while the table is published.

The rules are those of `CheckCmdReplicaIdentity` and `RelationBuildPublicationDesc` in PostgreSQL 14 to 18.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

from headrace.sources.postgres import table_names
from headrace.sources.postgres.connection.arrays import oid_array
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database.catalog import NOT_NULL
from headrace.sources.postgres.spec import PostgresSpec

# `relations` has each table with its partitions and the tables that inherit from it. `covered` says whether the
# table's own publication, which is made with `only`, has it. Partitions that are added later have the replica
# identity `default`, so a partitioned table itself needs a primary key, whatever its partitions have now.
# `others` has the publications of other makers, or the given one. A publication counts under the topmost of the
# partition's ancestors that it has, if it publishes via the root. Its columns and its row filter are those of that
# ancestor. A row filter's columns are in its expression tree only. `pg_partition_tree` is not used, since it waits for
# the locks of schema changes.
_RELATIONS = """
    with recursive tree (root, oid) as (
        select w.oid, w.oid from unnest($1::pg_catalog.oid[]) as w(oid)
        union select t.root, i.inhrelid from tree as t join pg_catalog.pg_inherits as i on i.inhparent = t.oid
    ), relations as materialized (
        select t.root, c.oid, c.relname, c.relnamespace, c.relkind, c.relispartition, c.relreplident as identity,
               t.oid = t.root or r.relkind = 'p' as covered,
               (select i.indexrelid from pg_catalog.pg_index as i
                 where i.indrelid = c.oid and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null
                   and case when c.relkind = 'p' or c.relreplident = 'd' then i.indisprimary else c.relreplident = 'i' and i.indisreplident end
                ) as identifying,
               c.relreplident = 'f' and exists (select from pg_catalog.pg_attribute as a
                                                 where a.attrelid = c.oid and a.attgenerated = 'v' and not a.attisdropped) as virtual
          from tree as t join pg_catalog.pg_class as c on c.oid = t.oid join pg_catalog.pg_class as r on r.oid = t.root
         where c.relkind in ('r', 'p') and (c.relpersistence = 'p' or t.oid = t.root)
    ), publishing as (
        select * from pg_catalog.pg_publication as p
         where (p.pubupdate or p.pubdelete) and p.pubname is distinct from $2::text and ($3::text is null or p.pubname = $3)
    )
"""

_OWN_PROBLEM = """case when r.relkind = 'p' then case when r.oid = r.root and r.identifying is null then 'partitions' end
                    when r.identity = 'f' then case when r.virtual then 'virtual' end
                    when r.identifying is null then 'identity' end"""

_REFUSED = f"""{_RELATIONS}
    select exists (select from relations as r where $4 and r.covered and {_OWN_PROBLEM} is not null) or exists (select from publishing)
"""
"""Whether to look at what follows, which takes the server some milliseconds to plan."""

_REFUSED = f"""{_RELATIONS}, lineage (relation, ancestor, distance) as (
        select distinct r.oid, r.oid, 0::bigint from relations as r where r.relkind = 'r' and exists (select from publishing)
        union all
        select distinct r.oid, a.relid::pg_catalog.oid, a.place - 1
          from relations as r cross join pg_catalog.pg_partition_ancestors(r.oid) with ordinality as a(relid, place)
         where r.relkind = 'r' and r.relispartition and a.place > 1 and exists (select from publishing)
    ), members as (
        select l.*, p.oid as publication from lineage as l join pg_catalog.pg_publication_rel as m on m.prrelid = l.ancestor
               join publishing as p on p.oid = m.prpubid and not p.puballtables
        union all
        select l.*, p.oid from lineage as l cross join publishing as p
         where p.puballtables and l.distance = 0
           and not exists (select from lineage as a join pg_catalog.pg_publication_rel as e on e.prrelid = a.ancestor
                            where a.relation = l.relation and e.prpubid = p.oid)  -- from PostgreSQL 19 on: `except`
        {{of_schemas}}
    ), others as (
        select m.relation, p.pubname, to_jsonb(p) ->> 'pubgencols' = 'n' as ungenerated,
               to_jsonb(l) -> 'prattrs' as attnums, to_jsonb(l) ->> 'prqual' as filter, l.prrelid
          from (select m.relation, m.publication, (array_agg(m.ancestor order by m.distance desc))[1] as topmost
                  from members as m group by m.relation, m.publication) as m
               join publishing as p on p.oid = m.publication
               left join pg_catalog.pg_publication_rel as l
                      on l.prpubid = p.oid and l.prrelid = case when p.pubviaroot then m.topmost else m.relation end
    ), identities as (
        select r.oid, (select array_agg(a.attname::text)
                         from pg_catalog.pg_index as i cross join unnest(i.indkey) with ordinality as k(attnum, place)
                              join pg_catalog.pg_attribute as a on a.attrelid = r.oid and a.attnum = k.attnum
                        where i.indexrelid = r.identifying and k.place <= i.indnkeyatts) as columns
          from relations as r where r.oid in (select o.relation from others as o)
    ), problems as (
        select r.oid, r.root, null as publication, null::pg_catalog.oid as published_as,
               {_OWN_PROBLEM} as problem
          from relations as r where $4 and r.covered
        union all
        select r.oid, r.root, o.pubname, o.prrelid,
               case when r.virtual then 'virtual'
                    when r.identity <> 'f' and r.identifying is null then 'identity'
                    when o.ungenerated and exists (
                            select from pg_catalog.pg_attribute as a where a.attrelid = r.oid and a.attgenerated = 's' and not a.attisdropped
                               and (r.identity = 'f' or a.attname = any (i.columns))) then 'generated'
                    when o.attnums <> 'null' and (r.identity = 'f' or exists (
                            select from unnest(i.columns) as c(name)
                             where c.name not in (select a.attname from pg_catalog.pg_attribute as a
                                                   where a.attrelid = o.prrelid and o.attnums @> to_jsonb(a.attnum)))) then 'columns'
                    when r.identity <> 'f' and exists (
                            select from regexp_matches(o.filter, ':varattno ([0-9]+)', 'g') as f(attnum)
                                   join pg_catalog.pg_attribute as a on a.attrelid = o.prrelid and a.attnum = f.attnum[1]::int2
                             where a.attname <> all (i.columns)) then 'filter' end
          from relations as r join others as o on o.relation = r.oid join identities as i on i.oid = r.oid
    ), refused as (
        select p.*, row_number() over (partition by p.root, p.publication order by r.relkind <> 'p', not r.covered, r.relname, r.oid) as place
          from problems as p join relations as r on r.oid = p.oid and r.root = p.root
         where p.problem is not null
    )
    select f.root::text, n.nspname, r.relname, r.oid = r.root, r.covered, f.problem, f.publication,
           (select json_build_array(m.nspname, c.relname) from pg_catalog.pg_class as c join pg_catalog.pg_namespace as m on m.oid = c.relnamespace
             where c.oid = f.published_as),
           r.identity,
           (select json_build_object('name', c.conname, 'columns', (
                       select json_agg(a.attname order by k.place) from unnest(c.conkey) with ordinality as k(attnum, place)
                         join pg_catalog.pg_attribute as a on a.attrelid = c.conrelid and a.attnum = k.attnum),
                   'valid', i.indisvalid and i.indimmediate)
              from pg_catalog.pg_constraint as c join pg_catalog.pg_index as i on i.indexrelid = c.conindid
             where c.conrelid = r.oid and c.contype = 'p'),
           (select json_build_object('name', x.relname, 'columns', (
                       select json_agg(a.attname order by k.place) from unnest(i.indkey) with ordinality as k(attnum, place)
                         join pg_catalog.pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum
                        where k.place <= i.indnkeyatts))
              from pg_catalog.pg_index as i join pg_catalog.pg_class as x on x.oid = i.indexrelid
             where i.indrelid = r.oid and i.indisunique and not i.indisprimary and i.indisvalid and i.indimmediate and i.indpred is null
               and i.indexprs is null
               and not exists (select from unnest(i.indkey) with ordinality as k(attnum, place)
                                 join pg_catalog.pg_attribute as a on a.attrelid = r.oid and a.attnum = k.attnum
                                where k.place <= i.indnkeyatts and not {NOT_NULL})
             order by i.indnkeyatts, i.indexrelid limit 1),
           exists (select from pg_catalog.pg_attribute as a
                    where a.attrelid = r.oid and a.attname = 'id' and a.attgenerated = '' and not a.attisdropped),
           (select json_agg(a.attname order by a.attnum) from pg_catalog.pg_attribute as a
             where a.attrelid = r.oid and a.attgenerated = 'v' and not a.attisdropped),
           (select json_agg(coalesce(a.attname, '') order by p.partrelid <> r.oid, p.partrelid, k.place)
              from tree as t join pg_catalog.pg_partitioned_table as p on p.partrelid = t.oid
                   cross join unnest(p.partattrs) with ordinality as k(attnum, place)
                   left join pg_catalog.pg_attribute as a on a.attrelid = p.partrelid and a.attnum = k.attnum and k.attnum > 0
             where t.root = r.oid)
      from refused as f join relations as r on r.oid = f.oid and r.root = f.root
           join pg_catalog.pg_namespace as n on n.oid = r.relnamespace
     where f.place <= 10  -- enough to correct, of a table with thousands of partitions
     order by f.publication is not null, f.root, f.publication, f.place
"""

_OF_SCHEMAS = """
        union all
        select l.*, p.oid from lineage as l join pg_catalog.pg_class as c on c.oid = l.ancestor
               join pg_catalog.pg_publication_namespace as s on s.pnnspid = c.relnamespace join publishing as p on p.oid = s.pnpubid
"""
"""From PostgreSQL 15 on."""

Problem = Literal["partitions", "virtual", "identity", "generated", "columns", "filter"]

WRITES = frozenset(("update", "delete"))
"""The actions for which the server needs to identify old rows."""


class Index(msgspec.Struct, frozen=True):
    """A unique index. `valid` says whether the server can identify rows with it: it is not deferrable, and each
    partition has it.
    """

    name: str
    columns: tuple[str, ...]
    valid: bool = True


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A relation of which the server refuses updates and deletes, or would once it is published.

    Attributes:
        table: the oid of the source's table.
        relation: the relation's name: the table itself, a partition, or a table that inherits from it.
        is_table: whether it is the table itself.
        covered: whether the source captures it. It does not capture tables that inherit from its table.
        problem: why the server refuses.
        publication: the publication that publishes it already. None for the source's own publication.
        published_as: the table that this publication lists for it, if any.
        identity: the replica identity: d(efault), n(othing), f(ull), i(ndex).
        key: the primary key.
        index: the narrowest other unique index that can identify rows.
        has_id: whether there is a column `id`.
        virtual: the virtual generated columns.
        partitioned_by: the columns by which it is partitioned, at each level, with '' for an expression.
        version: the server's version.
    """

    table: int
    relation: str
    is_table: bool
    covered: bool
    problem: Problem
    publication: str | None
    published_as: str | None
    identity: str
    key: Index | None
    index: Index | None
    has_id: bool
    virtual: tuple[str, ...]
    partitioned_by: tuple[str, ...]
    version: int

    @property
    def text(self) -> str:
        """The problem, for people."""
        text = f"{self.relation} {self._why()}."
        if self.publication is None:
            return text
        return f"The server refuses all updates and deletes of {self.relation}, because the publication {self.publication} has it. {text}"

    @property
    def mend(self) -> str | None:
        """The statement that corrects it, if there is one. It never is `replica identity full` if the server would
        refuse writes then.
        """
        if self.problem in ("columns", "filter"):
            return self._republish()
        if self.problem == "generated":
            name = table_names.quoted(self.publication or "")
            return f"alter publication {name} set (publish_generated_columns = stored);"
        if action := self._identifying_action():
            return f"alter table {self.relation} {action};"
        return None

    @property
    def adds_key(self) -> bool:
        """Whether the statement adds a primary key."""
        return " primary key" in (self.mend or "")

    def _why(self) -> str:
        match self.problem:
            case "partitions":
                lacking = (
                    "no primary key" if self.key is None else "no primary key that identifies rows of each partition"
                )
                return f"is partitioned and has {lacking}, so new partitions have no replica identity, whatever that of the table is"
            case "virtual":
                return f"has replica identity full, and the virtual column {self.virtual[0]}, which can't be replicated"
            case "identity" if self.identity == "n":
                return "has the replica identity nothing"
            case "identity" if self.identity == "i":
                return "has lost the index that is its replica identity"
            case "identity":
                return "has no primary key" if self.key is None else "has a primary key that is deferrable"
            case "generated":
                return "has a generated column in its replica identity, which the publication does not publish"
            case "columns":
                return "has columns in its replica identity that the publication does not publish"
            case "filter":
                return "has a row filter in the publication that tests columns outside of its replica identity"

    def _identifying_action(self) -> str | None:
        """Return what to alter so that rows can be identified, without the table's name."""
        if self.problem != "partitions":
            below_root = not self.is_table and self.covered
            if (self.key is not None and self.key.valid) or (below_root and self.identity != "d"):
                return "replica identity default"
            if self.index is not None:
                return f"replica identity using index {table_names.quoted(self.index.name)}"
            if not self.virtual:
                return "replica identity full"
        action = add_primary_key(self.key, self.index, self.partitioned_by, has_id=self.has_id, version=self.version)
        return (
            f"{action}, replica identity default"
            if action and self.identity != "d" and not self.partitioned_by
            else action
        )

    def _republish(self) -> str:
        name, table = table_names.quoted(self.publication or ""), self.published_as or self.relation
        return f"alter publication {name} drop table only {table};"


async def refusals(
    connection: SourceConnection, spec: PostgresSpec, tables: Iterable[int], own: str | None
) -> list[Refusal]:
    """Return the relations of which the server refuses updates and deletes, or would if the tables were published.

    Those for which the source's own publication would be the reason come first. Those for which any other publication
    is the reason are refused now. Of a source that captures neither updates nor deletes only its given publication
    is looked at.

    Args:
        connection: a connection to the captured database.
        spec: the source's settings.
        tables: the oids of its tables.
        own: the name of the source's own publication, which has no other columns and filters than Headrace gives it,
            whether it exists or not. None if the publication is given, or Headrace may not alter it.
    """
    given, captures_writes = spec.publication, bool(WRITES & set(spec.actions))
    if not captures_writes and given is None:
        return []
    parameters = (oid_array(tables), own, None if captures_writes else given, "true" if captures_writes else "false")
    of_schemas = _OF_SCHEMAS if connection.version >= 150000 else ""
    rows = await connection.query(_REFUSED.replace("{of_schemas}", of_schemas), *parameters)
    refused = [_refusal(row, connection.version) for row in rows]
    keyless = {refusal.table for refusal in refused if refusal.problem == "partitions"}
    return [refusal for refusal in refused if not _follows(refusal, keyless, owned=own is not None)]


def _follows(refusal: Refusal, keyless: Collection[int], *, owned: bool) -> bool:
    """Whether another refusal already says this: that the partitioned table has no primary key, or that of the
    publication which has the table.
    """
    if refusal.publication is not None or refusal.problem == "partitions":
        return False
    of_root = refusal.problem == "identity" and refusal.identity == "d" and refusal.table in keyless
    return of_root or not owned


def add_primary_key(
    key: Index | None, index: Index | None, partitioned_by: Sequence[str], *, has_id: bool, version: int
) -> str | None:
    """Return what to alter so that a table has a primary key that identifies rows, without the table's name.

    Args:
        key: the primary key that it has, which does not identify rows. None if it has none.
        index: a unique index whose columns are a key.
        partitioned_by: the columns by which it is partitioned, at each level, with '' for an expression.
        has_id: whether there is a column `id`.
        version: the server's version.

    Returns:
        None if it can't have one, since it is partitioned by an expression.
    """
    if "" in partitioned_by:
        return None
    if key is not None or index is not None:
        drop = "" if key is None else f"drop constraint {table_names.quoted(key.name)}, "
        columns = (key or index or Index("", ())).columns
        return f"{drop}add primary key ({_listed(columns)})"
    # Partitioned tables may have identity columns from PostgreSQL 17 on.
    column = (
        "bigint generated always as identity"
        if not partitioned_by or version >= 170000
        else "uuid default gen_random_uuid()"
    )
    new = "" if has_id else f"add column id {column}, "
    return f"{new}add primary key ({_listed(dict.fromkeys(('id', *partitioned_by)))})"


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(map(table_names.quoted, columns))


def _refusal(row: tuple[str | None, ...], version: int) -> Refusal:
    root, schema, relation, is_table, covered, problem, publication, published_as, identity = row[:9]
    key, index, has_id, virtual, partitioned_by = row[9:]
    names = msgspec.json.decode(published_as) if published_as else None
    return Refusal(
        table=int(root or 0),
        relation=table_names.joined(schema or "", relation or ""),
        is_table=is_table == "t",
        covered=covered == "t",
        problem=msgspec.convert(problem, Problem),
        publication=publication,
        published_as=None if names is None else table_names.joined(*names),
        identity=identity or "",
        key=None if key is None else msgspec.json.decode(key, type=Index),
        index=None if index is None else msgspec.json.decode(index, type=Index),
        has_id=has_id == "t",
        virtual=msgspec.json.decode(virtual or "[]", type=tuple[str, ...]),
        partitioned_by=msgspec.json.decode(partitioned_by or "[]", type=tuple[str, ...]),
        version=version,
    )
