"""One run of the schema fuzz: two sources, one in each mode, capture random tables while a writer changes them.

Each statement runs in a twin database first, which is captured by no source of ours. It must have the same result in both.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from headrace import store
from headrace.admin import Admin
from headrace.model.capture import BackfillInfo
from tests.support import captures, mirrors
from tests.torture.capture_process import Capturer, capturer
from tests.torture.schema_catalog import Catalog
from tests.torture.schema_fuzz import Fuzz, healed, renamed

MODES = ("rows", "changes")

PAUSE = 0.1
"""Seconds between two looks."""

PATIENCE = 300
"""Number of looks without progress after which a source counts as hung. It does not depend on the load of the machine, under
which looks take longer.
"""

ENDLESS = 3_000
"""Number of looks after which a source counts as never settled, whatever its progress."""

MOMENT = 100
"""Number of attempts at a write that the server may refuse after a schema change: the table has lost its replica identity, and
the source has not taken it out of its publication so far.
"""

HINT = re.compile(r"\[(alter publication given [^\]]*)\]")
"""A statement that a source recommends for the publication it was given."""

REFUSED_BY_PUBLICATION = ("55000", "42P10")
"""Errors of writes to a published table whose rows can't be identified."""


class Wrong(AssertionError):
    """A promise is broken."""


class Patience:
    """Pauses between looks at something that changes, and ends when it has not changed for long."""

    def __init__(self) -> None:
        self._seen: Any = None
        self._count = self._unchanged = 0

    async def look(self, state: Any) -> bool:
        """Pause. Returns whether to look again.

        Args:
            state: The observations.
        """
        self._count += 1
        self._unchanged = self._unchanged + 1 if state == self._seen else 0
        self._seen = state
        await asyncio.sleep(PAUSE)
        return self._unchanged < PATIENCE and self._count < ENDLESS


