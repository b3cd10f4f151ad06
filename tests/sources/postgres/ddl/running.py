"""Runs a schema change under capture in both modes, and judges both streams against its row of the documentation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg

from headrace import store
from headrace.sources.postgres.limits import CaptureLimits
from tests.sources.postgres.ddl.document import CHANGES, FAILURES, NOT_CAPTURED, NOTHING, Promise, Row
from tests.support import captures, mirrors
from tests.support.roles import as_role

MODES = ("rows", "changes")

SOON = 60.0
"""Seconds within which the promise of a row is kept. Far less is usual."""

LIMITS = CaptureLimits(stopped_retry_delay=0.3, table_check_interval=0.3)

TABLE = "create table t (id int primary key, v text); insert into t select g, 'v' || g from generate_series(1, 5) as g"

PARTITIONED = """
    create table t (id int primary key, v text) partition by range (id);
    create table t_0 partition of t for values from (0) to (100);
    create table t_1 partition of t for values from (100) to (200);
    insert into t select g, 'v' || g from generate_series(1, 3) as g;
    insert into t select g, 'v' || g from generate_series(101, 103) as g;
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A schema change.

    Attributes:
        before: Creates what there is before the capture. The table `t` is captured.
        steps: The change and writes around it, each of which must succeed.
        later: Writes that must succeed once the promise is kept, and must not break it.
        mended: Corrects the cause of a note or of a stop, after which the copies must be equal to the table.
        judged: The table at the end in SQL.
        away: Whether the steps may also run while no process captures.
        since, until: The first and the last version of PostgreSQL that has the change.
        role: Capture as a role that owns the tables and is no superuser, and is called {role} in the statements.
        publication: Creates a publication named `given` for both sources.
    """

    before: str = TABLE
    steps: tuple[str, ...]
    later: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    judged: str = "t"
    away: bool = True
    since: int = 14
    until: int = 99
    role: bool = False
    publication: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


class Trial:
    """A case that runs in a separate database. The tables `t` and `other` are captured in both modes."""

    def __init__(self, case: Case, row: Row, database: store.Database, connection: Any) -> None:
        self._case = case
        self._row = row
        self._database = database
        self._connection = connection
        self._role = ""
        self._name = urlsplit(database.dsn).path.strip("/")
        self._copies: dict[str, mirrors.Copy] = {}
        self._others = 0
        self._judged = "only t" if case.judged.startswith("only ") else "t"

    async def run(self, *, away: bool) -> None:
        """Run the case.

        Args:
            away: Whether the change happens while no process captures.
        """
        case = self._case
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._tables())
            await stack.enter_async_context(captures.slots_dropped(self._database.dsn))
            async with AsyncExitStack() as first:
                await first.enter_async_context(captures.capturing(self._database.dsn, within=180, limits=LIMITS))
                if not case.settings.get("unready"):
                    for mode in MODES:
                        await captures.until_tracked(self._database, mode)
                        await self._until(mode, self._equal)
                if not away:
                    await self._change()
                    await self._judge()
            if away:
                await self._change()
                await captures.end_tenures(self._database)
                async with captures.capturing(self._database.dsn, within=180, limits=LIMITS):
                    await self._judge()

    @asynccontextmanager
    async def _tables(self) -> AsyncIterator[None]:
        """Make the tables and their sources."""
        case, settings = self._case, {"tables": ("public.t", "public.other")}
        await self._execute("set time zone 'UTC'")
        if case.role:
            self._role = f"owner_{uuid4().hex[:12]}"
            await self._execute(
                f"create role {self._role} login replication password 'secret'; grant create, usage on schema public to {self._role}"
            )
            await self._execute("grant create on database {database} to {role}")
            settings["database"] = as_role(self._database.dsn, self._role)
        try:
            await self._execute("create table other (id int primary key)")
            await self._execute(case.before)
            if case.role:
                await self._execute("alter table t owner to {role}; alter table other owner to {role}")
            if case.publication is not None:
                await self._execute(case.publication)
                settings["publication"] = "given"
            for mode in MODES:
                await captures.make(
                    self._database, stream=mode, mode=mode, **settings, **({"deletes": "tombstone"} if mode == "rows" else {}),
                )  # fmt: skip
                self._copies[mode] = mirrors.Copy(mode)
            yield
        finally:
            if case.role:
                await captures.drop_slots(self._database.dsn)
                await self._execute("drop owned by {role} cascade; drop role {role}")

    # --- the change

    async def _execute(self, script: str) -> None:
        await self._connection.execute(script.replace("{role}", self._role).replace("{database}", self._name))

    async def _change(self) -> None:
        self._published = {mode: (await self._read(mode)).messages["public.t"] for mode in MODES}
        for step in self._case.steps:
            if step.startswith("refused: "):
                await self._check_refused(step.removeprefix("refused: "))
            else:
                await self._execute(step)
        self._judged = self._case.judged
        self._position = await self._mark()

    async def _check_refused(self, statement: str) -> None:
        """Check that the server refuses the statement."""
        try:
            await self._execute(statement)
        except asyncpg.PostgresError:
            return
        raise AssertionError(f"the server did not refuse: {statement}")

    async def _mark(self) -> int:
        """Change the other table. Returns a position up to which all changes before this are captured."""
        position: int = await self._connection.fetchval("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
        self._others += 1
        await self._connection.execute("insert into other values ($1)", self._others)
        return position

    # --- judgement

    async def _judge(self) -> None:
        case = self._case
        for mode in MODES:
            await self._until(mode, self._kept)
        if any(promise.outcome in (NOTHING, NOT_CAPTURED) for promise in self._row.promises.values()):
            await asyncio.sleep(1.5)  # a message would come by now
            for mode in MODES:
                await self._until(mode, self._kept)
        if case.later:
            for step in case.later:
                await self._execute(step)
            self._position = await self._mark()
            for mode in MODES:
                await self._until(mode, self._kept)
        if case.mended:
            for step in case.mended:
                await self._execute(step)
            self._position = await self._mark()
            for mode in MODES:
                await self._until(mode, self._mended)

    async def _until(self, mode: str, kept: Any) -> None:
        """Wait until `kept` finds nothing wrong."""
        end = time.monotonic() + SOON
        while wrong := await kept(mode):
            if time.monotonic() > end:
                raise AssertionError(f"mode {mode}, {self._row.promises[mode]}: {wrong}; {await self._state(mode)}")
            await asyncio.sleep(0.05)

    async def _kept(self, mode: str) -> str | None:
        promise = self._row.promises[mode]
        return await self._reported(mode, promise) or (
            None if promise.state == "stopped" else await self._captured(mode, promise)
        )

    async def _captured(self, mode: str, promise: Promise) -> str | None:
        if not await self._reached(mode):
            return "later changes are not captured"
        if not await self._equal_others(mode):
            return "the other table's changes are not captured"
        if promise.outcome is None:
            return None
        failures = (await store.source(self._database, mode)).capture
        if promise.outcome == FAILURES:
            return None if failures is not None and failures.failures else "there is no failure"
        if failures is None or failures.failures:
            return "a change became a failure"
        if promise.outcome in (NOTHING, NOT_CAPTURED):
            count = (await self._read(mode)).messages["public.t"] - self._published[mode]
            if count != 0:
                return f"{count} messages were published"
        return await self._equal(mode)

    async def _reported(self, mode: str, promise: Promise) -> str | None:
        info = (await store.source(self._database, mode)).capture
        assert info is not None
        if promise.words is None:
            return f"it reports: {info.reason}" if info.reason is not None or info.state != "running" else None
        if info.state != promise.state:
            return f"it is {info.state}"
        return None if promise.words in (info.reason or "") else f"it reports: {info.reason}"

    async def _mended(self, mode: str) -> str | None:
        reported = await self._reported(mode, Promise(CHANGES, None, None))
        return reported or await self._captured(mode, Promise(CHANGES, None, None))

    async def _equal(self, mode: str) -> str | None:
        copy = await self._read(mode)
        found = await mirrors.differences(self._connection, copy, "public.t", self._judged)
        return str(found) if found else None

    async def _equal_others(self, mode: str) -> bool:
        return not await mirrors.differences(self._connection, await self._read(mode), "public.other")

    async def _read(self, mode: str) -> mirrors.Copy:
        return await self._copies[mode].read(self._database, mode)

    async def _reached(self, mode: str) -> bool:
        answer = await self._database.fetchval(
            """select exists (select from headrace_internal.capture_positions as p join headrace_internal.sources as s on s.id = p.source_id
                               where s.name = $1 and (p.position - '0/0')::bigint > $2)""",
            mode, self._position,
        )  # fmt: skip
        return bool(answer)

    async def _state(self, mode: str) -> str:
        info = (await store.source(self._database, mode)).capture
        return f"{info.state}: {info.reason} ({info.mend})" if info is not None else "no capture"
