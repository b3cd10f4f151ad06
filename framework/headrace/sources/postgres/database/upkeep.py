"""Keeps a source's own publication as the source needs it, and harmless for the tables' writers.

A table whose updates and deletes the server would refuse is not published. If it is published already, it is taken out,
and added again when that is corrected. The publication's comment lists the tables of which changes are missing, until a
resync of them is requested: the server writes it in one transaction with the tables.

A publication that is given, or has another owner, is only looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from headrace.sources.postgres import table_names
from headrace.sources.postgres.connection import server_errors
from headrace.sources.postgres.connection.arrays import oid_array
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import coverage, publications, row_filters
from headrace.sources.postgres.database.coverage import WRITES, Refusal
from headrace.sources.postgres.database.publications import LOCK_TIMEOUT, Publication
from headrace.sources.postgres.database.row_filters import RowFilter
from headrace.sources.postgres.errors import SourceLocked, SourceRefused, SourceStopped, SourceUnavailable
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table

REMOVAL_TIMEOUT = 0.2
"""Lock timeout in seconds for taking a table out whose writers are refused. The lock conflicts with vacuum and with
`create index concurrently`, and not with writers.
"""

PATIENT_REMOVAL_TIMEOUT = 2.0
"""The same while the publication holds updates and deletes back. It is longer than the default `deadlock_timeout`,
after which an automatic vacuum gives way.
"""

ADDITION_TIMEOUT = 0.1
"""Lock timeout in seconds for adding a table of which changes are missing. The lock waits for the transactions that
have written to the table, and new writers wait behind it.
"""

Note = tuple[str, str | None]
"""A problem that does not stop the capture, and the statement that corrects it."""

_NAMES = """
    select c.oid::text, n.nspname, c.relname from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
     where c.oid = any ($1::pg_catalog.oid[])
