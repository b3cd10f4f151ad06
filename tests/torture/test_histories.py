"""Workers and publishers are killed and frozen, their connections cut, and their database restarted and crashed. Each keeps a
history, and a checker that knows nothing of Headrace reads them all.

`HEADRACE_TEST_MESSAGES=50000 HEADRACE_TEST_FAULTS=20 make torture ARGS=tests/torture/test_histories.py` sets how many messages and
faults there are, and `HEADRACE_TEST_RATE=3000` how many messages a second are published.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headrace import store
from headrace.embedded import EmbeddedPostgres
from tests.histories.__main__ import report
from tests.histories.reading import History, write
from tests.support import clusters
from tests.torture.fleet import Fleet
from tests.torture.history_process import RECEIPTS, STREAM, TABLES

ACK_WAIT = 2.0

FAULTS = ("kill", "freeze", "terminate", "kill a publisher", "crash", "freeze", "kill", "terminate", "restart")

# A connection of a worker or a publisher, not one of the test's.
_TERMINATE = """
    select count(pg_terminate_backend(pid)) from (
        select pid from pg_stat_activity
        where datname = current_database() and application_name = 'headrace' and pid <> pg_backend_pid()
        order by (state = 'active' or state like 'idle in%') desc, random() limit 3) as victims"""


@pytest.mark.asyncio
async def test_histories_of_four_thousand_messages_and_five_faults_break_no_promise(tmp_path: Path) -> None:
    await run(tmp_path, messages=4000, faults=5, rate=800)


@pytest.mark.asyncio
@pytest.mark.torture
async def test_histories_of_twenty_thousand_messages_and_five_faults_break_no_promise(tmp_path: Path) -> None:
    await run(tmp_path, messages=20_000, faults=5, rate=3000)


@pytest.mark.asyncio
@pytest.mark.torture
async def test_histories_of_a_million_messages_and_two_hundred_faults_break_no_promise(tmp_path: Path) -> None:
    settings = {"messages": 1_000_000, "faults": 200, "rate": 1500}
    await run(
        tmp_path,
        **{name: int(os.environ.get(f"HEADRACE_TEST_{name.upper()}", value)) for name, value in settings.items()},
    )


async def run(directory: Path, *, messages: int, faults: int, rate: int) -> None:
    """Publish so many messages while so many faults happen, handle them all, and check the histories."""
    seed = random.randrange(2**32)
    print(f"seed {seed}, histories in {directory}")
    chance, history = random.Random(seed), directory / "history"
    with clusters.cluster(directory / "postgres", max_connections="100") as server:
        database = store.Database(server.url(), application_name="observer")
        await database.open()
        await store.migrate(database)
        for stream in (STREAM, RECEIPTS):
            await store.create_stream(database, stream)
        await database.fetch(TABLES)
        options: dict[str, Any] = {"module": "tests.torture.history_process", "dsn": server.url(), "history": history}
        async with (
            Fleet("handlers", 3, directory, seed, ack_wait=ACK_WAIT, **options) as workers,
            Fleet("publishers", 2, directory, seed + 1000, rate=rate / 2, **options) as publishers,
        ):
            await workers.ready()
            await publishers.ready()
            pause = messages / rate / faults
            for number in range(faults):
                await asyncio.sleep(pause * chance.uniform(0.5, 1.0))
                await torment(FAULTS[number % len(FAULTS)], server, database, workers, publishers, chance)
            while await published(database) < messages:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            await publishers.finish()
            await workers.finish()
        await add_what_the_database_has(server.url(), history)
        await database.close()
    size = sum(file.stat().st_size for file in history.iterdir())
    found = report(history, durable=True)
    print(f"{faults} faults: {workers.kills} workers and {publishers.kills} publishers killed, {workers.stops} frozen, {size / 1e6:.0f} MB\n{found.text}")  # fmt: skip
    assert not found.violations, found.text


async def torment(
    fault: str,
    server: EmbeddedPostgres,
    database: store.Database,
    workers: Fleet,
    publishers: Fleet,
    chance: random.Random,
) -> None:
    match fault:
        case "kill":
            workers.kill(chance)
        case "kill a publisher":
            publishers.kill(chance)
        case "freeze":
            workers.freeze(chance, ACK_WAIT * chance.uniform(1.2, 2.0))
        case "terminate":
            await database.fetch(_TERMINATE)
        case "crash" | "restart":
            await asyncio.to_thread(server.restart, "immediate" if fault == "crash" else "fast")
            await database.close()
            await database.open()


async def published(database: store.Database) -> int:
    found: int = await database.fetchval(f"select coalesce(max(seq), 0) from headrace_streams.{STREAM}")
    return found


async def add_what_the_database_has(dsn: str, history: Path) -> None:
    """Write the messages of the stream, and the effects of transactional handlers, as a history of its own."""
    header = next(History(history).lines()).fields
    lines = [header]
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        cursor = await connection.cursor(f"select seq, key from headrace_streams.{STREAM} order by seq")
        while rows := await cursor.fetch(5000):
            seqs, keys = zip(*rows, strict=True)
            lines.append({"t": header["t"], "event": "stored", "stream": STREAM, "seqs": seqs, "keys": keys})
    for kind in ("tx", "txbatch"):
        number = await connection.fetchval("select id from headrace_internal.consumers where name = $1", kind)
        effects = [row[0] for row in await connection.fetch("select seq from effects where consumer = $1", kind)]
        assert effects, "no transactional handler has worked"
        lines.append({"t": header["t"], "event": "effect", "consumer": number, "seqs": effects})
    await connection.close()
    write(history / "database.ndjson", lines)
