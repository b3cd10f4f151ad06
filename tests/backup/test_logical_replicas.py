"""A logical replica that takes the place of the original, as in a blue/green deployment."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from headrace import store, sweep
from headrace.model.errors import SequenceBehind
from headrace.testing.databases import on_server
from tests.backup.scene import Scene
from tests.runtime.running import eventually
from tests.store.test_dump_and_restore import call, programs_for
from tests.support.clusters import cluster
from tests.support.readers import publish
from tests.support.servers import opened

pytestmark = [pytest.mark.asyncio, pytest.mark.process]


async def replicate(database: store.Database, replica: str, directory: Path) -> None:
    """Copy the schema, and begin to replicate all data."""
    programs, dump = await programs_for(database), directory / "schema.sql"
    await call(programs.program("pg_dump"), "--schema-only", "--file", dump, "--dbname", database.dsn)
    await call(programs.program("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", dump, "-d", replica)
    await database.fetch("create publication everything for all tables with (publish_via_partition_root = true)")
    await database.fetch("select pg_create_logical_replication_slot('moving', 'pgoutput')")  # in the same cluster
    place = await database.fetchrow("select current_setting('unix_socket_directories'), current_setting('port')")
    connection = await asyncpg.connect(replica)
    await connection.execute(
        f"""create subscription moving connection 'host={place[0]} port={place[1]} user=headrace dbname=headrace'
            publication everything with (create_slot = false, slot_name = 'moving')"""
    )
    await connection.close()


async def caught_up(database: store.Database, replica: store.Database) -> None:
    """Wait until the replica has all that the original has."""

    async def synchronized() -> bool:
        states = await replica.fetch("select distinct srsubstate from pg_subscription_rel")
        return [row[0] for row in states] == [b"r"]

    await eventually(synchronized)
    end = await database.fetchval("select pg_current_wal_insert_lsn()::text")

    async def confirmed() -> bool:
        return bool(
            await database.fetchval(
                "select confirmed_flush_lsn >= $1::text::pg_lsn from pg_replication_slots where slot_name = 'moving'",
                end,
            )
        )

    await eventually(confirmed)


async def test_a_logical_replica_goes_on_once_its_sequences_are_mended(tmp_path: Path) -> None:
    """Sequences are not replicated. Nothing is published or leased before they are corrected."""
    with cluster(tmp_path / "postgres", wal_level="logical", wal_receiver_status_interval="1s") as server:
        boss = await asyncpg.connect(server.url())
        await boss.execute("create database second")
        await boss.close()
        replica = on_server(server.url(), "second")
        async with opened(server.url()) as database, opened(replica) as second:
            await store.migrate(database)
            scene = Scene(server.url())
            await scene.set(database)
            await sweep(database)
            await scene.end()  # a slot begins once all transactions have ended. No lease call has found their messages
            await replicate(database, replica, tmp_path)
            late = await asyncpg.connect(server.url())
            await late.execute("begin; select headrace.publish('orders', 'late', '{}')")
            await publish(database, "while", "replicating")
            await scene.reader(database, "ship").lease("dora", limit=1)
            await late.execute("commit")
            await late.close()
            await database.fetch("""select setval('headrace_streams."orders.seq"', 1650000)""")
            assert (await sweep(database)).segments_made > 0
            await publish(database, "in", "other", "segments")
            await caught_up(database, second)
            await second.fetch("alter subscription moving disable")
            await second.fetch("alter subscription moving set (slot_name = none)")
            await second.fetch("drop subscription moving")

            assert await store.migrate(second) == []
            with pytest.raises(SequenceBehind, match="mend_sequences"):
                await scene.reader(second, "ship").lease()
            for stream in ("orders", "prices"):
                with pytest.raises(SequenceBehind, match="mend_sequences"):
                    await publish(second, "new", stream=stream)
            assert await missing_segments(second), "the replica has all tables, so part of the test has no point"
            await second.fetch("select * from headrace.mend_sequences()")
            assert await missing_segments(second) == []
            await sweep(second)
            await scene.goes_on(second)


async def missing_segments(database: store.Database) -> list[str]:
    """Segments of the original whose tables the replica does not have."""
    rows = await database.fetch("select relation from headrace_internal.segments where to_regclass(relation) is null")
    return [row["relation"] for row in rows]
