"""Checks everything that could prevent a source from capturing, or from doing so well. A problem comes
with the exact statement that corrects it.

Each statement can be run on its own, by a superuser unless stated otherwise. No further statement
is needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from headrace.model.capture import Finding
from headrace.model.errors import HeadraceError
from headrace.sources.postgres.connection.link import Link
from headrace.sources.postgres.database import catalog, publications, slots, table_checks, table_names
from headrace.sources.postgres.database.findings import as_size, error, good, warning
from headrace.sources.postgres.database.tables import Table
from headrace.sources.postgres.errors import SourceUnavailable
from headrace.sources.postgres.spec import PostgresSpec

OLDEST = 14

APPLICATION = "headrace check"

# Advice for managed servers, where users are not superusers and the provider controls the settings.
_PROVIDERS = {
    "rds.logical_replication": "On Amazon RDS and Aurora: set rds.logical_replication = 1 in the parameter group, and restart it.",
    "cloudsql.logical_decoding": "On Cloud SQL: set the flag cloudsql.logical_decoding = on, which restarts it.",
    "alloydb.logical_decoding": "On AlloyDB: set the flag alloydb.logical_decoding = on, which restarts it.",
    "azure.extensions": "On Azure: set wal_level in the server parameters, and restart it.",
}

LONG = 60
"""Seconds for which a transaction must have been open to be reported."""

# Only privileged roles see since when other roles' transactions have been open.
_LONG_OPEN = """
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


async def check(dsn: str, spec: PostgresSpec, slot: str) -> list[Finding]:
    """Check everything that a capture needs.

    Args:
        dsn: the captured database.
        spec: the source's settings.
        slot: the name of the source's own replication slot and publication, see `slots.slot_name`.
            Names in `spec` take precedence.

    Returns:
        The findings, in the order in which to correct them. Problems of the server are never
        raised.
    """
    try:
        link = await Link.connect(dsn, application_name=APPLICATION)
    except HeadraceError as refused:
        return [error("connection", str(refused))]
    findings: list[Finding] = []
    try:
        async with link:
            async for finding in _Check(link, dsn, spec, slot).all():
                findings.append(finding)  # noqa: PERF401 - keeps the findings when the rest fails
    except HeadraceError as refused:
        findings.append(error("connection", f"The check could not go on: {refused}"))
    return findings


