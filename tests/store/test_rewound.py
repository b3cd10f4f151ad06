"""The history id of a database: it stays the same while no committed transaction can have been
undone, and changes after that."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import anyio
import asyncpg
import pytest

from headrace import store
from headrace.model.errors import StoreUnavailable
from headrace.model.specs import ConsumerSpec
from headrace.testing.databases import on_server
from tests.conftest import Connect, Declare
from tests.runtime.running import eventually
from tests.support.clusters import cluster, standby
from tests.support.readers import Clock, Reader, publish

pytestmark = pytest.mark.asyncio


async def identity(reader: Reader) -> UUID:
    """The history id that a lease call returns, once the server answers again."""
    found: list[UUID] = []

    async def answered() -> bool:
        with suppress(StoreUnavailable):
            batch = await reader.lease()
            assert batch.history is not None
            found.append(batch.history)
        return bool(found)

    await eventually(answered)
    return found[0]


async def a_reader(database: store.Database) -> Reader:
    await store.create_stream(database, "orders")
    spec = ConsumerSpec(stream="orders", name="ship")
    return Reader(database, spec, (await store.declare_consumer(database, spec)).id, Clock())


@pytest.mark.process
async def test_the_history_id_changes_after_a_crash_a_restart_and_a_failover_only(tmp_path: Path) -> None:
    with cluster(tmp_path / "postgres", wal_level="replica") as server, standby(server) as other:
        database, promoted = store.Database(server.url()), store.Database(other.url)
        await database.open()
        await promoted.open()
        try:
            await store.migrate(database)
            reader = await a_reader(database)
            first = await identity(reader)
            await publish(database, "a")
            assert await identity(reader) == first
            started = await database.fetchval("select pg_postmaster_start_time()")

            victim, bystander = await asyncpg.connect(server.url()), await asyncpg.connect(server.url())
            os.kill(victim.get_server_pid(), signal.SIGKILL)

            async def crashed_in_place() -> bool:
                return bystander.is_closed()

            await eventually(crashed_in_place)
            victim.terminate()
            crashed = await identity(reader)
            assert crashed != first
            assert await database.fetchval("select pg_postmaster_start_time()") == started, "it crashed in place"

            await anyio.to_thread.run_sync(server.restart)
            restarted = await identity(reader)
            assert restarted not in (first, crashed)

            copy = Reader(promoted, reader.spec, reader.id, reader.clock)
            with pytest.raises(StoreUnavailable, match="standby"):
                await copy.lease()
            with pytest.raises(StoreUnavailable, match="standby"):  # it would report an unknown transaction as aborted
                await store.transaction_status(promoted, 10**9)
            await anyio.to_thread.run_sync(other.promote)
            assert await identity(copy) not in (first, crashed, restarted)
        finally:
            await database.close()
            await promoted.close()


async def test_a_copy_of_a_database_that_takes_its_place_has_a_history_of_its_own(
    database: store.Database, declare: Declare, server_dsn: str, dsn: str
) -> None:
    reader = await declare()
    first = await identity(reader)
    name = urlsplit(dsn).path[1:]
    await database.drain()
    server = await asyncpg.connect(server_dsn)
    await server.execute(f"create database {name}_copy template {name}")
    copy = store.Database(on_server(server_dsn, f"{name}_copy"))
    try:
        await copy.open()
        assert await identity(Reader(copy, reader.spec, reader.id, reader.clock)) != first
    finally:
        await copy.close()
        await server.execute(f"drop database {name}_copy with (force)")
        await server.close()


async def test_consumers_that_begin_the_history_at_once_get_the_same_id(
    database: store.Database, declare: Declare
) -> None:
    """Otherwise the next call of one of them would treat the leases that it has just received as void."""
    readers = [await declare(name) for name in ("ship", "bill", "mail")]
    await database.fetch("delete from headrace_internal.history")
    first = await asyncio.gather(*(identity(reader) for reader in readers))
    again = [await identity(reader) for reader in readers]
    assert len({*first, *again}) == 1


async def test_a_lease_call_that_is_frozen_holds_up_no_other(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """As with a client behind a pooler that freezes just after the history began."""
    ship, bill = await declare("ship"), await declare("bill")
    await database.fetch("delete from headrace_internal.history")
    await database.fetchval("select headrace_internal.begin_timeline()")
    frozen = await connect()
    transaction = frozen.transaction()
    await transaction.start()
    first = await identity(Reader(frozen, ship.spec, ship.id, ship.clock))
    assert await identity(bill) == first
    await transaction.commit()


async def test_contents_that_the_caller_knows_from_another_history_are_returned_again(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, "a", "b")
    batch = await reader.lease(known=[(1, 1)], history=UUID(int=1))
    assert batch.keys == ["a", "b"]
    await reader.release(batch)
    assert (await reader.lease(known=[(1, 1)], history=batch.history)).keys == [None, "b"]
