"""A third-party workload, pgbench's, is captured while the capturing process is killed and a backfill runs.

Each of its transactions adds one amount to an account, to a teller and to a branch, and inserts it into
the history. So the messages alone must rebuild the final tables, and each transaction must balance.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from headrace import store
from headrace.embedded.binaries import find_installation
from headrace.model.errors import EmbeddedPostgresError
from tests.support import captures
from tests.torture.capture_judge import Replica, Taken, Wrong, check_places, taken, transactions
from tests.torture.capture_process import Capturer, capturer

KEYS = {
    "public.pgbench_accounts": ["aid"],
    "public.pgbench_tellers": ["tid"],
    "public.pgbench_branches": ["bid"],
    "public.pgbench_history": [],  # it has no key, so rows are only ever added
}
AMOUNTS = {
    "public.pgbench_accounts": "abalance",
    "public.pgbench_tellers": "tbalance",
    "public.pgbench_branches": "bbalance",
}
CLIENTS = 8


@pytest.fixture
def pgbench() -> Path:
    """Return the path of pgbench, from the directory of Postgres's other programs or else from the PATH."""
    try:
        beside = find_installation().program("pgbench")
    except EmbeddedPostgresError:
        beside = Path("pgbench")
    found = beside if os.access(beside, os.X_OK) else shutil.which("pgbench")
    if found is None:
        pytest.skip(f"there is no pgbench, neither as {beside} nor in the PATH")
    return Path(found)


@pytest.mark.asyncio
@pytest.mark.long
async def test_balances_rebuilt_from_changes_are_those_of_the_tables(
    pgbench: Path, database: store.Database, tmp_path: Path
) -> None:
    await run(pgbench, database, tmp_path, seconds=4, rate=300, kills=2, patient=False)


@pytest.mark.torture
@pytest.mark.asyncio
async def test_balances_rebuilt_from_changes_are_those_of_the_tables_after_a_long_run(
    pgbench: Path, database: store.Database, tmp_path: Path
) -> None:
    await run(pgbench, database, tmp_path, seconds=90, rate=1000, kills=5, patient=True)


