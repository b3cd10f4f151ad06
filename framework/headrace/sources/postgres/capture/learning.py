"""What the capturer knows of tables and types: asked of the catalog when a relation arrives, and kept.

The catalog is as it is now, and a relation as it was when the change was made. So names of columns and their order are the relation's, and
of the catalog are only taken the key and the types. A table is known by its oid, also under another name.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.sources.postgres.connection.link import Link
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.pgoutput.messages import Relation
from headrace.sources.postgres.server import catalog
from headrace.sources.postgres.server.tables import Table
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.values import TypeInfo, load_types


class Knowledge:
    """Of one captured database.

    Attributes:
        tables: those that the spec names and that are there, by the name that it has for them.
        missing: those that are not there.
        types: those that are not built in, by their oid.
    """

    def __init__(self, spec: PostgresSpec) -> None:
        self._spec = spec
        self.tables: dict[str, Table] = {}
        self.missing: dict[str, SourceStopped] = {}
        self.types: dict[int, TypeInfo] = {}

    async def look(self, link: Link) -> None:
        """Look for the tables. Raises `SourceStopped` when none of them is there."""
        self.missing = {}
        try:
            self.tables = await catalog.load_tables(link, self._spec.tables, self._spec.publication)
        except SourceStopped as error:
            self.tables = await self._one_by_one(link)
            if not self.tables:
                raise error from None
        await load_types(link, [column.type_oid for one in self.tables.values() for column in one.columns], self.types)

    async def _one_by_one(self, link: Link) -> dict[str, Table]:
        found: dict[str, Table] = {}
        for name in self._spec.tables:
            try:
                found |= await catalog.load_tables(link, [name], self._spec.publication)
            except SourceStopped as error:
                self.missing[name] = error
        return found

    def oids(self) -> Mapping[str, int]:
        """Which table each name stands for."""
        return {name: table.oid for name, table in self.tables.items()}

    async def table_of(self, link: Link, relation: Relation) -> Table | None:
        """The table that a relation is, or a partition of; None if it is none of the spec's."""
        await load_types(link, [column.type_oid for column in relation.columns], self.types)
        found = await catalog.table_of(link, relation.oid, self._spec.publication)
        if found is None:
            return self._dropped(relation)
        table, root = found
        for name, known in self.tables.items():
            if known.oid == table.oid or name == root:
                known = known if name == root else _renamed(table, known)
                self.tables[name] = known
                return known
        return None

    def _dropped(self, relation: Relation) -> Table | None:
        """A table that is no more; its last changes still come."""
        for known in self.tables.values():
            if known.oid == relation.oid or (known.schema, known.relation) == (relation.schema, relation.name):
                return known
        return None


def _renamed(table: Table, known: Table) -> Table:
    """The table as it is now, under the name that the source has for it: keys must not change when it is renamed."""
    return msgspec.structs.replace(table, name=known.name, schema=known.schema, relation=known.relation)
