"""Processes that capture the sources of a shared slot are killed and frozen. The sources move together, and the copies
that are made of their streams are equal to the tables.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import asyncpg
import pytest

from headrace import store
from tests.support import captures
from tests.torture.capture_judge import Replica, check_places, taken
from tests.torture.capture_process import capturer

pytestmark = [pytest.mark.asyncio, pytest.mark.torture]

SOURCES = range(3)
MOVED = """select count(*) = $2 and bool_and(holder <> $1) and count(distinct holder) = 1
             from headrace_internal.captures where held_until > clock_timestamp()"""


async def test_sources_of_a_shared_slot_move_together_when_their_process_is_killed_and_nothing_is_lost_or_doubled(
    database: store.Database, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    connection = await asyncpg.connect(database.dsn)
    for n in SOURCES:
        await connection.execute(f"create table t{n} (id int primary key, v int)")
        await connection.execute(f"insert into t{n} select g, 0 from generate_series(1, 500) as g")
        await captures.make(database, stream=f"s{n}", tables=(f"public.t{n}",), backfill=True, shared_slot="shop")
    writing = True

    async def write() -> int:
        count, sql = 0, await asyncpg.connect(database.dsn)
        while writing:
            async with sql.transaction():
                for n in chance.sample(SOURCES, chance.randint(1, 3)):
                    await sql.execute(
                        f"insert into t{n} values ($1, 0) on conflict (id) do update set v = t{n}.v + 1",
                        chance.randrange(1000),
                    )
                    await sql.execute(f"delete from t{n} where id = $1", chance.randrange(1000))
            count += 1
            await asyncio.sleep(chance.uniform(0, 0.02))
        await sql.close()
        return count

    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(captures.slots_dropped(database.dsn))
            capturing = await stack.enter_async_context(capturer(database.dsn, tmp_path / "first"))
            for n in SOURCES:
                await captures.until_tracked(database, f"s{n}")
            other = await stack.enter_async_context(capturer(database.dsn, tmp_path / "second"))
            load = asyncio.create_task(write())
            for blow in ("kill", "freeze", "kill"):
                await anyio.sleep(chance.uniform(0.5, 2))
                holder, began = await captures.holder(database, "s0"), time.monotonic()
                if blow == "kill":
                    await capturing.kill()
                else:
                    capturing.freeze()
                await captures.until(connection, MOVED, holder, len(SOURCES))
                print(f"{blow}: taken over after {time.monotonic() - began:.1f} s")
                if blow == "kill":
                    await capturing.start()
                else:
                    capturing.thaw()
                capturing, other = other, capturing
            writing = False
            print(f"{await load} transactions")
            for n in SOURCES:
                await captures.until_all_is_captured(database, f"s{n}", f"insert into t{n} values (-1, 0)")
        for n in SOURCES:
            messages = await taken(connection, f"s{n}")
            check_places(messages, whole=False)
            replica = Replica({f"public.t{n}": ["id"]}).all(messages)
            replica.compare(f"public.t{n}", [dict(row) for row in await connection.fetch(f"select * from t{n}")])
    finally:
        writing = False
        await connection.close()
