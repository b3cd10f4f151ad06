"""A source that can't be captured stops with an error that says what to do, and disturbs no other
source. It continues automatically once the cause is fixed.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from headrace import store
from headrace.embedded.binaries import find_installation
from headrace.model.capture import CaptureInfo
from headrace.sources.postgres.limits import CaptureLimits
from tests.support import captures, clusters

pytestmark = pytest.mark.asyncio

SOON = 30.0
"""Seconds within which a mended source continues."""


QUICK = CaptureLimits(stopped_retry_delay=0.3, table_check_interval=0.3)
"""Stopped sources are retried soon, and new tables are found soon."""


class Sources:
    """A good source, and any bad source beside it."""

    def __init__(self, database: store.Database, connection: Any) -> None:
        self.database = database
        self.connection = connection
        self._rows = 0

    async def check_good(self) -> None:
        """Check that the good source captures."""
        self._rows += 1
        await self.connection.execute("insert into good values ($1)", self._rows)
        await captures.until_message(self.database, "good", f'"id":{self._rows}' + "}")

    async def stopped(self, name: str, state: str = "stopped") -> CaptureInfo:
        """Wait until the bad source has stopped, check that the good one hasn't, and return the error."""
        info = await captures.until_state(self.database, name, state)
        assert info.reason, info
        await self.check_good()
        return info

    async def goes_on(self, name: str, statement: str) -> None:
        """Wait until the bad source captures, and check that the statement's change becomes a message."""
        before = await self.database.fetchval(f"select count(*) from headrace_streams.{name}")
        await captures.until_state(self.database, name, "running", within=SOON)
        await self.connection.execute(statement)
        await captures.until(self.database, f"select count(*) > {before} from headrace_streams.{name}")
        await self.check_good()


@asynccontextmanager
async def sources(database: store.Database) -> AsyncIterator[Sources]:
    """Sources in Headrace's own database, with a process that captures."""
    connection = await asyncpg.connect(database.dsn)
    try:
        await connection.execute(
            "create table good (id int primary key); create table bad (id int primary key, v text)"
        )
        await captures.make(database, stream="good", tables=("public.good",), backfill=False)
        async with captures.slots_dropped(database.dsn), captures.capturing(database.dsn, within=120, limits=QUICK):
            await captures.until_tracked(database, "good")
            yield Sources(database, connection)
    finally:
        await connection.close()


@pytest.mark.long
async def test_a_table_that_is_not_there_and_then_is(database: store.Database) -> None:
    async with sources(database) as beside:
        await captures.make(database, stream="missing", tables=("public.absent",), backfill=False)
        info = await beside.stopped("missing")
        assert "public.absent" in (info.reason or "")
        await beside.connection.execute("create table absent (id int primary key)")
        await beside.goes_on("missing", "insert into absent values (1)")


async def test_a_table_that_is_dropped_while_it_is_captured(database: store.Database) -> None:
    async with sources(database) as beside:
        await captures.make(database, stream="dropped", tables=("public.bad",), backfill=False)
        await captures.until_tracked(database, "dropped")
        await beside.connection.execute("insert into bad values (1); drop table bad")
        await captures.until_message(database, "dropped", '"insert"')
        info = await beside.stopped("dropped")
        assert "public.bad" in (info.reason or "")
        await beside.connection.execute("create table bad (id int primary key)")
        await beside.goes_on("dropped", "insert into bad values (2)")


@pytest.mark.long
async def test_rows_of_a_table_without_a_primary_key(database: store.Database) -> None:
    async with sources(database) as beside:
        await beside.connection.execute("create table keyless (v int)")
        await captures.make(database, stream="keyless", tables=("public.keyless",), mode="rows", backfill=False)
        info = await beside.stopped("keyless")
        assert "primary key" in (info.reason or "")
        await beside.connection.execute(
            "insert into keyless values (1); update keyless set v = 2"
        )  # which does no harm
        await beside.connection.execute("alter table keyless add primary key (v)")
        await beside.goes_on("keyless", "insert into keyless values (3)")


async def test_changes_of_a_table_without_a_primary_key_do_not_keep_others_from_writing_it(
    database: store.Database,
) -> None:
    async with sources(database) as beside:
        await beside.connection.execute("create table keyless (v int)")
        await captures.make(database, stream="keyless", tables=("public.keyless",), backfill=False)
        await captures.until(
            database,
            """select state in ('running', 'stopped') from headrace_internal.captures as c join headrace_internal.sources as o on o.id = c.source_id
               where o.name = 'keyless'""",
        )
        await beside.connection.execute("insert into keyless values (1)")
        await beside.connection.execute("update keyless set v = 2")
        await beside.connection.execute("delete from keyless")
        await beside.check_good()


