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
from tests.support import captures, mirrors
from tests.torture.capture_process import Capturer, capturer
from tests.torture.schema_catalog import Catalog
from tests.torture.schema_fuzz import Fuzz, healed

MODES = ("rows", "changes")

SOON = 30.0
"""Seconds within which a source is equal to its tables, or reports why not."""

MOMENT = 5.0
"""Seconds after a schema change in which the server may refuse writes of a table that lost its replica identity, until the
source has taken it out of its publication.
"""

REFUSED_BY_PUBLICATION = ("55000", "42P10")
"""Errors of writes to a published table whose rows can't be identified."""


class Wrong(AssertionError):
    """A promise is broken."""


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
        self._changed_at = 0.0
        self.history: list[str] = []
        self.counts: Counter[str] = Counter()

    async def run(self, process: Capturer, *, rounds: int, kills: float) -> None:
        """Write, change the schema and compare, so many times.

        Args:
            process: Captures.
            kills: The share of rounds in which the process is killed.
        """
        for mode in MODES:
            await captures.until_tracked(self._database, mode)
        for _ in range(rounds):
            killed = self._chance.random() < kills
            if killed:
                await process.kill()
            for _ in range(self._chance.randint(1, 3)):
                await self._step()
            if killed:
                await captures.end_tenures(self._database)
                await process.start()
            await self.compare()

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
            self._changed_at = time.monotonic()
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

    async def _both(self, statement: str) -> None:
        """Run a statement in the twin, and then in the captured database. Raises `Wrong` unless the results are equal."""
        self.history.append(statement)
        wanted = await _outcome(self._twin, statement)
        seen = await _outcome(self._app, statement)
        if wanted is None and seen is not None and seen.sqlstate in REFUSED_BY_PUBLICATION:
            began = time.monotonic()
            while seen is not None and time.monotonic() < max(self._changed_at, began - MOMENT) + MOMENT:
                await asyncio.sleep(0.1)
                seen = await _outcome(self._app, statement)
            if seen is None:
                self.counts["refused for a moment"] += 1
                self.counts["milliseconds of it"] += int((time.monotonic() - began) * 1000)
        self.counts["statements" if wanted is None else "failed in both"] += 1
        if (wanted is None) != (seen is None):
            raise Wrong(self._told(f"{statement}\nfailed with {seen!r}, and without capture with {wanted!r}"))

    # --- comparison

    async def compare(self) -> None:
        """Wait until the copies are equal to the tables, or the sources report why not. In that case the causes are removed,
        and they must be equal then.
        """
        reported = await self._until_settled()
        while reported:
            self.counts["reported"] += 1
            self.history.append(f"-- reported: {reported}")
            before = time.monotonic()
            for statement in re.findall(r"\[(alter publication given [^\]]*)\]", reported):
                await self._both(statement)
            while (statement := healed(await self._catalog())) is not None:
                await self._both(statement)
                if time.monotonic() > before + SOON:
                    raise Wrong(self._told(f"not healed by {statement}"))
            for mode in MODES:
                await self._resume_anew(mode)
            reported = await self._until_settled(healed=True)
        self.counts["compared"] += 1

    async def _resume_anew(self, mode: str) -> None:
        info = (await store.source(self._database, mode)).capture
        if info is not None and "--anew" in (info.mend or ""):
            await Admin(self._database).resume_source(mode, anew=True)

    async def _until_settled(self, *, healed: bool = False) -> str:
        """Return what is reported, or nothing if all copies are equal to their tables."""
        self._markers += 1
        position = await self._app.fetchval("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
        await self._both(f"insert into marker values ({self._markers})")
        end = time.monotonic() + SOON
        while True:
            found = [one for mode in MODES for one in await self._found(mode, position)]
            if not found:
                return ""
            reports = [await self._report(mode) for mode in MODES]
            unsaid = [one for one in found if not said(one, reports[MODES.index(one[0])])]
            if not unsaid and not healed:
                # Only a report that stays counts.
                await asyncio.sleep(1)
                if not [one for mode in MODES for one in await self._found(mode, position)]:
                    return ""
                return " / ".join(filter(None, reports))
            if time.monotonic() > end:
                raise Wrong(
                    self._told("\n".join([*(f"{mode} {table}: {text}" for mode, table, text in found), *reports]))
                )
            await asyncio.sleep(0.1)

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
            if name not in catalog.relations:
                found.append((mode, name, "the table is not there"))
                continue
            only = "" if catalog.relations[name].kind == "p" else "only "
            if different := await mirrors.differences(self._app, copy, f"public.{name}", f"{only}public.{name}"):
                found.append((mode, name, str(different)))
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
            await connection.execute("set time zone 'UTC'; set lock_timeout = '20s'")
        run = Run(seed, database, app, twin, log.with_suffix(".sql"), given=given)
        async with run.prepared(app_dsn), capturer(database.dsn, log) as process:
            yield run, process
    finally:
        await app.close()
        await twin.close()
