"""The capturer's cache of tables and types, read from the catalog when a relation message arrives.

The catalog shows the present, and a relation message shows the table at the time of the change. The names of columns
and their order therefore come from the relation, and only the key and the types come from the catalog. A table is
recognised by its oid, even after it was renamed. When another table takes its name, that one is captured instead.

No message announces that a composite type was altered, and the text of its values has no names. The definition is
therefore looked at after changes have arrived, and before they are shaped. If it is still the one of the look before, it
fits all that arrived in between. Otherwise it is not known which definition the values of a transaction have that began
before the look. They are kept as text. The table is read again, see `table_watch`.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace import store
from headrace.sources.postgres import table_names
from headrace.sources.postgres.connection.arrays import oid_array
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.pgoutput.messages import Relation
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table
from headrace.sources.postgres.values import TypeInfo, load_types

# The transaction that has altered a type last is the writer of the newest row about an attribute, also of a dropped one.
_COMPOSITES = """
    select pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text, t.oid::text,
           md5(string_agg(concat_ws(' ', a.attnum, a.attname, a.atttypid), ',' order by a.attnum)),
           (select w.xmin::text from pg_catalog.pg_attribute as w where w.attrelid = t.typrelid and w.attnum > 0 order by age(w.xmin) limit 1)
      from pg_catalog.pg_type as t join pg_catalog.pg_attribute as a on a.attrelid = t.typrelid and a.attnum > 0
     where t.oid = any ($1::pg_catalog.oid[]) group by t.oid, t.typrelid
"""

# A snapshot ends at the last transaction that has ended. Others may have numbers beyond it, so this takes a number.
_NEXT_XID = """
    select case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())
                else pg_catalog.pg_current_xact_id() end::text
"""

_ROUND, _HALF = 1 << 32, 1 << 31  # of numbers of transactions on the wire


class SchemaCache:
    """The tables and types of one captured database.

    Attributes:
        tables: the spec's tables that exist, by their name in the spec.
        missing: the error for each of the spec's tables that does not exist.
        types: the types that are not built in, by oid.
        alterations: how many times a composite type was found altered.
    """

    def __init__(self, spec: PostgresSpec) -> None:
        self._spec = spec
        self.tables: dict[str, Table] = {}
        self.missing: dict[str, SourceStopped] = {}
        self.types: dict[int, TypeInfo] = {}
        self.alterations = 0
        self._definitions: dict[int, str] = {}  # of the composite types, as digests
        self._known_from: dict[int, int] = {}  # the oldest transaction that certainly has this definition
        self._xid = 0  # of a transaction at the time of the last look

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
        for name in captured.keys() & set(self._spec.tables) - oids.keys():
            if str(captured[name]) not in taken:
                oids[name] = captured[name]  # renamed, if it still exists, perhaps with a view in its place
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
        await self._load_types(connection, {column.type_oid for one in self.tables.values() for column in one.columns})

    def oids(self) -> Mapping[str, int]:
        """Return the oid of the table behind each name."""
        return {name: table.oid for name, table in self.tables.items()}

    # --- types

    async def _load_types(self, connection: SourceConnection, oids: set[int]) -> None:
        if not oids <= self.types.keys():
            await load_types(connection, oids, self.types)
            await self.look_at_types(connection)

    @property
    def has_composites(self) -> bool:
        """Whether `look_at_types` has to be called before changes are shaped."""
        return bool(self._definitions)

    async def look_at_types(self, connection: SourceConnection) -> None:
        """Look at the composite types, and load those that were altered."""
        composites = sorted(oid for oid, info in self.types.items() if info.kind == "composite")
        if not composites:
            return
        stale = []
        for xid, oid_text, definition, writer in await connection.query(_COMPOSITES, oid_array(composites)):
            oid = int(oid_text or 0)
            self._xid = int(xid or 0)
            if self._definitions.get(oid) == definition:
                continue
            self.alterations += oid in self._definitions
            # A type that was not known before has been as it is since its last writer, as far as can be known.
            known_from = await next_xid(connection) if oid in self._definitions else self._full_xid(int(writer or 0))
            self.distrust_types({oid: known_from})
            self._definitions[oid] = definition or ""
            stale.append(oid)
        if stale:  # loaded after the look, so that a later change is seen at the next one
            types = {oid: info for oid, info in self.types.items() if oid not in stale}
            await load_types(connection, stale, types)
            self.types = types

    def distrust_types(self, oids: Mapping[int, int]) -> None:
        """Note the first transaction of which it is certain that it has the present definition of each type."""
        for oid, xid in oids.items():
            self._known_from[oid] = max(xid, self._known_from.get(oid, 0))

    def types_of(self, xid: int) -> Mapping[int, TypeInfo]:
        """Return the types of the values of a transaction that has arrived. A type is base, and its values text, if its
        definition may have been another one.
        """
        full = self._full_xid(xid)
        unknown = [oid for oid, known_from in self._known_from.items() if full < known_from and oid in self.types]
        if not unknown:
            return self.types
        return {**self.types, **{oid: TypeInfo(oid, self.types[oid].name) for oid in unknown}}

    def _full_xid(self, xid: int) -> int:
        """Return the number of a transaction without wraparound: the nearest one to that of the last look. Its commit may be
        captured before a snapshot sees it.
        """
        return self._xid + (xid - self._xid + _HALF) % _ROUND - _HALF

    # --- relations

    async def table_of(self, connection: SourceConnection, relation: Relation) -> Table | None:
        """Return the captured table that a relation is, or is a partition of. None if it is not one of
        the spec's tables.
        """
        await self._load_types(connection, {column.type_oid for column in relation.columns})
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
        """Whether another table that can be captured has this name now."""
        [located] = await catalog.locate_tables(connection, [name])
        return located.oid is not None and located.problem is None and int(located.oid) != table.oid


async def next_xid(connection: SourceConnection) -> int:
    """Return a number that is larger than those of all transactions that have one so far."""
    [(xid,)] = await connection.query(_NEXT_XID)
    return int(xid or 0)
