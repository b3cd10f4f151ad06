"""A database with captured tables: the tables, the progress of the capture, and the cleanup."""

from __future__ import annotations

import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import asyncpg

from benchmarks.checks import CheckFailed, expect
from benchmarks.harness import MESSAGES, STREAM, Bench, Options, bench
from benchmarks.payloads import Batch
from benchmarks.processor_time import Meter, postmaster
from benchmarks.wire import CaptureJob, ConsumerJob, Job
from headrace import store
from headrace.embedded.binaries import find_installation
from headrace.model.capture import BackfillInfo, CaptureInfo

SOURCE = STREAM
"""The name of the source, which is that of its stream."""
TIMEOUT = 120.0
"""Seconds without any progress after which the benchmark fails."""
EVERY = 0.02

ACCOUNTS = 100_000
_TABLES = (
    "create table accounts (aid int primary key, bid int not null, abalance int not null, note text not null)",
    f"insert into accounts select n, 1 + n / 1000, 0, repeat('a', 20) from generate_series(0, {ACCOUNTS - 1}) as n",
    "alter table accounts replica identity full",
    "create table history (hid bigint primary key, aid int not null, delta int not null, mtime timestamptz not null default now())",
    """
    create procedure work(p_first bigint, p_transactions bigint) language plpgsql as $$
    declare
        v_aid    int;
        v_delta  int;
    begin
        for n in p_first .. p_first + p_transactions - 1 loop
            v_aid := n * 7919 % 100000;
            v_delta := n % 1999 - 999;
            update accounts set abalance = abalance + v_delta where aid = v_aid;
            insert into history (hid, aid, delta) values (n, v_aid, v_delta);
            commit;
        end loop;
    end $$
    """,
)

_SLOTS = "select slot_name, active_pid from pg_replication_slots where database = current_database()"
_READ = f"select key, data from {MESSAGES} order by seq limit $1"


@asynccontextmanager
async def captured_bench(options: Options) -> AsyncIterator[Bench]:
    """A fresh database with a readable WAL, whose slots are dropped at the end. Raises `CheckFailed` without logical WAL."""
    async with bench(options) as place:
        level = await place.database.fetchval("show wal_level")
        if level != "logical":
            raise CheckFailed(
                f"wal_level is {level!r}: set it to 'logical' and restart the server, or leave out --database"
            )
        try:
            yield place
        finally:
            with anyio.CancelScope(shield=True):
                await _drop_slots(place)


async def make_tables(place: Bench) -> None:
    """Create TPC-B's accounts and history, and the procedure `work`, which changes both in one transaction per pair."""
    for statement in _TABLES:
        await place.database.fetch(statement)


def job(place: Bench, *tables: str, consumers: list[ConsumerJob] | None = None, backfill: bool = False) -> Job:
    """The job of a process that captures these tables into the stream, and may run consumers, too."""
    capture = CaptureJob(list(tables), {"name": SOURCE, "mode": "changes", "backfill": backfill})
    return Job(place.dsn, STREAM, consumers or [], captures=[capture])


async def captured(place: Bench) -> CaptureInfo:
    """The state of the capture, `new` before there is one. Raises `CheckFailed` if it can't continue."""
    info = next((source.capture for source in await store.sources(place.database)), None) or CaptureInfo(state="new")
    if info.state == "stopped":
        raise CheckFailed(f"the source stopped: {info.reason}")
    return info


async def runs(place: Bench) -> None:
    """Wait until changes are captured as they are committed."""
    with anyio.move_on_after(TIMEOUT):
        while (await captured(place)).state != "running":  # noqa: ASYNC110 - the database is asked
            await anyio.sleep(EVERY)
        return
    raise CheckFailed(f"the source did not run within {TIMEOUT:.0f} s: {await captured(place)}")


async def changes_captured(place: Bench, count: int) -> tuple[int, int]:
    """Wait until the stream contains this many changes, counted from its start.

    Returns:
        When a capturing process was first seen, and when all changes were there, on the monotonic
        clock, in ns.
    """
    began, seen = None, 0
    since = time.monotonic()
    while True:
        asked = time.monotonic_ns()
        found = await captured(place)
        if began is None and found.state == "running":
            began = asked
        if found.captured >= count and began is not None:
            expect(found.captured, count, "changes that were captured")
            return began, time.monotonic_ns()
        if found.captured != seen:
            seen, since = found.captured, time.monotonic()
        elif time.monotonic() - since > TIMEOUT:
            raise CheckFailed(f"no change was captured for {TIMEOUT:.0f} s; of {count} there are {seen}")
        await anyio.sleep(EVERY)


