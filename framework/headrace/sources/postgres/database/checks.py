"""Checks everything that could prevent a source from capturing, or from doing so well. A problem comes
with the exact statement that corrects it.

Each statement can be run on its own, by a superuser unless stated otherwise. No further statement
is needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from headrace.model.capture import Finding
from headrace.model.errors import ConfigurationError, HeadraceError
from headrace.model.text.sizes import format_size
from headrace.sources.postgres import table_names
from headrace.sources.postgres.connection.arrays import text_array
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.connection.untrusted import SourceDatabase
from headrace.sources.postgres.database import publications, row_filters, slots, table_checks
from headrace.sources.postgres.database.findings import error, ok, warning
from headrace.sources.postgres.errors import SourceUnavailable
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table

OLDEST_VERSION = 14

LOGICAL_ON_DEMAND = 19
"""The version from which on `wal_level = replica` suffices. The first logical slot raises `effective_wal_level`."""

APPLICATION_NAME = "headrace check"

# Advice for managed servers, where users are not superusers and the provider controls the settings.
_PROVIDER_ADVICE = {
    "rds.logical_replication": "On Amazon RDS and Aurora, set rds.logical_replication = 1 in the parameter group, and restart the server.",
    "cloudsql.logical_decoding": "On Cloud SQL, set the flag cloudsql.logical_decoding = on. That restarts the server.",
    "alloydb.logical_decoding": "On AlloyDB, set the flag alloydb.logical_decoding = on. That restarts the server.",
    "azure.extensions": "On Azure, set wal_level in the server parameters, and restart the server.",
}

LONG_TRANSACTION = 60
"""Seconds after which an open transaction counts as long."""

# Only privileged roles see since when other roles' transactions have been open.
_LONG_TRANSACTIONS = """
    select from pg_catalog.pg_stat_activity where backend_xid is not null and xact_start < now() - $1::int * interval '1 second'
    union all select from pg_catalog.pg_prepared_xacts where prepared < now() - $1::int * interval '1 second'
"""

_SERVER = """
    select pg_catalog.pg_is_in_recovery(), pg_catalog.pg_backend_pid()::text, pg_catalog.current_database(),
           s.wal_level, s.max_replication_slots, s.max_wal_senders, s.kept,
           (select count(*) from pg_catalog.pg_replication_slots)::text, (select count(*) from pg_catalog.pg_stat_replication)::text,
           (select setting from pg_catalog.pg_settings where name = 'idle_replication_slot_timeout')
      from (select current_setting('wal_level'), current_setting('max_replication_slots'), current_setting('max_wal_senders'),
                   (select setting from pg_catalog.pg_settings where name = 'max_slot_wal_keep_size'))
           as s(wal_level, max_replication_slots, max_wal_senders, kept)
"""

_ROLE = """
    select r.rolname, r.rolsuper, r.rolreplication,
           exists (select from pg_catalog.pg_roles as m
                    where m.rolname in ('rds_replication', 'rds_superuser') and pg_catalog.pg_has_role(r.oid, m.oid, 'MEMBER')),
           pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')
      from pg_catalog.pg_roles as r where r.rolname = current_user
