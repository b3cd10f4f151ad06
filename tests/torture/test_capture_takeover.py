"""Another process takes over from a dead capturing process within ten seconds, and long chaos changes
nothing in the stream.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headrace import store
from tests.support import captures
from tests.torture.capture_judge import Replica, check_places, taken
from tests.torture.capture_process import Capturer, capturer

pytestmark = [pytest.mark.asyncio, pytest.mark.torture]

WITHIN = 10.0
CUT = """select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
         and application_name like 'headrace%' order by random() limit 1"""


async def test_a_killed_process_is_succeeded_within_ten_seconds(database: store.Database, tmp_path: Path) -> None:
    connection = await asyncpg.connect(database.dsn)
    await connection.execute("create table t (id int primary key)")
    await captures.make(database, stream="log", tables=("public.t",), backfill=False)
    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(captures.slots_dropped(database.dsn))
            first = await stack.enter_async_context(capturer(database.dsn, tmp_path / "first"))
            await captures.until_tracked(database, "log")
            await stack.enter_async_context(capturer(database.dsn, tmp_path / "second"))
            await first.kill()
            began = time.monotonic()
            await connection.execute("insert into t values (1)")
            await captures.until_message(database, "log", "insert")
            took = time.monotonic() - began
            print(f"taken over after {took:.1f} s")
            assert took < WITHIN
    finally:
        await connection.close()


async def test_a_minute_of_chaos(database: store.Database, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    connection = await asyncpg.connect(database.dsn)
    await connection.execute("create table t (id int primary key, v int)")
    await captures.make(database, stream="log", tables=("public.t",), backfill=False)
    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(captures.slots_dropped(database.dsn))
            crew = [await stack.enter_async_context(capturer(database.dsn, tmp_path / str(n))) for n in range(3)]
            await captures.until_tracked(database, "log")
            load = asyncio.create_task(write(database.dsn, chance.randrange(2**32), seconds=60))
            blows = await torment(crew, connection, chance, load)
            for process in crew:
                process.thaw()
            print(f"{await load} transactions, {blows}")
            await captures.until_all_is_captured(database, "log", "insert into t values (-1)")
        messages = await taken(connection, "log")
        check_places(messages, whole=True)
        replica = Replica({"public.t": ["id"]}).all(messages)
        replica.compare("public.t", [dict(row) for row in await connection.fetch("select * from t")])
        assert min(blows.values()) > 0
    finally:
        await connection.close()


async def write(dsn: str, seed: int, *, seconds: float) -> int:
    """Commit transactions of one or many rows. Returns how many."""
    chance, count, end = random.Random(seed), 0, time.monotonic() + seconds
    connection = await asyncpg.connect(dsn)
    try:
        while time.monotonic() < end:
            count += 1
            many = 20_000 if chance.random() < 0.02 else chance.randint(1, 5)
            await connection.execute(
                "insert into t select distinct (random() * 100000)::int, 0 from generate_series(1, $1) on conflict (id) do update set v = t.v + 1"
                if many < 10 else "insert into t select g, 0 from generate_series(1, $1) as g on conflict (id) do update set v = t.v + 1",
                many,
            )  # fmt: skip
            await connection.execute("delete from t where id between $1 and $1 + 50", chance.randrange(100_000))
            await asyncio.sleep(chance.uniform(0, 0.02))
    finally:
        await connection.close()
    return count


async def torment(
    crew: list[Capturer], connection: Any, chance: random.Random, load: asyncio.Task[int]
) -> dict[str, int]:
    """Kill and freeze processes and cut connections until the writes end. Returns how often."""
    blows = {"kill": 0, "freeze": 0, "cut": 0}
    while not load.done():
        await asyncio.sleep(chance.uniform(0.2, 3))
        victim, blow = chance.choice(crew), chance.choice(sorted(blows))
        blows[blow] += 1
        if blow == "cut":
            await connection.fetch(CUT)
        elif blow == "kill":
            victim.thaw()
            await victim.kill()
            await victim.start()
        else:
            victim.freeze()
            await asyncio.sleep(chance.uniform(5, 10))
            victim.thaw()
    return blows