async def test_the_error_of_a_role_without_privileges_says_what_to_grant(database: store.Database) -> None:
    role = f"poor_{uuid4().hex}"
    async with sources(database) as beside:
        await beside.connection.execute(f"create role {role} login")
        try:
            dsn = database.dsn.replace(f"{urlsplit(database.dsn).username}@", f"{role}@", 1)
            await captures.make(database, stream="poor", tables=("public.bad",), database=dsn, backfill=False)
            seen = []
            for _ in range(4):  # one after the other, as the errors say
                info = await captures_differ(beside, "poor", seen)
                if info.state == "running":
                    break
                assert info.mend, info
                seen.append(info.reason)
                await beside.connection.execute(info.mend)
            assert seen
            await beside.goes_on("poor", "insert into bad values (1)")
        finally:
            await captures.drop_slots(database.dsn)
            await beside.connection.execute("delete from headrace_internal.sources where name = 'poor'")
            await captures.until(database, "select not exists (select from pg_stat_activity where usename = $1)", role)
            await beside.connection.execute(f"drop owned by {role}; drop role {role}")


async def captures_differ(beside: Sources, name: str, seen: list[str | None]) -> CaptureInfo:
    """Wait until the source runs, or has stopped for a new reason."""
    async with asyncio.timeout(SOON):
        while True:
            info = (await store.source(beside.database, name)).capture
            assert info is not None
            if info.state == "running" or (info.state == "stopped" and info.reason not in seen):
                return info
            await asyncio.sleep(captures.PAUSE)


@pytest.mark.long
async def test_a_slot_that_another_client_uses(database: store.Database, tmp_path: Path) -> None:
    slot = f"somebody_{uuid4().hex}"
    program = find_installation().program("pg_recvlogical")
    if not program.exists():
        pytest.skip(f"there is no {program}")
    async with sources(database) as beside:
        await beside.connection.execute("create publication theirs for table bad")
        await beside.connection.fetch("select pg_create_logical_replication_slot($1, 'pgoutput')", slot)
        somebody = await asyncio.create_subprocess_exec(
            program, "-d", database.dsn, "-S", slot, "--start", "-o", "proto_version=1", "-o", "publication_names=theirs",
            "-f", "/dev/null", "-n", stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            await captures.until(
                database, "select active_pid is not null from pg_replication_slots where slot_name = $1", slot
            )
            await captures.make(
                database, stream="used", tables=("public.bad",), slot=slot, publication="theirs", backfill=False
            )
            info = await beside.stopped("used")
            assert slot in (info.reason or "")
        finally:
            somebody.terminate()
            await somebody.communicate()
        await beside.goes_on("used", "insert into bad values (1)")


@pytest.mark.long
async def test_a_publication_that_lacks_the_table(database: store.Database) -> None:
    async with sources(database) as beside:
        await beside.connection.execute("create publication theirs for table good")
        await captures.make(database, stream="lacking", tables=("public.bad",), publication="theirs", backfill=False)
        info = await beside.stopped("lacking")
        assert "theirs" in (info.reason or "")
        assert info.mend is not None
        await beside.connection.execute(info.mend)
        await beside.goes_on("lacking", "insert into bad values (1)")


@pytest.mark.long
async def test_a_password_that_changes_and_is_set_again(database: store.Database, tmp_path: Path) -> None:
    port = free_port()
    with clusters.cluster(tmp_path / "postgres", port=port) as server:
        there = await asyncpg.connect(server.url())
        try:
            await there.execute(
                "create table bad (id int primary key); create role clerk superuser login password 'first'"
            )
            dsn = f"postgresql://clerk:first@127.0.0.1:{port}/headrace"
            async with sources(database) as beside:
                await captures.make(database, stream="locked", tables=("public.bad",), database=dsn, backfill=False)
                await captures.until_tracked(database, "locked")
                await there.execute("insert into bad values (1)")
                await captures.until_message(database, "locked", '"insert"')
                await there.execute("alter role clerk password 'second'")
                await there.fetch("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'clerk'")
                info = await beside.stopped("locked")
                assert "password" in (info.reason or "")
                assert "first" not in f"{info.reason} {info.mend}"
                await there.execute("insert into bad values (2)")
                await there.execute("alter role clerk password 'first'")
                await captures.until_state(database, "locked", "running", within=SOON)
                await captures.until(database, "select count(*) = 2 from headrace_streams.locked")
        finally:
            await there.close()


@pytest.mark.long
async def test_a_server_without_logical_wal(database: store.Database, tmp_path: Path) -> None:
    with clusters.cluster(tmp_path / "postgres", wal_level="replica") as server:
        there = await asyncpg.connect(server.url())
        try:
            await there.execute("create table bad (id int primary key)")
        finally:
            await there.close()
        async with sources(database) as beside:
            await captures.make(
                database, stream="physical", tables=("public.bad",), database=server.url(), backfill=False
            )
            info = await beside.stopped("physical")
            assert "wal_level" in f"{info.reason} {info.mend}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
