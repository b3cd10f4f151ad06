"""The memory of a capturing process does not grow with the size of a transaction."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from headrace import store
from tests.support import captures
from tests.torture.capture_process import capturer

pytestmark = pytest.mark.asyncio

MORE = 50_000_000
"""Maximum growth of the process in bytes at any time. The rows together take far more."""

# With little memory the server streams the transaction while it runs. With much memory it sends the
# transaction at the commit.
STREAMED, AT_ITS_END = "1MB", "2GB"


@pytest.mark.long
async def test_a_large_transaction_is_captured_in_level_memory(database: store.Database, tmp_path: Path) -> None:
    await run(database, tmp_path, STREAMED, rows=100_000, width=1_100)


@pytest.mark.torture
@pytest.mark.parametrize("memory", [STREAMED, AT_ITS_END], ids=["streamed", "at_its_end"])
async def test_a_transaction_of_a_million_rows_is_captured_in_level_memory(
    database: store.Database, tmp_path: Path, memory: str
) -> None:
    await run(database, tmp_path, memory, rows=1_000_000, width=500)


async def run(database: store.Database, logs: Path, memory: str, *, rows: int, width: int) -> None:
    assert rows * width > 2 * MORE, "it could hold them all"
    connection = await asyncpg.connect(database.dsn)
    try:
        await captures.set_in_database(connection, "logical_decoding_work_mem", memory)
        await connection.execute("create table t (id int primary key, v text)")
        await captures.make(database, stream="log", tables=("public.t",), backfill=False)
        async with captures.slots_dropped(database.dsn), capturer(database.dsn, logs / "capturer") as process:
            await captures.until_tracked(database, "log")
            await connection.execute(
                "insert into t select g, repeat('x', $1) from generate_series(-5000, -1) as g", width
            )
            await captures.until(database, "select count(*) = 5000 from headrace_streams.log")
            before = process.memory()
            process.forget_peak()
            await connection.execute(
                "insert into t select g, repeat('x', $1) from generate_series(1, $2) as g", width, rows, timeout=600
            )
            await captures.until(database, "select count(*) > 5000 from headrace_streams.log", within=900)
            more = process.peak() - before
            print(f"{before / 1e6:.0f} MB before, at most {more / 1e6:.0f} MB more, for {rows * width / 1e6:.0f} MB")
            count, distinct = await connection.fetchrow(
                "select count(*), count(distinct (data -> 'metadata' ->> 'commit_idx')::int) from headrace_streams.log"
                " where (data -> 'record' ->> 'id')::int > 0"
            )
            assert (count, distinct) == (rows, rows)
            assert more < MORE, f"{more:,} bytes"
            pieces = await connection.fetchval(
                "select sum(stream_count) from pg_stat_replication_slots as s join pg_replication_slots using (slot_name)"
                " where database = current_database()"
            )
            assert (pieces > 0) == (memory == STREAMED), f"{pieces} pieces"
    finally:
        await connection.close()