"""


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """The result of looking after a publication.

    Attributes:
        notes: problems that don't stop a capture that runs.
        stop: a problem because of which a capture can't start. None if there is none.
        missing: the tables that only the publication's owner can add.
        incomplete: the published tables of which changes are missing, so that they need a resync.
        filtered: the tables of which changes are missing because of a row filter of the publication.
    """

    notes: Sequence[Note] = ()
    stop: SourceStopped | None = None
    missing: Sequence[Table] = ()
    incomplete: Sequence[Table] = ()
    filtered: Sequence[Table] = ()


class _Now(msgspec.Struct, frozen=True, kw_only=True):
    """The publication and the source's tables as they are now. `publication` is None if it does not exist.
    `altered` says whether it may be altered, and `filters` has its row filters of these tables.
    """

    publication: Publication | None
    altered: bool
    tables: Sequence[Table]
    refusals: Sequence[Refusal]
    filters: Sequence[RowFilter]

    @property
    def filtered(self) -> frozenset[int]:
        return frozenset(one.oid for one in self.filters)

    @property
    def named(self) -> dict[int, str]:
        return {} if self.publication is None else self.publication.named

    @property
    def lacking(self) -> frozenset[int]:
        """The tables of which changes are missing, whether they are published or not."""
        return (
            frozenset()
            if self.publication is None
            else self.publication.incomplete & {table.oid for table in self.tables}
        )

    @property
    def withheld(self) -> dict[int, Refusal]:
        """The tables that must not be published, each with the first reason."""
        own = [refusal for refusal in self.refusals if refusal.publication is None and self.altered]
        return {refusal.table: refusal for refusal in reversed(own)}

    @property
    def wanted(self) -> list[Table]:
        withheld = self.withheld
        return [table for table in self.tables if table.oid not in withheld]

    @property
    def to_drop(self) -> dict[int, str]:
        wanted = {table.oid for table in self.wanted} - self.filtered
        return {oid: name for oid, name in self.named.items() if oid not in wanted}

    @property
    def to_add(self) -> list[Table]:
        return [table for table in self.wanted if table.oid not in self.named]


class PublicationUpkeep:
    """Looks after the publication of one source.

    Args:
        spec: the source's settings. If `publication` is set, that one is given, and is not altered.
        name: the publication's name.
        lock_timeout: timeout in seconds for locks on the tables, where no writer waits.
    """

    def __init__(self, spec: PostgresSpec, name: str, *, lock_timeout: float = LOCK_TIMEOUT) -> None:
        self._spec = spec
        self._name = name
        self._lock_timeout = lock_timeout
        self._not_added: list[Note] = []  # why tables could not be added
        self._had_options = False  # whether the publication was given the source's options before

    async def look(self, connection: SourceConnection, tables: Sequence[Table], *, may_add: bool) -> Upkeep | None:
        """Look at the publication. Returns None if `ensure` has something to alter.

        Args:
            connection: a connection to the captured database.
            tables: the source's tables.
            may_add: whether tables may be added now that could not be added before.

        Raises:
            SourceUnavailable: the captured database can't be reached.
        """
        now = await self._look(connection, tables)
        if now.publication is None:
            return None
        if not now.altered:
            return await self._verify(connection, now)
        settled = not now.to_drop and self._has_options(connection, now.publication)
        if not settled or (now.to_add and (may_add or not self._not_added)):
            return None
        return Upkeep(notes=self._notes(now), incomplete=self._incomplete(now))

    async def ensure(self, connection: SourceConnection, tables: Sequence[Table], *, captured_before: bool) -> Upkeep:
        """Make sure that the publication has the source's tables and actions, and harms no writer. It is created if
        it does not exist.

        Args:
            connection: a connection to the captured database.
            tables: the source's tables that exist.
            captured_before: whether the source was captured before, so that an added table may lack changes.

        Raises:
            SourceStopped: the server refuses a statement, and not for lack of a privilege.
            SourceUnavailable: another session has locked a table, or the server can't be reached.
        """
        try:
            return await self._ensure(connection, tables, captured_before)
        except SourceRefused as error:
            raise server_errors.setup_error(error) from error

    async def _ensure(self, connection: SourceConnection, tables: Sequence[Table], captured_before: bool) -> Upkeep:
        now = await self._look(connection, tables)
        if now.publication is None:
            if stop := await self._create(connection, now, captured_before):
                return Upkeep(stop=stop, notes=[(stop.reason, stop.mend)])
            now = await self._look(connection, tables)
        if now.publication is None or not now.altered:
            return await self._verify(connection, now)
        if now.to_drop or not self._has_options(connection, now.publication):
            await self._drop(connection, now, now.publication)
            now = await self._look(connection, tables)
        missing = await self._add_all(connection, now, captured_before and self._spec.backfill)
        stop = self._lacks(now.publication, missing) if missing and now.publication else None
        if stop is not None:
            self._not_added.append((stop.reason, stop.mend))
        self._had_options = True
        now = await self._look(connection, tables)
        if stop is None and not captured_before:
            stop = self._refused(now)
        return Upkeep(notes=self._notes(now), stop=stop, missing=missing, incomplete=self._incomplete(now))

    async def resync_requested(self, connection: SourceConnection, tables: Collection[Table]) -> None:
        """Note that tables with missing changes will be resynced."""
        publication = await publications.find_publication(connection, self._name)
        if publication is not None:
            left = publication.incomplete - {table.oid for table in tables}
            await publications.alter(connection, [publications.set_incomplete_statement(self._name, left)])

    async def _look(self, connection: SourceConnection, tables: Sequence[Table]) -> _Now:
        """Read the publication and the tables, with the names that they have now."""
        publication = await publications.find_publication(connection, self._name)
        altered = self._spec.publication is None and (
            publication is None or (publication.owned and not publication.all_tables)
        )
        oids = [table.oid for table in tables]
        rows = await connection.query(_NAMES, oid_array(oids))
        names = {int(oid or 0): (schema or "", relation or "") for oid, schema, relation in rows}
        found = [
            msgspec.structs.replace(table, name=table_names.joined(*names[table.oid]))
            for table in tables
            if table.oid in names
        ]
        refusals = await coverage.refusals(connection, self._spec, oids, self._name if altered else None)
        filters = await row_filters.find_row_filters(connection, self._name, found)
        return _Now(publication=publication, altered=altered, tables=found, refusals=refusals, filters=filters)

    # --- alterations

    async def _create(self, connection: SourceConnection, now: _Now, captured_before: bool) -> SourceStopped | None:
        """Create the publication. Returns why it can't be."""
        names = [table.name for table in now.wanted]
        if not names:
            return self._refused(now)
        statement = publications.create_statement(self._name, names, self._spec, connection.version)
        if self._spec.publication is not None:
            return SourceStopped(f"The captured database has no publication {self._name}.", statement)
        withheld = set(now.withheld) if self._spec.backfill else set()
        lacking = {table.oid for table in now.tables} if captured_before else withheld
        comment = [publications.set_incomplete_statement(self._name, lacking)] if lacking else []
        try:
            await publications.alter(connection, [statement, *comment], self._lock_timeout)
        except SourceRefused as error:
            if error.sqlstate == "42710":  # another session has just created it
                return None
            if error.sqlstate != "42501":
                raise
            return SourceStopped(publications.may_not_create(self._name, f" ({error.server_message})"), statement)
        return None

    async def _drop(self, connection: SourceConnection, now: _Now, publication: Publication) -> None:
        """Take tables out, and set the options if they differ: each table is read again after that. If another session holds a lock on a table whose writers are refused,
        updates and deletes are not published until it can be taken out, since that needs no lock.
        """
        holds_back = not (WRITES & set(self._spec.actions)) <= publication.actions
        # After changes were held back, here or by another session, each table is added again like one that was taken out.
        altered_by_others = self._had_options and not self._has_options(connection, publication)
        held_back = frozenset(now.named) if altered_by_others else now.lacking if holds_back else frozenset()
        to_drop = now.to_drop | {oid: name for oid, name in now.named.items() if oid in held_back}
        lacking = now.lacking | (to_drop.keys() & (now.withheld.keys() | now.filtered))
        statements = [publications.drop_tables_statement(self._name, to_drop.values())] if to_drop else []
        if not self._has_options(connection, publication):
            statements.append(publications.set_options_statement(self._name, self._spec, connection.version))
        lacking |= held_back & {table.oid for table in now.tables}
        if lacking != publication.incomplete:
            statements.append(publications.set_incomplete_statement(self._name, lacking))
        harmful = await self._harmful(connection, now)
        urgent = PATIENT_REMOVAL_TIMEOUT if holds_back else REMOVAL_TIMEOUT
        try:
            await publications.alter(connection, statements, urgent if harmful else self._lock_timeout)
        except SourceLocked:
            if not harmful:
                raise
            if publication.actions & WRITES:
                everything = publication.incomplete | {table.oid for table in now.tables}
                hold_back = [
                    publications.set_actions_statement(self._name, publication.actions - WRITES),
                    publications.set_incomplete_statement(self._name, everything),
                ]
                await publications.alter(connection, hold_back)

    async def _harmful(self, connection: SourceConnection, now: _Now) -> bool:
        """Whether writers of a table are refused that has to be taken out. Older versions also published tables that
        inherit from a source's table.
        """
        if now.to_drop.keys() & now.withheld.keys():
            return True
        others = await coverage.refusals(connection, self._spec, list(now.to_drop), self._name) if now.to_drop else []
        return any(refusal.publication is None for refusal in others)

    async def _add_all(self, connection: SourceConnection, now: _Now, added_lack_changes: bool) -> list[Table]:
        """Add the tables that the publication lacks. Returns those that the role may not add."""
        self._not_added = []
        missing: list[Table] = []
        lacking = now.lacking
        for table in now.to_add:
            now_lacking = lacking | {table.oid} if added_lack_changes else lacking
            try:
                await self._add(connection, table, now_lacking)
                lacking = now_lacking
            except SourceLocked:
                if table.oid not in now_lacking:
                    raise
                reason = (
                    f"The publication {self._name} lacks {table.name}, and its changes are not captured. It is added, and the table is read,"
                    " as soon as no open transaction has written to it or holds a lock."
                )
                self._not_added.append((reason, None))
            except SourceRefused as error:
                if error.sqlstate != "42501":
                    raise
                missing.append(table)
        return missing

    async def _add(self, connection: SourceConnection, table: Table, lacking: frozenset[int]) -> None:
        """Add a table. `lacking` has the tables of which changes are missing then. No open transaction may have written
        to a table of these: the server would send a part of its changes only, and a resync would not see the others yet.
        """
        is_lacking = table.oid in lacking
        lock = f"lock table {'' if table.partitioned else 'only '}{table.name} in share mode"
        await publications.alter(
            connection,
            [
                *([lock] if is_lacking else []),
                publications.add_tables_statement(self._name, [table]),
                publications.set_incomplete_statement(self._name, lacking),
            ],
            ADDITION_TIMEOUT if is_lacking else self._lock_timeout,
        )

    # --- results

    async def _verify(self, connection: SourceConnection, now: _Now) -> Upkeep:
        """Compare a publication that may not be altered with the source's settings. It may have more."""
        publication, stop = now.publication, None
        if publication is None:
            raise SourceUnavailable(f"The publication {self._name} has just been dropped.")
        missing = await publications.tables_missing_from(connection, self._name, now.wanted)
        if now.filters:
            stop = SourceStopped(*row_filters.problem(self._name, now.filters))
        elif missing:
            stop = self._lacks(publication, missing)
        elif missing_actions := [action for action in self._spec.actions if action not in publication.actions]:
            stop = SourceStopped(
                f"The publication {self._name}, owned by {publication.owner}, does not publish these actions: {', '.join(missing_actions)}.",
                publications.set_actions_statement(self._name, publication.actions | set(self._spec.actions)),
            )
        notes = [(stop.reason, stop.mend)] if stop else []
        filtered = [table for table in now.tables if table.oid in now.filtered]
        return Upkeep(notes=[*notes, *self._notes(now)], stop=stop, missing=missing, filtered=filtered)

    def _lacks(self, publication: Publication, missing: Sequence[Table]) -> SourceStopped:
        return SourceStopped(
            f"The publication {self._name}, owned by {publication.owner}, lacks {' and '.join(table.name for table in missing)}.",
            publications.complete_statement(self._name, publication, missing),
        )

    def _refused(self, now: _Now) -> SourceStopped | None:
        """Return why none of the tables can be published. None if one is."""
        if not now.withheld or now.wanted:
            return None
        refusal = next(iter(now.withheld.values()))
        return SourceStopped(
            f"The table {refusal.text} If it were published, the server would refuse all its updates and deletes, because it could not"
            " replicate their rows.",
            refusal.mend,
        )

    def _has_options(self, connection: SourceConnection, publication: Publication) -> bool:
        return publications.has_options(publication, self._spec, connection.version)

    def _incomplete(self, now: _Now) -> list[Table]:
        """Return the tables to resync. While updates and deletes are held back, that would be too early."""
        if now.publication is None or not set(self._spec.actions) <= now.publication.actions:
            return []
        return [table for table in now.tables if table.oid in now.lacking and table.oid in now.named]

    def _notes(self, now: _Now) -> list[Note]:
        notes = [self._withheld_note(now, refusal) for refusal in now.withheld.values()]
        if now.to_add:
            notes += self._not_added
        for refusal in now.refusals:
            if refusal.publication == self._name and self._spec.publication is None:
                drop = publications.drop_tables_statement(self._name, [refusal.relation])
                notes.append(
                    (
                        f"{refusal.text} The publication has another owner, which can take the table out: {drop}",
                        refusal.mend,
                    )
                )
            elif refusal.publication is not None and refusal.covered:
                notes.append((refusal.text, refusal.mend))
        return notes

    def _withheld_note(self, now: _Now, refusal: Refusal) -> Note:
        table = next(table.name for table in now.tables if table.oid == refusal.table)
        if refusal.table in now.named:
            return (
                f"{refusal.text} The server refuses updates and deletes of {table} while it is published. It can't be taken out of the"
                f" publication {self._name} yet, because another session has locked it. Until then the publication has no updates and"
                " deletes, of any table. The tables are read again afterwards.",
                refusal.mend,
            )
        return (
            f"{refusal.text} The server would refuse all updates and deletes of {table}, so it is not published, and its changes are not"
            " captured. Once this is corrected, it is published and read again.",
            refusal.mend,
        )