class _Check:
    """One check, over one connection."""

    def __init__(self, link: Link, dsn: str, spec: PostgresSpec, slot: str) -> None:
        self.link = link
        self.dsn = dsn
        self.spec = spec
        self.slot = spec.slot or slot
        self.publication = spec.publication or slot

    async def all(self) -> AsyncIterator[Finding]:
        (row,) = await self.link.query(_SERVER)
        in_recovery, pid, database, wal_level, most_slots, most_senders, kept, slots_, senders, idle = (
            value or "" for value in row
        )
        found = await slots.slot_of(self.link, self.slot)
        for finding in self._server(in_recovery == "t", pid, database):
            yield finding
        yield await self._wal_level(wal_level)
        yield self._free(
            "replication slots", "max_replication_slots", int(slots_), int(most_slots), needed=found is None
        )
        yield self._free(
            "WAL senders", "max_wal_senders", int(senders), int(most_senders), needed=found is None or found.pid is None
        )
        async for finding in self._role():
            yield finding
        good_tables: list[Table] = []
        async for finding in table_checks.tables(self.link, self.spec, good_tables):
            yield finding
        async for finding in self._publication(good_tables):
            yield finding
        async for finding in self._slot(found):
            yield finding
        yield self._kept(int(kept or -1))
        if idle not in ("", "0"):
            yield warning(
                "idle_replication_slot_timeout",
                f"The server gives up slots that nobody reads for {idle} s: a source that is paused for that long is lost.",
                "alter system set idle_replication_slot_timeout = 0;",
            )

    # --- the server

    def _server(self, in_recovery: bool, pid: str, database: str) -> list[Finding]:
        version = self.link.version // 10_000
        findings = [good("connection", f"PostgreSQL {version}, database {self.link.place}.")]
        if version < OLDEST:
            findings = [error("version", f"The server is PostgreSQL {version}; capturing takes {OLDEST} or newer.")]
        if in_recovery:
            findings.append(
                error("standby", "The server is a standby: name the primary in the source's database URL. With several hosts in it,"
                                 " add target_session_attrs=primary.")
            )  # fmt: skip
        if int(pid) != self.link.conn.backend_pid:
            findings.append(
                error("pooler", f"A connection pooler stands before the database {database}: name the server itself in the source's"
                                " database URL, replication does not go through a pooler.")
            )  # fmt: skip
        return findings

    async def _wal_level(self, level: str) -> Finding:
        if level == "logical":
            return good("wal_level", "wal_level is logical.")
        known = await self.link.query(
            "select name from pg_catalog.pg_settings where name = any ($1::text[])", catalog.array(_PROVIDERS)
        )
        told = f"wal_level is {level}, so the WAL does not have what changes are read from."
        if known:
            return error("wal_level", f"{told} {_PROVIDERS[known[0][0] or '']}")
        return error(
            "wal_level", f"{told} Restart the server after the change.", "alter system set wal_level = 'logical';"
        )

    def _free(self, what: str, setting: str, used: int, most: int, *, needed: bool) -> Finding:
        if used < most or not needed:
            return good(setting, f"{used} of {most} {what} are in use.")
        return error(
            setting,
            f"All {most} {what} are in use, and this source takes one. Restart the server after the change.",
            f"alter system set {setting} = {most + 10};",
        )

    async def _role(self) -> AsyncIterator[Finding]:
        ((role, superuser, replication, granted, _),) = await self.link.query(_ROLE)
        if "t" not in (superuser, replication, granted):
            yield error(
                "replication",
                f"The role {role} may not replicate.",
                f"alter role {table_names.quoted(role or '')} replication;",
            )
            return
        try:
            await (await Link.connect(self.dsn, application_name=APPLICATION, replication=True)).close()
        except SourceUnavailable as full:  # it answered a moment ago, so its senders are in use, perhaps by this source
            yield warning("replication", f"Whether the role {role} may replicate can't be seen for now: {full}")
        except HeadraceError as refused:
            yield error("replication", f"Replication is refused: {refused}")
        else:
            yield good("replication", f"The role {role} may replicate.")

    # --- the publication

    async def _publication(self, tables: list[Table]) -> AsyncIterator[Finding]:
        name, given = self.publication, self.spec.publication is not None
        found = await publications.publication_of(self.link, name)
        if found is None:
            yield await self._to_be_made(tables)
            return
        if not given and found.mine and not found.everything and all([await self._owns(table) for table in tables]):
            yield good("publication", f"The publication {name} is there, and is kept as the source needs it.")
            return
        lacking = await publications.uncovered(self.link, name, tables)
        missing = [action for action in self.spec.actions if action not in found.actions]
        if lacking:
            listed = ", ".join(table.name for table in lacking)
            yield error("publication", f"The publication {name} lacks {listed}.", publications.addition(name, lacking))
        if missing:
            yield error(
                "publication", f"The publication {name} does not publish every {' and '.join(missing)}.",
                publications.publishing(name, found.actions | set(self.spec.actions)),
            )  # fmt: skip
        if not lacking and not missing:
            yield good("publication", f"The publication {name} has the source's tables.")

    async def _to_be_made(self, tables: list[Table]) -> Finding:
        name = self.publication
        statement = publications.creation(name, self.spec, self.link.version)
        if self.spec.publication is not None:
            return error("publication", f"There is no publication {name}.", statement)
        ((_, superuser, _, _, may_create),) = await self.link.query(_ROLE)
        if superuser == "t" or (may_create == "t" and all([await self._owns(table) for table in tables])):
            return good("publication", f"The publication {name} will be made.")
        return error(
            "publication",
            f"The publication {name} is to be made, and the role may not: that takes the owner of the tables, with CREATE on the"
            " database. A superuser can.",
            statement,
        )

    async def _owns(self, table: Table) -> bool:
        ((owns,),) = await self.link.query(
            "select pg_catalog.pg_has_role(relowner, 'USAGE') from pg_catalog.pg_class where oid = $1::oid",
            str(table.oid),
        )
        return owns == "t"

    # --- the slot

    async def _slot(self, found: slots.Slot | None) -> AsyncIterator[Finding]:
        name, given = self.slot, self.spec.slot is not None
        if found is None and given:
            yield error("replication slot", f"There is no replication slot {name}.", slots.creation(name))
        elif found is None:
            yield await self._about_to_wait()
        elif wrong := found.unfit(name):
            yield error("replication slot", wrong + " Name another one, or none.")
        elif found.lost:
            yield error(
                "replication slot",
                f"The replication slot {name} is lost: the server has removed WAL that it needs. Changes are missing: start anew, with"
                " a fresh backfill.",
                f"select pg_drop_replication_slot('{name}');",
            )
        elif found.pid is not None and not (found.application or "").startswith("headrace"):
            yield error(
                "replication slot",
                f"The replication slot {name} is in use by someone else (pid {found.pid}, {found.application!r} of {found.user}), and"
                " serves one reader.",
                f"select pg_terminate_backend({found.pid});",
            )
        else:
            yield good("replication slot", f"The replication slot {name} is there, its WAL {found.wal_status}.")

    async def _about_to_wait(self) -> Finding:
        told = f"The replication slot {self.slot} will be made."
        if not await self.link.query(_LONG_OPEN, str(LONG)):
            return good("replication slot", told)
        return warning(
            "replication slot", f"{told} That waits for transactions that are open, {await slots.waits_for(self.link)}."
        )

    def _kept(self, megabytes: int) -> Finding:
        what = "max_slot_wal_keep_size"
        alarm = as_size(self.spec.alarm)
        if megabytes < 0:
            return good(
                what,
                f"{what} has no limit: while nobody reads the slot the server keeps all WAL for it, and no change is lost; should that"
                f" last, its disk fills. From {alarm} on there is an alarm.",
            )
        limit = megabytes * 1024 * 1024
        if limit > self.spec.alarm:
            return good(
                what,
                f"{what} is {as_size(limit)}: beyond that the slot is lost, for the disk's sake. The alarm comes before, at {alarm}.",
            )
        return warning(
            what,
            f"{what} is {as_size(limit)}: beyond that the slot is lost, and the alarm comes at {alarm} only. Then select pg_reload_conf().",
            f"alter system set {what} = '{self.spec.alarm * 5 // (1024 * 1024)}MB';",
        )
