"""The capturer's cache of tables and types, read from the catalog when a relation message arrives.

The catalog shows the present, and a relation message shows the table at the time of the change. The names of columns
and their order therefore come from the relation, and only the key and the types come from the catalog. A table is
recognised by its oid, even after it was renamed.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.pgoutput.messages import Relation
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table
from headrace.sources.postgres.values import TypeInfo, load_types


class SchemaCache:
    """The tables and types of one captured database.

    Attributes:
        tables: the spec's tables that exist, by their name in the spec.
        missing: the error for each of the spec's tables that does not exist.
        types: the types that are not built in, by oid.
    """

    def __init__(self, spec: PostgresSpec) -> None:
        self._spec = spec
        self.tables: dict[str, Table] = {}
        self.missing: dict[str, SourceStopped] = {}
        self.types: dict[int, TypeInfo] = {}

    async def refresh(self, connection: SourceConnection) -> None:
        """Look the tables up. Raises `SourceStopped` if none of them exists."""
        self.missing = {}
        try:
            self.tables = await catalog.load_tables(connection, self._spec.tables, self._spec.publication)
        except SourceStopped as error:
            self.tables = await self._load_one_by_one(connection)
            if not self.tables:
                raise error from None
        await load_types(
            connection, [column.type_oid for one in self.tables.values() for column in one.columns], self.types
        )

    async def _load_one_by_one(self, connection: SourceConnection) -> dict[str, Table]:
        found: dict[str, Table] = {}
        for name in self._spec.tables:
            try:
                found |= await catalog.load_tables(connection, [name], self._spec.publication)
            except SourceStopped as error:
                self.missing[name] = error
        return found

    def oids(self) -> Mapping[str, int]:
        """Return the oid of the table behind each name."""
        return {name: table.oid for name, table in self.tables.items()}

    async def table_of(self, connection: SourceConnection, relation: Relation) -> Table | None:
        """Return the captured table that a relation is, or is a partition of. None if it is not one of
        the spec's tables.
        """
        await load_types(connection, [column.type_oid for column in relation.columns], self.types)
        found = await catalog.table_with_oid(connection, relation.oid, self._spec.publication)
        if found is None:
            return self._dropped(relation)
        table, root = found
        for name, known in self.tables.items():
            if known.oid == table.oid or name == root:
                catalog.refuse_own(table, relation.schema)
                known = known if name == root else _renamed(table, known)
                self.tables[name] = known
                return known
        return None

    def _dropped(self, relation: Relation) -> Table | None:
        """Return a table that was dropped. Its last changes still arrive."""
        for known in self.tables.values():
            if known.oid == relation.oid or (known.schema, known.relation) == (relation.schema, relation.name):
                catalog.refuse_own(known, relation.schema)
                return known
        return None


def _renamed(table: Table, known: Table) -> Table:
    """Return the current table under the source's name for it. Keys must not change when the table is
    renamed.
    """
    return msgspec.structs.replace(table, name=known.name, schema=known.schema, relation=known.relation)