class Run:
    """A run.

    Args:
        seed: Determines the tables and the statements.
        database: Headrace's database.
        app, twin: Connections to the captured database and to its twin, in the time zone UTC.
        log: The file of the statements, if something is wrong.
        given: Whether the sources are given a publication. The twin has the same one.
    """

    def __init__(self, seed: int, database: store.Database, app: Any, twin: Any, log: Path, *, given: bool) -> None:
        self.seed = seed
        self._log = log
        self._database = database
        self._app = app
        self._twin = twin
        self._given = given
        self._chance = random.Random(seed)
        self._fuzz = Fuzz(seed, app.get_server_version().major)
        self._copies = {mode: mirrors.Copy(mode) for mode in MODES}
        self._markers = 0
        self._process: Capturer | None = None
        self.history: list[str] = []
        self.counts: Counter[str] = Counter()

    async def run(self, process: Capturer, *, rounds: int, kills: float) -> None:
        """Write, change the schema and compare, so many times.

        Args:
            process: Captures.
            kills: The share of rounds in which the process is killed.
        """
        self._process = process
        for mode in MODES:
            await captures.until_tracked(self._database, mode)
        for _ in range(rounds):
            killed = self._chance.random() < kills
            if killed:
                await process.kill()
            for _ in range(self._chance.randint(1, 3)):
                await self._step()
            if killed:
                await self._started()
            await self.compare()

    async def _started(self) -> None:
        """Start the process again, if it was killed."""
        if self._process is not None and not self._process.alive:
            await captures.end_tenures(self._database)
            await self._process.start()

    @asynccontextmanager
    async def prepared(self, dsn: str) -> AsyncIterator[None]:
        """Create the tables and their sources."""
        self.captured, script = self._fuzz.schema(self._chance.randint(2, 3))
        await self._both(script)
        settings: dict[str, Any] = {}
        if self._given:
            tables = "all tables" if self._chance.random() < 0.3 else f"table {', '.join((*self.captured, 'marker'))}"
            stored = ", publish_generated_columns = stored" if self._app.get_server_version().major >= 18 else ""
            await self._both(f"create publication given for {tables} with (publish_via_partition_root{stored})")
            settings["publication"] = "given"
        # A table without a key can't be backfilled, nor be captured in mode `rows`.
        keyless = {table.name for table in (await self._catalog()).tables() if not table.key}
        keyed = tuple(name for name in self.captured if name not in keyless)
        self._tables = {"rows": (*keyed, "marker"), "changes": (*self.captured, "marker")}
        for _ in range(10):
            await self._write(await self._catalog(), keyed)
        for mode in MODES:
            settings["tables"] = tuple(f"public.{name}" for name in self._tables[mode])
            deletes = {"deletes": "tombstone"} if mode == "rows" else {}
            await captures.make(self._database, stream=mode, mode=mode, database=dsn, **settings, **deletes)
        async with captures.slots_dropped(dsn):
            yield

    # --- statements

    async def _catalog(self) -> Catalog:
        return await Catalog.load(self._twin, self.captured)

    async def _step(self) -> None:
        catalog = await self._catalog()
        for _ in range(self._chance.randint(0, 6)):
            await self._write(catalog)
        statement = self._fuzz.change(catalog)
        if not self._given and catalog.tables() and self._chance.random() < 0.05:
            await self._tamper(self._chance.choice(catalog.tables()).name)
        elif statement is not None:
            await self._both(statement)
            self.counts["schema changes"] += 1
        catalog = await self._catalog()
        for _ in range(self._chance.randint(0, 6)):
            await self._write(catalog)

    async def _tamper(self, table: str) -> None:
        """Take a table out of a source's own publication, as another user might."""
        for (name,) in await self._app.fetch("select quote_ident(pubname) from pg_publication limit 1"):
            statement = f"alter publication {name} drop table {table}"
            self.history.append(f"{statement} -- only where it is captured")
            await _outcome(self._app, statement)

    async def _write(self, catalog: Catalog, only: tuple[str, ...] | None = None) -> None:
        catalog.captured = self.captured if only is None else only
        if catalog.tables():
            await self._both(self._fuzz.transaction(catalog))
            self.counts["writes"] += 1

    async def _both(self, statement: str) -> None:
        """Run a statement in the twin, and then in the captured database. Raises `Wrong` unless the results are equal."""
        self.history.append(statement)
        wanted = await _outcome(self._twin, statement)
        seen = await _outcome(self._app, statement)
        if wanted is None and seen is not None and seen.sqlstate in REFUSED_BY_PUBLICATION:
            await self._started()  # without a process, the table stays in the publication
            began = time.monotonic()
            for _ in range(MOMENT):
                await asyncio.sleep(PAUSE)
                if (seen := await _outcome(self._app, statement)) is None:
                    break
            if seen is None:
                self.counts["refused for a moment"] += 1
                self.counts["milliseconds of it"] += int((time.monotonic() - began) * 1000)
        self.counts["statements" if wanted is None else "failed in both"] += 1
        if (wanted is None) != (seen is None):
            raise Wrong(self._told(f"{statement}\nfailed with {seen!r}, and without capture with {wanted!r}"))

    # --- comparison

    async def compare(self) -> None:
        """Wait until the copies are equal to the tables, or the sources report why not. In that case the causes are removed,
        and they must be equal then. The product's own verification must find the same.
        """
        reported = await self._verify(await self._until_settled())
        applied = set[str]()
        while reported:
            self.counts["reported"] += 1
            self.history.append(f"-- reported: {reported}")
            for statement in HINT.findall(reported):
                applied.add(statement)
                await self._both(statement)
            for _ in range(PATIENCE):
                if (statement := healed(await self._catalog())) is None:
                    break
                await self._both(statement)
            else:
                raise Wrong(self._told(f"not healed by {statement}"))
            for mode in MODES:
                await self._resume_anew(mode)
            reported = await self._verify(await self._until_settled(applied))
        self.counts["compared"] += 1

    async def _verify(self, reported: str) -> str:
        """Run a verification of each source, as `headrace source postgres verify` does. It must find no differences, or
        say why it can't be done, unless the source reports that. Returns what is reported. A source may stop meanwhile.
        """
        running = [mode for mode in MODES if f"{mode} stopped" not in reported]
        verifications = [self._verify_source(Admin(self._database), mode) for mode in running]
        for error in await asyncio.gather(*verifications, return_exceptions=True):
            if error is not None:
                raise error
        stopped = [report for mode in MODES if (report := await self._report(mode)).startswith(f"{mode} stopped")]
        return reported or " / ".join(stopped)

    async def _verify_source(self, admin: Admin, mode: str) -> None:
        before: set[str] | None = None
        while wrong := await self._verified(admin, mode):
            report = await self._report(mode)
            unsaid = [one for one in wrong if not said((mode, one.table.removeprefix("public."), ""), report)]
            repairs = {one.id for one in await admin.backfills(mode) if one.kind != "verification"}
            if not unsaid:
                return
            if repairs == before:  # no resync has come between
                lines = [
                    f"{mode} {one.table}: verification {one.state}, {one.reason}, {one.differences}" for one in unsaid
                ]
                raise Wrong(self._told("\n".join([*lines, report])))
            before = repairs

    async def _verified(self, admin: Admin, mode: str) -> list[BackfillInfo]:
        """Run a verification. Returns the tables that are not equal, or were not compared without a reason."""
        looks = Patience()
        started = {one.id for one in await admin.verify_source(mode)}
        while True:
            found = await admin.backfills(mode, limit=100)
            ended = [one for one in found if one.id in started and one.state not in ("queued", "running")]
            if len(ended) == len(started):
                break
            if (await self._report(mode)).startswith(f"{mode} stopped"):
                for one in found:
                    if one.id in started and one not in ended:
                        await admin.cancel_backfills(mode, one.id)
                return []
            if not await looks.look([(one.id, one.state, one.read, one.updated_at) for one in found]):
                raise Wrong(self._told(f"{mode}: verifications don't end: {found}"))
        self.counts["tables verified"] += len(ended)
        self.counts["rows verified"] += sum(one.read for one in ended)
        self.counts["tables that can't be verified"] += sum(one.state != "done" for one in ended)
        return [
            one
            for one in ended
            if (one.reason is None if one.state != "done" else one.differences is None or one.differences.count)
        ]

    async def _resume_anew(self, mode: str) -> None:
        info = (await store.source(self._database, mode)).capture
        if info is not None and "--anew" in (info.mend or ""):
            await Admin(self._database).resume_source(mode, anew=True)

    async def _until_settled(self, applied: set[str] | None = None) -> str:
        """Return what is reported, or nothing if all copies are equal to their tables.

        Args:
            applied: The statements that were applied, if the causes of what was reported before have been removed. Then
                only another statement may be reported.
        """
        self._markers += 1
        position = await self._app.fetchval("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
        await self._both(f"insert into marker values ({self._markers})")
        looks = Patience()
        while True:
            found = [one for mode in MODES for one in await self._found(mode, position)]
            if not found:
                return ""
            reports = [await self._report(mode) for mode in MODES]
            unsaid = [one for one in found if not said(one, reports[MODES.index(one[0])])]
            hints = {hint for report in reports for hint in HINT.findall(report)}
            if not unsaid and (applied is None or hints - applied):
                # Only a report that stays counts.
                for _ in range(10):
                    await looks.look(None)
                if not [one for mode in MODES for one in await self._found(mode, position)]:
                    return ""
                return " / ".join(filter(None, reports))
            if not await looks.look((found, reports, await self._progress())):
                raise Wrong(
                    self._told("\n".join([*(f"{mode} {table}: {text}" for mode, table, text in found), *reports]))
                )

    async def _progress(self) -> str:
        """Return what changes while the sources do anything."""
        progress: str = await self._database.fetchval(
            """select concat((select json_agg(json_build_array(id, state, read, updated_at) order by id) from headrace_internal.backfills),
                             (select json_agg(json_build_array(source_id, state, reason, epoch) order by source_id) from headrace_internal.captures))"""
        )
        return progress

    async def _found(self, mode: str, position: int) -> list[tuple[str, str, str]]:
        """Return the differences of each table."""
        reached = await self._database.fetchval(
            """select exists (select from headrace_internal.capture_positions as p join headrace_internal.sources as s on s.id = p.source_id
                               where s.name = $1 and (p.position - '0/0')::bigint > $2)""",
            mode, position,
        )  # fmt: skip
        if not reached:
            return [(mode, "", "not captured so far")]
        copy = await self._copies[mode].read(self._database, mode)
        found = []
        catalog = await self._catalog()
        for name in self._tables[mode]:
            names = [name] if name in catalog.relations else renamed(catalog, name)
            text = "the table is not there"
            for now in names:
                only = "" if catalog.relations[now].kind == "p" else "only "
                different = await mirrors.differences(self._app, copy, f"public.{name}", f"{only}public.{now}")
                text = str(different)
                if not different:
                    break
            else:
                found.append((mode, name, text))
        return found

    async def _report(self, mode: str) -> str:
        info = (await store.source(self._database, mode)).capture
        return "" if info is None or info.reason is None else f"{mode} {info.state}: {info.reason} [{info.mend}]"

    def _told(self, text: str) -> str:
        """Return what is wrong, after the last statements. All of them are in a file."""
        self._log.write_text(";\n".join(self.history) + f"\n-- {text}")
        last = ";\n".join(f"{one:.300}" for one in self.history[-12:])
        wrong = "\n".join(f"{line:.700}" for line in text.splitlines())
        return f"seed {self.seed}, {dict(self.counts)}, all statements in {self._log}\n{last}\n{wrong}"


def said(found: tuple[str, str, str], report: str) -> bool:
    """Return whether the source reports this difference: it is stopped, or names the table."""
    mode, table, _ = found
    return report.startswith(f"{mode} stopped") or (bool(table) and f"public.{table}" in report)


async def _outcome(connection: Any, statement: str) -> asyncpg.PostgresError | None:
    """Run a statement. Returns the error, if there is one."""
    try:
        for part in statement.split(";;"):
            await connection.execute(part)
    except asyncpg.PostgresError as error:
        if connection.is_in_transaction():
            await connection.execute("rollback")
        return error
    return None


@asynccontextmanager
async def running(
    seed: int, database: store.Database, app_dsn: str, twin_dsn: str, log: Path, *, given: bool
) -> AsyncIterator[tuple[Run, Capturer]]:
    """A run with its tables, its sources and a process that captures them."""
    app, twin = await asyncpg.connect(app_dsn), await asyncpg.connect(twin_dsn)
    try:
        for connection in (app, twin):
            await connection.execute("set time zone 'UTC'; set lock_timeout = '120s'")
        run = Run(seed, database, app, twin, log.with_suffix(".sql"), given=given)
        async with run.prepared(app_dsn), capturer(database.dsn, log) as process:
            yield run, process
    finally:
        await app.close()
        await twin.close()
