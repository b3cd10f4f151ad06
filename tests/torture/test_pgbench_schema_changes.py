"""pgbench's TPC-B under capture in both modes, while every few seconds a partition is detached or attached, a table is swapped
or renamed, or a column's type is altered, and the capturing process is killed: no client gets an error, and at the end the copies
equal the tables.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headrace import store
from tests.support import captures, mirrors
from tests.torture.capture_process import Capturer, capturer
from tests.torture.test_capture_pgbench import pgbench, work

__all__ = ["pgbench"]

SECONDS = int(os.environ.get("HEADRACE_TEST_PGBENCH", "300"))
SOON, LATEST = 90.0, 900.0
"""Seconds until the copies are equal: without progress of a resync, and at most."""

MODES = ("rows", "changes")
TABLES = tuple(f"public.pgbench_{name}" for name in ("accounts", "tellers", "branches", "history"))


@pytest.mark.asyncio
@pytest.mark.long
async def test_copies_of_pgbench_are_true_after_schema_changes(
    pgbench: Path, database: store.Database, tmp_path: Path
) -> None:
    await run(pgbench, database, tmp_path, seconds=6, pace=0.5, rate=100, kills=0.1, accounts=10_000)


@pytest.mark.torture
@pytest.mark.asyncio
async def test_copies_of_pgbench_are_true_after_schema_changes_for_long(
    pgbench: Path, database: store.Database, tmp_path: Path
) -> None:
    await run(pgbench, database, tmp_path, seconds=SECONDS, pace=3.0, rate=300, kills=0.1, accounts=100_000)


async def run(
    pgbench: Path,
    database: store.Database,
    logs: Path,
    *,
    seconds: int,
    pace: float,
    rate: int,
    kills: float,
    accounts: int,
) -> None:
    """Run pgbench for so many seconds, with a schema change every `pace` seconds, and compare.

    Args:
        kills: The share of schema changes before which the process is killed.
        accounts: The number of accounts that are left of pgbench's 100,000. Each change has tables read again.
    """
    seed = int(os.environ.get("HEADRACE_TEST_SEED", "0")) or random.randrange(2**32)
    print(f"seed {seed}, logs in {logs}")
    chance = random.Random(seed)
    await work(pgbench, "-i", "-s", "1", "-q", "--partitions=4", database.dsn)
    connection = await asyncpg.connect(database.dsn)
    try:
        await connection.execute("set time zone 'UTC'")
        await connection.execute("delete from pgbench_accounts where (aid - 1) % 25000 >= $1", accounts // 4)
        await connection.execute("alter table pgbench_history add id bigint generated always as identity primary key")
        for mode in MODES:
            deletes = {"deletes": "tombstone"} if mode == "rows" else {}
            await captures.make(database, stream=mode, mode=mode, tables=TABLES, **deletes)
        async with captures.slots_dropped(database.dsn), capturer(database.dsn, logs / "capturer") as process:
            for mode in MODES:
                await captures.until_tracked(database, mode)
            load = asyncio.create_task(
                work(pgbench, "-c", "4", "-j", "1", "-T", str(seconds), "-R", str(rate), database.dsn)
            )
            changes = Changes(connection, chance)
            try:
                while not load.done():
                    await asyncio.wait({load}, timeout=chance.uniform(0, 2 * pace))
                    if chance.random() < kills:
                        await process.kill()
                        await changes.one()
                        await captures.end_tenures(database)
                        await process.start()
                    else:
                        await changes.one()
                print(await load)
            finally:
                load.cancel()
            await changes.restore()
            await judge(database, connection, process, changes)
    finally:
        await connection.close()


class Changes:
    """Schema changes that pgbench's statements survive."""

    def __init__(self, connection: Any, chance: random.Random) -> None:
        self._connection = connection
        self._chance = chance
        self._detached: int | None = None
        self._renamed = False
        self._number = 0
        self.made: list[str] = []

    async def one(self) -> None:
        """Make a change."""
        name = self._chance.choice(("partition", "partition", "swap", "rename", "type", "column"))
        self.made.append(name)
        await getattr(self, f"_{name}")()

    async def restore(self) -> None:
        """Attach what is detached, and give names back."""
        if self._detached is not None:
            await self._partition()
        if self._renamed:
            await self._rename()

    async def _partition(self) -> None:
        """Detach a partition of the accounts, or attach it again, with other rows."""
        if self._detached is None:
            self._detached = self._chance.randint(1, 4)
            how = self._chance.choice(("", " concurrently"))
            await self._connection.execute(
                f"alter table pgbench_accounts detach partition pgbench_accounts_{self._detached}{how}"
            )
            return
        n, self._detached = self._detached, None
        low, high = 25_000 * (n - 1) + 1, 25_000 * n + 1
        bounds = f"from ({'minvalue' if n == 1 else low}) to ({'maxvalue' if n == 4 else high})"
        await self._connection.execute(
            f"update pgbench_accounts_{n} set abalance = abalance + 1 where aid < {low + 50}; delete from pgbench_accounts_{n} where aid = {low + 60 + len(self.made)};"
            f" alter table pgbench_accounts attach partition pgbench_accounts_{n} for values {bounds}"
        )

    async def _swap(self) -> None:
        """A copy takes the place of the tellers, without one of its rows and with another one."""
        self._number += 1
        await self._connection.execute(
            f"begin; create table staging (like pgbench_tellers including all); lock table pgbench_tellers; insert into staging select * from pgbench_tellers where tid < 100;"
            f" insert into staging (tid, bid, tbalance) values ({100 + self._number}, 1, {self._number});"
            f" alter table pgbench_tellers rename to tellers_{self._number}; alter table staging rename to pgbench_tellers; commit"
        )

    async def _rename(self) -> None:
        """Rename the branches, with a view in their place, or give them their name again."""
        self._renamed = not self._renamed
        await self._connection.execute(
            "begin; alter table pgbench_branches rename to branches; create view pgbench_branches as select * from branches; commit"
            if self._renamed
            else "begin; drop view pgbench_branches; alter table branches rename to pgbench_branches; commit"
        )

    async def _type(self) -> None:
        """Alter a column's type, with other values."""
        table, column = self._chance.choice((("tellers", "filler"), ("accounts", "filler"), ("tellers", "tbalance")))
        kind = self._chance.choice(("bigint", "int")) if column == "tbalance" else "text"
        value = f"{column}::{kind}" if column == "tbalance" else f"'filled {self._chance.randrange(100)}'"
        await self._connection.execute(f"alter table pgbench_{table} alter {column} type {kind} using {value}")
        if table == "accounts" and self._detached is not None:  # it could not be attached again
            await self._connection.execute(f"alter table pgbench_accounts_{self._detached} alter filler type text")

    async def _column(self) -> None:
        """Add a column with a default to the history."""
        self._number += 1
        if self._number < 30:
            await self._connection.execute(
                f"alter table pgbench_history add c{self._number} int default {self._number}"
            )