async def backfilled(place: Bench) -> BackfillInfo:
    """Wait until the backfill has read its table to the end. Raises `CheckFailed` if it fails."""
    read, since = -1, time.monotonic()
    while True:
        found = await store.backfills(place.database)
        if found and found[0].state == "done":
            return found[0]
        if found and found[0].state in ("failed", "cancelled"):
            raise CheckFailed(f"the backfill {found[0].state}: {found[0].reason}")
        if found and found[0].read != read:
            read, since = found[0].read, time.monotonic()
        elif time.monotonic() - since > TIMEOUT:
            raise CheckFailed(f"the backfill did not go on for {TIMEOUT:.0f} s; it had read {read} rows")
        await anyio.sleep(EVERY)


async def insert_rate(place: Bench, count: int, size: int = 1000) -> float:
    """The raw limit of appending: insert the first `count` messages of the stream into a plain table.

    Returns:
        Messages per second, with `size` in each insert.
    """
    rows = await place.database.fetch(_READ, count)
    batches = [
        Batch([row["key"] for row in rows[start : start + size]], [row["data"] for row in rows[start : start + size]])
        for start in range(0, len(rows), size)
    ]
    return await place.plain.insert_rate(batches)


async def make_raw_slot(place: Bench) -> str:
    """Create a second slot that starts here, for `read_rate`."""
    name = f"raw_{time.monotonic_ns()}"
    await place.database.fetch("select pg_create_logical_replication_slot($1, 'pgoutput')", name)
    return name


async def read_rate(place: Bench, slot: str, count: int, end: str) -> float:
    """The raw limit of reading: `pg_recvlogical` reads from a slot, and discards what it reads.

    Returns:
        Changes per second, of the `count` changes since the slot was made, which end at the WAL location `end`.
    """
    publication = await place.database.fetchval("select pubname::text from pg_publication")
    command = [
        str(find_installation().program("pg_recvlogical")), "--dbname", place.dsn, "--slot", slot, "--start", "--no-loop",
        "--endpos", end, "--file", "/dev/null", "-o", "proto_version=1", "-o", f"publication_names={publication}",
    ]  # fmt: skip
    start = time.perf_counter()
    with anyio.move_on_after(TIMEOUT):
        ended = await anyio.run_process(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        if ended.returncode:
            raise CheckFailed(f"pg_recvlogical ended with {ended.returncode}: {ended.stderr.decode().strip()}")
        return count / (time.perf_counter() - start)
    raise CheckFailed(f"pg_recvlogical did not come to the end within {TIMEOUT:.0f} s")


async def _drop_slots(place: Bench) -> None:
    """Drop the slots. A database with a slot in use can't be dropped, and an abandoned slot would keep WAL for ever."""
    connection = await place.database.connect()
    try:
        with anyio.fail_after(TIMEOUT):
            while slots := await connection.fetch(_SLOTS):
                for slot, pid in slots:
                    await _drop(connection, slot, pid)
    finally:
        await connection.close()


async def _drop(connection: asyncpg.Connection[Any], slot: str, pid: int | None) -> None:
    if pid is not None:
        await connection.fetchval("select pg_terminate_backend($1, 5000)", pid)
    try:
        await connection.fetchval("select pg_drop_replication_slot($1)", slot)
    except (asyncpg.ObjectInUseError, asyncpg.UndefinedObjectError):
        await anyio.sleep(EVERY)


class Spent:
    """The CPU time of a capture from here on: of the capturing process, and of all of Postgres."""

    def __init__(self, capturer: int, postgres: int | None) -> None:
        self._meter = Meter(capturer=capturer, postgres=postgres)

    @classmethod
    async def begin(cls, place: Bench, pid: int) -> Spent:
        """Start counting, for the process `pid`."""
        return cls(pid, postmaster(await place.database.fetchval("select pg_backend_pid()")))

    def each(self, count: int) -> dict[str, float]:
        """µs for each of `count` changes. Postgres's are left out if it runs on another machine."""
        used = self._meter.read()
        return {name: used[name] / count * 1e6 for name in ("capturer", "postgres") if name in used}

    def shares(self) -> dict[str, float]:
        """The same as shares of a core."""
        used = self._meter.read()
        return {name: used[name] / used["wall"] for name in ("capturer", "postgres") if name in used}


class Memory:
    """The memory of a process in MiB, as Linux counts it: at rest, and the maximum since `reset`."""

    def __init__(self, pid: int) -> None:
        self._place = Path(f"/proc/{pid}")

    def resident(self) -> float:
        return self._read("VmRSS:")

    def peak(self) -> float:
        return self._read("VmHWM:")

    def reset(self) -> None:
        (self._place / "clear_refs").write_text("5")

    def _read(self, name: str) -> float:
        lines = (self._place / "status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


async def row(place: Bench, query: str, *args: Any) -> dict[str, Any]:
    """The one row that a query returns."""
    return dict(await place.database.fetchrow(query, *args))
