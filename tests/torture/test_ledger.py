"""A ledger of transfers, made by workers that are killed, frozen past their leases, and cut off from the database.

With `transactional` the final balances equal those of the log applied once. Without it they must
differ, or this test would prove nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headrace import store
from tests.torture.fleet import Fleet
from tests.torture.ledger import nothing_is_left
from tests.torture.transfers import ACCOUNTS, OPENING, TABLES

ACK_WAIT = 1.0

# A connection that works for a handler, not one of the test's.
_TERMINATE = """
select count(pg_terminate_backend(pid)) from (
    select pid from pg_stat_activity
    where datname = current_database() and application_name = 'headrace' and pid <> pg_backend_pid()
    order by (state = 'active' or state like 'idle in%') desc, random() limit 1) as victims
"""


@pytest.mark.long
@pytest.mark.asyncio
async def test_transactional_transfers_are_made_once_each(database: store.Database, tmp_path: Path) -> None:
    journal, seen = await run(database, tmp_path, "batch", count=2_000, workers=3, seconds=4)
    assert set(journal.values()) == {1}, seen


@pytest.mark.torture
@pytest.mark.asyncio
async def test_other_transfers_are_made_twice_now_and_then(database: store.Database, tmp_path: Path) -> None:
    journal, seen = await run(database, tmp_path, "beside", count=3_000, workers=3, seconds=6)
    assert max(journal.values()) > 1, seen


@pytest.mark.torture
@pytest.mark.asyncio
@pytest.mark.parametrize("work", ["single", "batch"])
async def test_a_hundred_thousand_transactional_transfers_are_made_once_each(
    database: store.Database, tmp_path: Path, work: str
) -> None:
    journal, seen = await run(database, tmp_path, work, count=100_000, workers=4, seconds=60)
    assert set(journal.values()) == {1}, seen


async def run(
    database: store.Database, logs: Path, work: str, *, count: int, workers: int, seconds: float
) -> tuple[Counter[int], str]:
    """Publish so many transfers over so many seconds, with chaos until all are made, and compare the balances.

    Returns how often each transfer was made, and how many faults of each kind there were.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}, workers' logs in {logs}")
    chance = random.Random(seed)
    for stream in ("transfers", "receipts"):
        await store.create_stream(database, stream)
    connection = await asyncpg.connect(database.dsn)
    try:
        await connection.execute(TABLES)
        transfers = [transfer(chance) for _ in range(count)]
        chaos = Chaos(connection, chance)
        async with Fleet(
            work, workers, logs, seed, module="tests.torture.transfers",
            dsn=database.dsn, ack_wait=ACK_WAIT, failures=0.05, pace=0.005,
        ) as fleet:  # fmt: skip
            await fleet.ready()
            tormenting = asyncio.create_task(chaos.torment(fleet))
            try:
                await publish(database.dsn, transfers, seconds)
            finally:
                tormenting.cancel()
            await fleet.finish()
        journal = Counter(
            {row[0]: row[1] for row in await connection.fetch("select seq, count(*) from journal group by 1")}
        )
        receipts = Counter(
            row[0] for row in await connection.fetch("select data::text::bigint from headrace_streams.receipts")
        )
        balances = dict(await connection.fetch("select id, balance from accounts"))
        seen = f"{work}: {fleet.kills} killed, {fleet.stops} frozen, {chaos.terminated} backends terminated, {count} transfers"
        print(f"{seen}, {sum(journal.values()) - count} more than there were")
        assert set(journal) == set(range(1, count + 1))
        assert receipts == journal
        assert balances == applied(transfers, journal)
        assert fleet.kills > 0
        assert fleet.stops > 0
        assert chaos.terminated > 0
        await nothing_is_left(database, "transfers")
        assert await connection.fetchval("select count(*) from headrace_internal.acks") == 0
        return journal, seen
    finally:
        await connection.close()


def transfer(chance: random.Random) -> dict[str, int]:
    sender, receiver = chance.sample(range(1, ACCOUNTS + 1), 2)
    return {"sender": sender, "receiver": receiver, "amount": chance.randint(1, 1000)}


def applied(transfers: list[dict[str, int]], times: Counter[int]) -> dict[int, int]:
    """Return the balances of the log, with each transfer applied so many times."""
    balances = dict.fromkeys(range(1, ACCOUNTS + 1), OPENING)
    for seq, made in enumerate(transfers, 1):
        balances[made["sender"]] -= made["amount"] * times[seq]
        balances[made["receiver"]] += made["amount"] * times[seq]
    return balances


async def publish(dsn: str, transfers: list[dict[str, Any]], seconds: float) -> None:
    database = store.Database(dsn, application_name="publisher")  # which is left alone
    await database.open()
    size = max(1, len(transfers) // int(seconds * 20))
    for start in range(0, len(transfers), size):
        some = transfers[start : start + size]
        await store.publish_many(
            database, "transfers", [f"account.{t['sender']}" for t in some], [json_of(t) for t in some]
        )
        await asyncio.sleep(0.05)
    await database.close()


def json_of(transfer: dict[str, int]) -> str:
    return '{{"sender": {sender}, "receiver": {receiver}, "amount": {amount}}}'.format(**transfer)


class Chaos:
    """Kills workers, freezes them past their leases, and terminates backends, in turn, at random times, forever."""

    def __init__(self, connection: Any, chance: random.Random) -> None:
        self._connection = connection
        self._chance = chance
        self.terminated = 0

    async def torment(self, fleet: Fleet) -> None:
        chance = self._chance
        while True:
            for blow in chance.sample(["kill", "freeze", "terminate", "terminate"], 4):
                await asyncio.sleep(chance.uniform(0.1, 0.6))
                match blow:
                    case "kill":
                        fleet.kill(chance)
                    case "freeze":
                        fleet.freeze(chance, ACK_WAIT * chance.uniform(1.5, 2.0))
                    case "terminate":
                        self.terminated += await self._connection.fetchval(_TERMINATE)
