"""Fingerprints: what a captured table consists of, in the server's catalog.

Much that is done to a table changes its rows and writes no change into the WAL: a partition is attached or detached, a
table is rewritten by `alter column … type … using`, a column is added with a default, another table takes its name. The
catalog shows all of that. Two fingerprints of a table are compared, and the differences say that the table has to be
read again.

No statement here locks a table or a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from headrace.sources.postgres.connection.arrays import oid_array
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.errors import SourceRefused
from headrace.sources.postgres.tables import Table

# Leaves are listed by oid, and a partition that is being detached concurrently is none. Types that are built in never
# change, so only the others are listed, with all that they consist of. A partition that is detached and attached
# again has another row in pg_inherits, and a publication another version if its options are set. A table may be in a
# given publication by itself, by a table that it is a partition of, by its schema, or by its partitions. A table that
# leaves a schema and comes back has another row in pg_class.
_FINGERPRINTS = """
    with recursive publication as (
        select p.oid, p.puballtables, p.xmin::text as version from pg_catalog.pg_publication as p where p.pubname = $2
    ), members (oid, membership) as (
        select c.oid, {member} from pg_catalog.pg_class as c cross join publication as p where c.oid = any ($1::pg_catalog.oid[])
    ), tree (root, oid, attached) as (
        select c.oid, c.oid, '' from pg_catalog.pg_class as c where c.oid = any ($1::pg_catalog.oid[])
        union all
        select t.root, i.inhrelid, concat(t.attached, '.', i.xmin)
          from tree as t join pg_catalog.pg_inherits as i on i.inhparent = t.oid join pg_catalog.pg_class as r on r.oid = t.root
         where r.relkind = 'p' and not i.inhdetachpending
    ), leaves as (
        select t.root, string_agg(concat_ws(':', c.oid, c.relfilenode, concat(t.attached, case when m.membership is null and c.oid <> t.root then '+' || {member} end),
                                            case when c.relkind = 'r' then c.relpersistence else c.relkind end), ' ' order by c.oid) as leaves
          from tree as t join pg_catalog.pg_class as c on c.oid = t.oid left join members as m on m.oid = t.root left join publication as p on true
         where c.relkind <> 'p' group by t.root
    ), parts (root, oid) as (
        select a.attrelid, a.atttypid from pg_catalog.pg_attribute as a
         where a.attrelid = any ($1::pg_catalog.oid[]) and a.attnum > 0 and a.atttypid >= 16384
        union
        select p.root, part.oid
          from parts as p join pg_catalog.pg_type as y on y.oid = p.oid
               left join pg_catalog.pg_range as r on r.rngtypid = y.oid or r.rngmultitypid = y.oid
               cross join lateral (
                   select unnest(array[y.typelem, y.typbasetype, r.rngsubtype, r.rngtypid])
                   union all select a.atttypid from pg_catalog.pg_attribute as a where a.attrelid = y.typrelid and a.attnum > 0
               ) as part(oid)
         where part.oid >= 16384
    )
    select c.oid::text,
           (select m.membership from members as m where m.oid = c.oid) as membership,
           (select p.version from publication as p),
           (select l.leaves from leaves as l where l.root = c.oid) as leaves,
           (select json_agg(json_build_array(a.attnum, a.attname, a.atttypid::bigint, a.atthasmissing, a.attgenerated) order by a.attnum)
              from pg_catalog.pg_attribute as a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) as columns,
           (select json_agg(json_build_array(y.oid::bigint, y.typname, coalesce(
                       (select json_agg(json_build_array(a.attnum, a.attname, a.atttypid::bigint) order by a.attnum)
                          from pg_catalog.pg_attribute as a where y.typtype = 'c' and a.attrelid = y.typrelid and a.attnum > 0 and not a.attisdropped),
                       (select json_agg(json_build_array(e.oid::bigint, e.enumlabel, 0) order by e.oid) from pg_catalog.pg_enum as e where e.enumtypid = y.oid))
                   ) order by y.oid)
              from parts as t join pg_catalog.pg_type as y on y.oid = t.oid where t.root = c.oid and y.typtype in ('c', 'e')) as types
      from pg_catalog.pg_class as c
     where c.oid = any ($1::pg_catalog.oid[])
