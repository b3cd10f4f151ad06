"""The capturer's cache of tables and types, read from the catalog when a relation message arrives.

The catalog shows the present, and a relation message shows the table at the time of the change. The names of columns
and their order therefore come from the relation, and only the key and the types come from the catalog. A table is
recognised by its oid, even after it was renamed. When another table takes its name, that one is captured instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace import store
from headrace.sources.postgres import table_names
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

    async def refresh(self, connection: SourceConnection, captured: Mapping[str, int]) -> None:
        """Look the tables up. Raises `SourceStopped` if none of them can be captured, or one belongs to Headrace.

        Args:
            captured: the oids of the tables that were captured before, by their names in the spec.
        """
        located = await catalog.locate_tables(connection, self._spec.tables)
        for one in located:
            if one.problem is not None and table_names.split(one.name)[0] in store.SCHEMAS:
                raise SourceStopped(one.problem)
        oids = {one.name: int(one.oid) for one in located if one.oid is not None and one.problem is None}
        taken = {one.oid for one in located}
        for name in {one.name for one in located if one.oid is None} & captured.keys():
            if str(captured[name]) not in taken:
                oids[name] = captured[name]  # renamed, if it still exists
        self.tables = await catalog.tables_with_oids(connection, oids, self._spec.publication)
        self.missing = {
            one.name: SourceStopped(one.problem or f"The captured table {one.name} has just been dropped.", one.mend)
            for one in located
            if one.name not in self.tables
        }
        if not self.tables:
            problems = self.missing.values()
            mends = [error.mend for error in problems if error.mend is not None]
            raise SourceStopped(" ".join(error.reason for error in problems), " ".join(mends) or None)
        await load_types(
            connection, [column.type_oid for one in self.tables.values() for column in one.columns], self.types
        )

    def oids(self) -> Mapping[str, int]:
        """Return the oid of the table behind each name."""
        return {name: table.oid for name, table in self.tables.items()}

    async def table_of(self, connection: SourceConnection, relation: Relation) -> Table | None:
        """Return the captured table that a relation is, or is a partition of. None if it is not one of
        the spec's tables.
        """
        await load_types(connection, [column.type_oid for column in relation.columns], self.types)
        name = table_names.joined(relation.schema, relation.name)  # at the time of the change
        names = {known.oid: one for one, known in self.tables.items()}
        found = await catalog.table_with_oid(connection, relation.oid, self._spec.publication)
        if found is None:  # dropped, and its last changes still arrive
            dropped = self.tables.get(names.get(relation.oid, name))
            if dropped is not None:
                catalog.refuse_own(dropped, relation.schema)
            return dropped
        table, root = found
        captured = names.get(table.oid) or (None if root is None else names.get(root))
        if captured is None and name not in self._spec.tables:
            return None
        catalog.refuse_own(table, relation.schema)
        if captured is not None and table.oid not in names:  # a partition, of a publication that names partitions
            return self.tables[captured]
        if captured is None or (name != captured and await self._is_replaced(connection, captured, table)):
            # Another table has taken its name since. Its own changes are those from before that.
            return catalog.named(table, name) if name in self._spec.tables else None
        self.tables[captured] = catalog.named(table, captured)
        return self.tables[captured]

    async def _is_replaced(self, connection: SourceConnection, name: str, table: Table) -> bool:
        """Whether another table has this name now."""
        [located] = await catalog.locate_tables(connection, [name])
        return located.oid is not None and int(located.oid) != table.oid