async def run(
    pgbench: Path, database: store.Database, logs: Path, *, seconds: int, rate: int, kills: int, patient: bool
) -> None:
    """Run pgbench for so many seconds, with so many kills, and judge the stream.

    Args:
        patient: Whether a successor waits for the killed process's capture lease to expire. Otherwise
            the test expires it.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}, logs in {logs}")
    await work(pgbench, "-i", "-s", "1", "-q", database.dsn)
    connection = await asyncpg.connect(database.dsn)
    try:
        # Accounts need the full replica identity, so that `changes` has old balances. The history has no
        # key. Without a replica identity its published rows could not be updated, so the source would
        # stop and report that.
        for table in ("pgbench_accounts", "pgbench_history"):
            await connection.execute(f"alter table {table} replica identity full")
        await captures.make(database, stream="bank", tables=tuple(KEYS), backfill=False)
        async with captures.slots_dropped(database.dsn), capturer(database.dsn, logs / "capturer") as process:
            await captures.until_tracked(database, "bank")
            # Accounts are backfilled in the middle in any case, and twice if there is time.
            await backfill(database, *list(KEYS)[0 if patient else 1 : 3])
            load = asyncio.create_task(
                work(pgbench, "-c", str(CLIENTS), "-j", "2", "-T", str(seconds), "-R", str(rate), database.dsn)
            )
            try:
                await torment(
                    process, database, random.Random(seed), load, seconds / (kills + 1), kills, patient=patient
                )
                print(await load)
            finally:
                load.cancel()
            await until_backfilled(database)
            await captures.until_all_is_captured(database, "bank", "insert into pgbench_history (delta) values (0)")
        await judge(connection, await taken(connection, "bank"), clients=CLIENTS)
        assert process.kills == kills
    finally:
        await connection.close()


async def work(pgbench: Path, *options: str) -> str:
    """Run pgbench. Returns its output."""
    process = await asyncio.create_subprocess_exec(pgbench, *options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode()
    return said.decode()


async def torment(
    process: Capturer, database: store.Database, chance: random.Random, load: asyncio.Task[str], pace: float, kills: int, *,
    patient: bool,
) -> None:  # fmt: skip
    """Kill the capturing process while it works, and backfill the accounts in the middle."""
    for n in range(kills):
        before = await length(database)
        await captures.until(database, 'select coalesce(max(seq), 0) > $1 from headrace_streams."bank"', before)
        if n == kills // 2:
            await until_backfilled(database)
            await backfill(database, "public.pgbench_accounts")
        await asyncio.sleep(chance.uniform(0, pace if not load.done() else 0))  # a kill may come at any moment
        await process.kill()
        if not patient:
            await captures.end_tenures(database)
        await process.start()


async def length(database: store.Database) -> int:
    found: int = await database.fetchval('select coalesce(max(seq), 0) from headrace_streams."bank"')
    return found


async def backfill(database: store.Database, *tables: str) -> None:
    source = (await store.source(database, "bank")).id
    for table in tables:
        assert await store.start_backfill(database, source, table) is not None


async def until_backfilled(database: store.Database) -> None:
    await captures.until(
        database, "select not exists (select from headrace_internal.backfills where state in ('queued', 'running'))"
    )
    failed = await database.fetch("select relation, reason from headrace_internal.backfills where state <> 'done'")
    assert not failed, [dict(row) for row in failed]


async def judge(connection: Any, messages: list[Taken], *, clients: int) -> None:
    """Check that nothing is lost, duplicated or out of order, each transaction balances, and the
    messages rebuild the tables.
    """
    changes = check_places(messages, whole=True)
    replica = Replica(KEYS, complete=False)
    steps = Steps(replica)
    for message in messages:
        steps.take(message)
    balanced = sum(check_balance(group, steps.deltas) for group in transactions(messages))
    reads = len(messages) - changes
    print(
        f"{changes} changes, {reads} reads ({replica.confirmed} of rows that were known), {balanced} transactions balance"
    )
    assert balanced > clients
    assert reads > 90_000, "the accounts were not read"
    for table in KEYS:
        there = await connection.fetch(f"select to_json(t)::text as row from {table} as t")
        replica.compare(table, [msgspec.json.decode(row["row"]) for row in there])
    check_sums(replica)


class Steps:
    """How much each change moved a balance, where that is known. A row that was not read yet has no old balance."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.deltas: dict[tuple[int, int], int] = {}

    def take(self, message: Taken) -> None:
        old = self._replica.apply(message)
        table, record = message.metadata.table, message.record or {}
        if message.action == "insert":
            self.deltas[message.place] = record["delta"]
        elif message.action == "update":
            amount = AMOUNTS[table]
            before = old if old is not None else {**record, **message.changes} if message.changes else None
            if before is not None:
                self.deltas[message.place] = record[amount] - before[amount]


def check_balance(group: Sequence[Taken], deltas: dict[tuple[int, int], int]) -> bool:
    """Return whether the transaction is one of pgbench's, which adds the same amount to all three.
    Raises `Wrong` if the amounts differ.
    """
    if sorted(message.metadata.table for message in group) != sorted(KEYS):
        return False
    amounts = {deltas[message.place] for message in group if message.place in deltas}
    if len(amounts) != 1:
        raise Wrong(f"the transaction of {group[0]} adds {sorted(amounts)}")
    return True


def check_sums(replica: Replica) -> None:
    """Check that each account, teller and branch has the sum of its history."""
    sums = {table: sum(row[amount] for row in replica.rows[table].values()) for table, amount in AMOUNTS.items()}
    history = sum(
        msgspec.json.decode(row)["delta"] * times for row, times in replica.bags["public.pgbench_history"].items()
    )
    assert set(sums.values()) == {history}, (sums, history)