"""

_MEMBER = """
    (select nullif(concat_ws('+', case when p.puballtables and count(r.oid) = 0 then concat(p.oid, '~', {removals}) end,
                                  case when not p.puballtables then string_agg(r.oid::text, '+' order by r.oid) end{of_schemas}), '')
       from (select c.oid as oid union select a.relid::pg_catalog.oid from pg_catalog.pg_partition_ancestors(c.oid) as a) as l
            left join pg_catalog.pg_publication_rel as r on r.prpubid = p.oid and r.prrelid = l.oid{schemas})
"""
"""What makes the relation `c` a part of the publication `p`. Null if nothing does."""

_OF_SCHEMAS = ", string_agg(concat(s.oid, '~', k.xmin), '+' order by k.oid) filter (where s.oid is not null)"
_SCHEMAS = """
            left join pg_catalog.pg_class as k on k.oid = l.oid
            left join pg_catalog.pg_publication_namespace as s on s.pnpubid = p.oid and s.pnnspid = k.relnamespace"""
"""From PostgreSQL 15 on."""

_REMOVALS = "pg_catalog.pg_stat_get_tuples_deleted('pg_catalog.pg_publication_rel'::pg_catalog.regclass)"
"""From PostgreSQL 19 on, a publication of all tables may have exceptions. One that is removed leaves no other trace."""

# Which columns have values that are not stored in the rows of some leaf, since they were added with a default.
_MISSING_IN_LEAVES = """
    with recursive tree (root, oid) as (
        select c.oid, c.oid from pg_catalog.pg_class as c where c.oid = any ($1::pg_catalog.oid[]) and c.relkind = 'p'
        union all select t.root, i.inhrelid from tree as t join pg_catalog.pg_inherits as i on i.inhparent = t.oid)
    select distinct t.root::text, a.attname
      from tree as t join pg_catalog.pg_attribute as a on a.attrelid = t.oid where a.attnum > 0 and a.atthasmissing
"""

# Each transaction with a number has locked that.
_OPEN_BEFORE = """
    select exists (select from pg_catalog.pg_locks as l join pg_catalog.pg_stat_activity as a on a.pid = l.pid
                    where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted and a.datname = current_database()
                      and age(l.transactionid) > age($1::pg_catalog.xid))
           or exists (select from pg_catalog.pg_prepared_xacts as p
                       where p.database = current_database() and age(p.transaction) > age($1::pg_catalog.xid))
"""

LOCK_TIMEOUT = 0.5
"""Timeout in seconds for the lock under which a new partition is measured. A session that waits for a lock blocks later
ones.
"""


class Column(NamedTuple):
    """A column. `missing` says that rows from before it was added have a value, its default at that time. `generated` is
    s(tored), v(irtual) or empty.
    """

    number: int
    name: str
    type_oid: int
    missing: bool
    generated: str = ""


class TypeDefinition(NamedTuple):
    """A composite type or an enum, with its attributes or labels: the number, the name and the type of each."""

    oid: int
    name: str
    parts: tuple[tuple[int, str, int], ...]

    @property
    def composite(self) -> bool:
        return any(type_oid for *_, type_oid in self.parts)


class Leaf(NamedTuple):
    """A table with its own rows. `kind` is p(ermanent), u(nlogged) or f(oreign)."""

    storage: str
    attached: str
    kind: str


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a table.

    Attributes:
        oid: the table's oid.
        membership: what makes it a part of the publication. With another value it may have been none for a while. None if
            nothing does, except perhaps its leaves: then what makes them one is in how they were attached.
        publication: the version of the publication's options. None if there is no publication.
        actions: the kinds of changes that the source captures.
        leaves: of each leaf its storage, which a rewrite replaces, how it was attached, and its kind. A table that has
            no partitions is its own leaf.
        columns: without those that were dropped.
        key: the numbers of the columns of the key, in the order of the key.
        types: the composite types and enums of the columns, and of the types that these consist of.
        moved_at: the version of a given publication of PostgreSQL 14 at which partitions were attached or detached last.
        altered: the composite types that were altered, with the first transaction that certainly has their definition.
    """

    oid: int
    membership: str | None
    publication: str | None
    actions: tuple[str, ...]
    leaves: dict[int, Leaf]
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    types: tuple[TypeDefinition, ...] = ()
    moved_at: str | None = None
    altered: dict[int, int] = {}

    @property
    def attachments(self) -> dict[int, str]:
        """How each leaf was attached, whatever publishes it."""
        return {oid: leaf.attached.partition("+")[0] for oid, leaf in self.leaves.items()}


