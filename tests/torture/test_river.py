"""The git history of a repository, handled by workers that fail, are killed, and are frozen until their
leases have expired.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headrace import store
from headrace.model.specs import ConsumerSpec
from tests.support.readers import Clock, Reader
from tests.torture.fleet import Fleet
from tests.torture.ledger import check_settles, counts, nothing_is_left, open_ledger

HISTORY = Path(__file__).parents[1] / "data" / "git-history"
ACK_WAIT = 1.0


def changes() -> list[dict[str, Any]]:
    with gzip.open(HISTORY / "river.ndjson.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def tree_after(events: list[dict[str, Any]]) -> dict[str, str]:
    tree = {event["data"]["path"]: event["data"]["new"] for event in events}
    return {path: blob for path, blob in tree.items() if blob is not None}


def test_the_history_determines_the_tree() -> None:
    assert tree_after(changes()) == json.loads(gzip.decompress((HISTORY / "river-tree.json.gz").read_bytes()))


@pytest.mark.long
@pytest.mark.asyncio
async def test_the_tree_is_exact_through_kills_and_pauses(database: store.Database, tmp_path: Path) -> None:
    await run_history(database, tmp_path, changes()[:800], workers=3, seconds=3)


@pytest.mark.torture
@pytest.mark.asyncio
@pytest.mark.parametrize("attempt", range(3))
async def test_the_whole_tree_is_exact_through_kills_and_pauses(
    database: store.Database, tmp_path: Path, attempt: int
) -> None:
    await run_history(database, tmp_path, changes(), workers=4, seconds=60)


async def run_history(
    database: store.Database, logs: Path, events: list[dict[str, Any]], *, workers: int, seconds: float
) -> None:
    """Publish the history over so many seconds with constant chaos, let the workers finish, and check everything."""
    seed = random.randrange(2**32)
    print(f"seed {seed}, workers' logs in {logs}")
    chance = random.Random(seed)
    await store.create_stream(database, "river")
    connection = await asyncpg.connect(database.dsn)
    try:
        await open_ledger(connection)
        async with Fleet(
            "river", workers, logs, seed, dsn=database.dsn, stream="river", ack_wait=ACK_WAIT, failures=0.1, pace=0.03
        ) as fleet:
            await fleet.ready()
            chaos = asyncio.create_task(torment(fleet, chance))
            await publish(database, events, seconds, chance)
            await stale_acks_change_nothing(database)
            chaos.cancel()
            await fleet.finish()
            found = await counts(connection)
            accepted, refused = await check_settles(connection, fleet.lines())
            print(f"{fleet.kills} kills, {fleet.stops} stops, {found}, outcomes accepted {accepted}, refused {refused}")
        assert [dict(row) for row in await connection.fetch("select * from violations")] == []
        assert found["applied"] == len(events)
        assert fleet.kills
        assert fleet.stops
        assert found["expired"] > 1, "but for the one of the fence no lease has expired: that was no torture"
        rows = await connection.fetch("select name, blob from lanes where blob is not null")
        assert {row["name"]: row["blob"] for row in rows} == tree_after(events)
        await nothing_is_left(database, "river")
    finally:
        await connection.close()


async def publish(
    database: store.Database, events: list[dict[str, Any]], seconds: float, chance: random.Random
) -> None:
    done = 0
    pause = seconds / len(events)
    while done < len(events):
        size = chance.randint(1, 40)
        some = events[done : done + size]
        await store.publish_many(
            database, "river", [event["key"] for event in some], [json.dumps(event["data"]) for event in some]
        )
        done += len(some)
        await asyncio.sleep(pause * len(some) * chance.uniform(0.5, 1.5))


async def torment(fleet: Fleet, chance: random.Random) -> None:
    """Kill and freeze random workers at random times, forever. A freeze is longer than the visibility timeout."""
    for turn in itertools.count(chance.randrange(2)):
        await asyncio.sleep(chance.uniform(0.2, 1.0))
        if turn % 2:
            fleet.kill(chance)
        else:
            fleet.freeze(chance, ACK_WAIT * chance.uniform(1.5, 2.0))


async def stale_acks_change_nothing(database: store.Database) -> None:
    """While the workers work on the same stream, check that an expired lease settles nothing."""
    spec = ConsumerSpec(stream="river", name="fence", ack_wait=ACK_WAIT)
    declared = await store.declare_consumer(database, spec)
    clock = Clock()
    clock.now = datetime.now(UTC)
    reader = Reader(database, spec, declared.id, clock)
    stale = await reader.lease("zombie", 50)
    clock.now += timedelta(seconds=ACK_WAIT * 1.5)
    fresh = await reader.lease("heir", 50)
    assert fresh.seqs == stale.seqs
    before = await reader.info()
    assert [lost.lease_id for lost in await reader.ack_all(stale)] == [stale.lease_id]
    assert sorted(lost.seq for lost in await reader.ack(stale)) == stale.seqs
    assert sorted(lost.seq for lost in await reader.nack(stale)) == stale.seqs
    assert await reader.info() == before
    assert await reader.ack_all(fresh) == []