async def judge(database: store.Database, connection: Any, process: Capturer, changes: Changes) -> None:
    """Wait until the copies equal the tables."""
    position = await connection.fetchval("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
    await connection.execute("insert into pgbench_history (delta) values (0)")
    copies = {mode: mirrors.Copy(mode) for mode in MODES}
    began = progressed = time.monotonic()
    wrong: list[str] = ["nothing was compared"]
    resyncs: list[str] = []
    while wrong:
        if time.monotonic() > min(progressed + SOON, began + LATEST):
            raise AssertionError(f"after {changes.made}, {process.kills} kills:\n" + "\n".join([*wrong, *resyncs]))
        await asyncio.sleep(0.5)
        wrong, before, resyncs = [], resyncs, await unfinished_resyncs(database)
        if resyncs != before:
            progressed = time.monotonic()
        if resyncs:
            wrong = ["tables are still read"]
            continue
        for mode in MODES:
            info = (await store.source(database, mode)).capture
            assert info is not None
            if info.state != "running" or info.reason is not None:
                wrong.append(f"{mode} is {info.state}: {info.reason}")
            if await captures.position(database, mode) <= position:
                wrong.append(f"{mode} is behind")
                continue
            copy = await copies[mode].read(database, mode)
            for table in TABLES:
                if different := await mirrors.differences(connection, copy, table):
                    wrong.append(f"{mode} {table}: {different!s:.1000}")
    print(
        f"equal after {time.monotonic() - began:.0f} s, {len(changes.made)} changes, {process.kills} kills, {sum(copies['changes'].messages.values())} messages of mode changes"
    )


async def unfinished_resyncs(database: store.Database) -> list[str]:
    """Return the backfills and comparisons that are queued or running, and how far they are."""
    rows = await database.fetch(
        "select to_jsonb(b)::text as backfill from headrace_internal.backfills as b where state in ('queued', 'running') order by id"
    )
    return [row["backfill"] for row in rows]