class Difference(NamedTuple):
    """A difference by which rows may have changed without a message. `attached` has the new leaves, if it is that."""

    text: str
    attached: tuple[int, ...] = ()


async def fingerprints(
    connection: SourceConnection, tables: Mapping[str, Table], publication: str, actions: tuple[str, ...]
) -> dict[str, Fingerprint]:
    """Return the fingerprints of the tables that still exist, by the names in `tables`.

    Args:
        actions: the kinds of changes that the source captures.
    """
    oids = oid_array(table.oid for table in tables.values())
    rows = {int(row[0] or 0): row[1:] for row in await connection.query(sql(connection), oids, publication)}
    missing = {(int(root or 0), name) for root, name in await connection.query(_MISSING_IN_LEAVES, oids)}
    return {
        name: _fingerprint(table, rows[table.oid], actions, {column for root, column in missing if root == table.oid})
        for name, table in tables.items()
        if table.oid in rows
    }


def _fingerprint(
    table: Table, row: tuple[str | None, ...], actions: tuple[str, ...], missing: set[str | None]
) -> Fingerprint:
    membership, publication, leaves, columns, types = row
    listed = msgspec.json.decode(columns or "[]", type=list[Column])
    numbers = {column.name: column.number for column in listed}
    return Fingerprint(
        oid=table.oid,
        membership=membership,
        publication=publication,
        actions=actions,
        leaves={int(oid): Leaf(*leaf) for oid, *leaf in (text.split(":") for text in (leaves or "").split())},
        columns=tuple(column._replace(missing=column.missing or column.name in missing) for column in listed),
        key=tuple(numbers[name] for name in table.key if name in numbers),
        types=tuple(msgspec.json.decode(types or "[]", type=list[TypeDefinition])),
    )


def dated(now: Fingerprint, before: Fingerprint | None) -> Fingerprint:
    """Return a fingerprint with `moved_at`."""
    if before is None:
        return now
    moved = before.attachments != now.attachments
    return msgspec.structs.replace(now, moved_at=now.publication if moved else before.moved_at)


def differences(before: Fingerprint, now: Fingerprint) -> Iterator[Difference]:
    """Yield the differences by which rows may have changed without a message."""
    if before.oid != now.oid:
        yield Difference("another table has its name")
        return
    if now.membership is not None and before.membership != now.membership:
        yield Difference("it was not in the publication for a while")
    elif before.publication != now.publication and before.actions == now.actions:
        yield Difference("the options of the publication were set")
    yield from _differences_of_leaves(before.leaves, now.leaves)
    yield from _differences_of_columns(before, now)
    if before.key != now.key:
        yield Difference("it has another key")
    for definition in altered_types(before, now):
        yield Difference(f"the type {definition.name} was altered")


def altered_types(before: Fingerprint, now: Fingerprint) -> list[TypeDefinition]:
    """Return the types whose values have another text, or another meaning."""
    earlier = {definition.oid: definition for definition in before.types}
    return [one for one in now.types if one.oid in earlier and _redefined(earlier[one.oid], one)]