"""


async def check(
    dsn: SourceDatabase,
    spec: PostgresSpec,
    name: str,
    *,
    shared_slot: str | None = None,
    long_transaction: int = LONG_TRANSACTION,
) -> list[Finding]:
    """Check everything that a capture needs.

    Args:
        dsn: the captured database.
        spec: the source's settings.
        name: the name of the source's own replication slot and publication, see `slots.slot_name`.
            Names in `spec` take precedence.
        shared_slot: the name on the server of the slot that it shares with other sources, if it does.
        long_transaction: seconds after which an open transaction is reported.

    Returns:
        The findings, in the order in which to correct them. Problems of the server are never
        raised.
    """
    try:
        connection = await SourceConnection.connect(dsn, application_name=APPLICATION_NAME)
    except HeadraceError as failure:
        return [error("connection", str(failure))]
    findings: list[Finding] = []
    try:
        async with connection:
            async for finding in _Check(connection, dsn, spec, name, long_transaction, shared_slot).all():
                findings.append(finding)  # noqa: PERF401 - keeps the findings when the rest fails
    except HeadraceError as failure:
        findings.append(error("connection", f"The check failed: {failure}"))
    return findings


class _Check:
    """One check, over one connection."""

    def __init__(
        self,
        connection: SourceConnection,
        dsn: SourceDatabase,
        spec: PostgresSpec,
        name: str,
        long_transaction: int,
        shared_slot: str | None = None,
    ) -> None:
        self.connection = connection
        self.dsn = dsn
        self.spec = spec
        self.slot = spec.slot or shared_slot or name
        self.publication = spec.publication or name
        self.long_transaction = long_transaction

    async def all(self) -> AsyncIterator[Finding]:
        (row,) = await self.connection.query(_SERVER)
        (
            in_recovery,
            pid,
            database,
            wal_level,
            max_slots,
            max_senders,
            wal_limit,
            used_slots,
            used_senders,
            idle_timeout,
        ) = (value or "" for value in row)
        slot = await slots.find_slot(self.connection, self.slot)
        for finding in self._server(in_recovery == "t", pid, database):
            yield finding
        yield await self._wal_level(wal_level)
        yield self._capacity(
            "replication slots",
            "max_replication_slots",
            int(used_slots),
            int(max_slots),
            needed=slot is None,
            instead=" Sources can share a slot: give them the same --shared-slot.",
        )
        yield self._capacity(
            "WAL senders",
            "max_wal_senders",
            int(used_senders),
            int(max_senders),
            needed=slot is None or slot.pid is None,
        )
        async for finding in self._role():
            yield finding
        checked_tables: list[Table] = []
        try:
            self.spec.check_where()
        except ConfigurationError as refused:  # of a source that an earlier version stored
            yield error("where", str(refused), f"headrace source postgres edit {self.spec.name} --where none")
        async for finding in table_checks.tables(self.connection, self.spec, self.publication, checked_tables):
            yield finding
        async for finding in self._publication(checked_tables):
            yield finding
        async for finding in self._slot(slot):
            yield finding
        yield self._wal_limit(int(wal_limit or -1))
        if idle_timeout not in ("", "0"):
            yield warning(
                "idle_replication_slot_timeout",
                f"The server invalidates slots that are idle for {idle_timeout} s. A source that is paused for that long loses its slot.",
                "alter system set idle_replication_slot_timeout = 0;",
            )

    # --- the server

    def _server(self, in_recovery: bool, pid: str, database: str) -> list[Finding]:
        version = self.connection.version // 10_000
        findings = [ok("connection", f"PostgreSQL {version}, database {self.connection.label}.")]
        if version < OLDEST_VERSION:
            findings = [
                error("version", f"The server is PostgreSQL {version}. Capturing needs {OLDEST_VERSION} or newer.")
            ]
        if in_recovery:
            text = (
                "The server is a standby. Set the primary in the source's database URL. If the URL has several hosts,"
                " add target_session_attrs=primary."
            )
            findings.append(error("standby", text))
        if int(pid) != self.connection.conn.backend_pid:
            text = (
                f"The database {database} is behind a connection pooler, and replication does not work through one. Set the"
                " server itself in the source's database URL."
            )
            findings.append(error("pooler", text))
        return findings

    async def _wal_level(self, level: str) -> Finding:
        version = self.connection.version // 10_000
        if level == "logical":
            return ok("wal_level", "wal_level is logical.")
        if level == "replica" and version >= LOGICAL_ON_DEMAND:
            return ok(
                "wal_level",
                f"wal_level is replica. PostgreSQL {version} writes logical WAL while there is a logical slot.",
            )
        provider = await self.connection.query(
            "select name from pg_catalog.pg_settings where name = any ($1::text[])", text_array(_PROVIDER_ADVICE)
        )
        text = f"wal_level is {level}, but it must be logical."
        if provider:
            return error("wal_level", f"{text} {_PROVIDER_ADVICE[provider[0][0] or '']}")
        return error(
            "wal_level", f"{text} Restart the server after the change.", "alter system set wal_level = 'logical';"
        )

    def _capacity(self, what: str, setting: str, used: int, limit: int, *, needed: bool, instead: str = "") -> Finding:
        mend = f"alter system set {setting} = {limit + 10};"
        if used >= limit and needed:
            return error(
                setting,
                f"All {limit} {what} are in use, and this source needs one. Restart the server after the change.{instead}",
                mend,
            )
        left = limit - used - needed
        text = f"{used} of {limit} {what} are in use{', this source takes one' if needed else ''}, and {max(left, 0)} are left."
        if left > 0:
            return ok(setting, text)
        return warning(
            setting,
            f"{text} A source that needs another one would stop. Restart the server after the change.{instead}",
            mend,
        )

    async def _role(self) -> AsyncIterator[Finding]:
        ((role, superuser, replication, granted, _),) = await self.connection.query(_ROLE)
        if "t" not in (superuser, replication, granted):
            yield error(
                "replication",
                f"The role {role} may not replicate.",
                f"alter role {table_names.quoted(role or '')} replication;",
            )
            return
        try:
            await (
                await SourceConnection.connect(self.dsn, application_name=APPLICATION_NAME, replication=True)
            ).close()
        except (
            SourceUnavailable
        ) as failure:  # it answered a moment ago, so its senders are in use, perhaps by this source
            yield warning("replication", f"The check of whether the role {role} may replicate failed: {failure}")
        except HeadraceError as failure:
            yield error("replication", f"The server refuses replication: {failure}")
        else:
            yield ok("replication", f"The role {role} may replicate.")

    # --- the publication

    async def _publication(self, tables: list[Table]) -> AsyncIterator[Finding]:
        name, is_given = self.publication, self.spec.publication is not None
        publication = await publications.find_publication(self.connection, name)
        if publication is None:
            yield await self._missing_publication(tables)
            return
        if (
            not is_given
            and publication.owned
            and not publication.all_tables
            and all([await self._owns(table) for table in tables])
        ):
            yield ok("publication", f"The publication {name} exists. Headrace keeps it as the source needs it.")
            return
        missing_tables = await publications.tables_missing_from(self.connection, name, tables)
        missing_actions = [action for action in self.spec.actions if action not in publication.actions]
        filters = await row_filters.find_row_filters(self.connection, name, tables)
        if filters:
            yield error("publication", *row_filters.problem(name, filters))
        if missing_tables:
            listed = ", ".join(table.name for table in missing_tables)
            yield error(
                "publication",
                f"The publication {name} lacks {listed}.",
                publications.complete_statement(name, publication, missing_tables),
            )
        if missing_actions:
            yield error(
                "publication",
                f"The publication {name} does not publish these actions: {', '.join(missing_actions)}.",
                publications.set_actions_statement(name, publication.actions | set(self.spec.actions)),
            )
        if not missing_tables and not missing_actions and not filters:
            yield ok("publication", f"The publication {name} has the source's tables.")

    async def _missing_publication(self, tables: list[Table]) -> Finding:
        name = self.publication
        statement = publications.create_statement(name, self.spec.tables, self.spec, self.connection.version)
        if self.spec.publication is not None:
            return error("publication", f"The publication {name} does not exist.", statement)
        ((_, superuser, _, _, may_create),) = await self.connection.query(_ROLE)
        if superuser == "t" or (may_create == "t" and all([await self._owns(table) for table in tables])):
            return ok("publication", f"Headrace will create the publication {name}.")
        return error("publication", publications.may_not_create(name), statement)

    async def _owns(self, table: Table) -> bool:
        ((owns,),) = await self.connection.query(
            "select pg_catalog.pg_has_role(relowner, 'USAGE') from pg_catalog.pg_class where oid = $1::oid",
            str(table.oid),
        )
        return owns == "t"

    # --- the slot

    async def _slot(self, slot: slots.Slot | None) -> AsyncIterator[Finding]:
        name, is_given = self.slot, self.spec.slot is not None
        if slot is None and is_given:
            yield error(
                "replication slot", f"The replication slot {name} does not exist.", slots.create_statement(name)
            )
        elif slot is None:
            yield await self._new_slot()
        elif problem := slot.unusable(name):
            yield error("replication slot", problem + " Name another slot, or none.")
        elif slot.lost:
            yield error(
                "replication slot",
                f"The replication slot {name} is lost, because the server has removed WAL that it needs. Changes are missing. Restart the"
                " capture, with a fresh backfill.",
                f"select pg_drop_replication_slot('{name}');",
            )
        elif slot.pid is not None and not (slot.application or "").startswith("headrace"):
            yield error("replication slot", slot.in_use(name), f"select pg_terminate_backend({slot.pid});")
        else:
            yield ok("replication slot", f"The replication slot {name} exists. Its WAL is {slot.wal_status}.")

    async def _new_slot(self) -> Finding:
        text = f"Headrace will create the replication slot {self.slot}."
        if not await self.connection.query(_LONG_TRANSACTIONS, str(self.long_transaction)):
            return ok("replication slot", text)
        return warning(
            "replication slot",
            f"{text} That waits for open transactions. {await slots.oldest_open_transaction(self.connection)}.",
        )

    def _wal_limit(self, megabytes: int) -> Finding:
        what = "max_slot_wal_keep_size"
        alarm = format_size(self.spec.alarm)
        if megabytes < 0:
            return ok(
                what,
                f"{what} has no limit. While the slot is not read, the server keeps all WAL for it, so no change is lost, but its disk can"
                f" fill. The alarm is raised at {alarm}.",
            )
        limit = megabytes * 1024 * 1024
        if limit > self.spec.alarm:
            return ok(
                what,
                f"{what} is {format_size(limit)}. Beyond that, the slot is lost. The alarm is raised before, at {alarm}.",
            )
        return warning(
            what,
            f"{what} is {format_size(limit)}. Beyond that, the slot is lost, and the alarm is raised only at {alarm}. After the change, run: select pg_reload_conf().",
            f"alter system set {what} = '{self.spec.alarm * 5 // (1024 * 1024)}MB';",
        )
