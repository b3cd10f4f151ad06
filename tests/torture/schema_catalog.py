"""The tables and types of a database, from its catalog."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

CATALOG = """
    select json_agg(json_build_object(
               'name', c.relname, 'kind', c.relkind, 'identity', c.relreplident, 'partition', c.relispartition,
               'by', case c.relkind when 'p' then pg_get_partkeydef(c.oid) end,
               'parent', (select p.relname from pg_inherits as i join pg_class as p on p.oid = i.inhparent where i.inhrelid = c.oid limit 1),
               'key', (select json_agg(a.attname order by a.attnum) from pg_index as i
                         join pg_attribute as a on a.attrelid = c.oid and a.attnum = any (i.indkey)
                        where i.indrelid = c.oid and i.indisprimary),
               'key_name', (select conname from pg_constraint as o where o.conrelid = c.oid and o.contype = 'p'),
               'columns', (select json_agg(json_build_object(
                                      'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'generated', a.attgenerated,
                                      'inherited', a.attinhcount > 0) order by a.attnum)
                             from pg_attribute as a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped)) order by c.relname)
      from pg_class as c where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')
"""

TYPES = """
    select json_build_object(
               'labels', (select json_agg(e.enumlabel order by e.enumsortorder) from pg_enum as e where e.enumtypid = 'mood'::regtype),
               'attributes', (select json_agg(json_build_array(a.attname, format_type(a.atttypid, a.atttypmod)) order by a.attnum)
                                from pg_attribute as a join pg_type as t on t.typrelid = a.attrelid
                               where t.oid = 'place'::regtype and a.attnum > 0 and not a.attisdropped))
"""


class Column(NamedTuple):
    name: str
    type: str
    generated: str
    inherited: bool


class Relation(NamedTuple):
    """A table as the catalog has it."""

    name: str
    kind: str
    identity: str
    partition: bool
    by: str | None
    parent: str | None
    key: tuple[str, ...]
    key_name: str | None
    columns: tuple[Column, ...]

    def payload(self) -> list[Column]:
        """Columns that may be changed and dropped."""
        return [one for one in self.columns if one.name not in ("id", "part") and not one.generated]


class Catalog:
    """The tables and types of a database.

    Args:
        captured: Names of the captured tables.
    """

    def __init__(self, captured: tuple[str, ...], relations: str, types: str) -> None:
        self.captured = captured
        found = msgspec.json.decode(relations)
        self.relations = {
            one["name"]: Relation(
                one["name"], one["kind"], one["identity"], one["partition"], one["by"], one["parent"], tuple(one["key"] or ()),
                one["key_name"],
                tuple(Column(**column) for column in one["columns"] or ()),
            )
            for one in found
        }  # fmt: skip
        types_ = msgspec.json.decode(types)
        self.labels: list[str] = types_["labels"]
        self.attributes: list[tuple[str, str]] = [tuple(one) for one in types_["attributes"] or ()]

    @classmethod
    async def load(cls, connection: Any, captured: tuple[str, ...]) -> Catalog:
        return cls(captured, await connection.fetchval(CATALOG), await connection.fetchval(TYPES))

    def tables(self) -> list[Relation]:
        """The captured tables that exist."""
        return [self.relations[name] for name in self.captured if name in self.relations]

    def below(self, name: str) -> list[Relation]:
        """A table's partitions and descendants, of all depths."""
        children = [one for one in self.relations.values() if one.parent == name]
        return [one for child in children for one in (child, *self.below(child.name))]

    def leaves(self, name: str) -> list[Relation]:
        return [one for one in self.below(name) if one.kind == "r"]