def _differences_of_leaves(before: Mapping[int, Leaf], now: Mapping[int, Leaf]) -> Iterator[Difference]:
    added = tuple(sorted(now.keys() - before.keys()))
    if added:
        yield Difference(_counted(len(added), "attached"), added)
    if removed := len(before.keys() - now.keys()):
        yield Difference(_counted(removed, "detached or dropped"))
    both = now.keys() & before.keys()
    if again := sum(now[oid].attached != before[oid].attached for oid in both):
        yield Difference(_counted(again, "detached or not in the publication for a while"))
    replaced = [oid for oid in both if now[oid].storage != before[oid].storage]
    if replaced:
        plain = len(now) == len(before) == 1
        yield Difference(
            "it was rewritten or truncated" if plain else _counted(len(replaced), "rewritten or truncated")
        )


def _counted(count: int, participle: str) -> str:
    return f"a partition was {participle}" if count == 1 else f"{count:,} partitions were {participle}"


def _differences_of_columns(before: Fingerprint, now: Fingerprint) -> Iterator[Difference]:
    earlier = {column.number: column for column in before.columns}
    names = {column.name for column in before.columns}
    for column in now.columns:
        was = earlier.get(column.number)
        if was is None:
            if column.missing:
                yield Difference(f"the column {column.name} was added with a default")
            elif column.name in names:
                yield Difference(f"another column has the name {column.name}")
        elif was.name != column.name:
            yield Difference(f"the column {was.name} was renamed")
        elif was.type_oid != column.type_oid:
            yield Difference(f"the column {column.name} has another type")
        elif was.generated and not column.generated:  # before PostgreSQL 18 its values were not published
            yield Difference(f"the column {column.name} is not generated any more")


def _redefined(before: TypeDefinition, now: TypeDefinition) -> bool:
    """Whether values have another text, or it means something else. A label that was added to an enum changes none."""
    parts = {part[0]: part for part in now.parts}
    if before.composite or now.composite:
        return before.parts != now.parts
    return any(parts.get(part[0]) != part for part in before.parts)


async def with_rows(connection: SourceConnection, leaves: Sequence[int]) -> bool:
    """Return whether any of these leaves may have rows. One that is locked may."""
    try:
        [(found,)] = await connection.query(
            f"begin; set local lock_timeout = '{int(LOCK_TIMEOUT * 1000)}ms';"
            f" select coalesce(bool_or(pg_catalog.pg_relation_size(c.oid) > 0 or c.relkind = 'f'), false)"
            f" from pg_catalog.pg_class as c where c.oid = any ('{oid_array(leaves)}'::pg_catalog.oid[])"
        )
    except SourceRefused:
        found = "t"
    await connection.query("rollback")
    return found == "t"


def not_captured(fingerprint: Fingerprint) -> list[int]:
    """Return the leaves whose changes are not in the WAL: foreign tables, and unlogged ones."""
    return [oid for oid, leaf in fingerprint.leaves.items() if leaf.kind in ("f", "u")]


async def are_open_before(connection: SourceConnection, xid: int) -> bool:
    """Return whether transactions of this database that began before another one are still open."""
    [(found,)] = await connection.query(_OPEN_BEFORE, str(xid & 0xFFFFFFFF))
    return found == "t"


async def names(connection: SourceConnection, oids: Iterable[int]) -> str:
    """Return the names of relations, as a list in a sentence."""
    found = await connection.query(
        "select o.oid::regclass::text from unnest($1::pg_catalog.oid[]) as o(oid) order by 1", oid_array(oids)
    )
    return ", ".join(name or "" for (name,) in found)


def sql(connection: SourceConnection) -> str:
    """Return the query for the fingerprints of the tables `$1`, with their membership in the publication `$2`."""
    of_schemas, schemas = (_OF_SCHEMAS, _SCHEMAS) if connection.version >= 150000 else ("", "")
    removals = _REMOVALS if connection.version >= 190000 else "''"
    return _FINGERPRINTS.format(member=_MEMBER.format(removals=removals, of_schemas=of_schemas, schemas=schemas))
