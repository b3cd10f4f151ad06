"""Functions that are replaced and segments that are dropped during a call do not end a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace import App, Message, StoreUnavailable, Transaction, store
from headrace.model import conditions
from headrace.model.errors import SchemaError
from headrace.store.database import revisions
from headrace.store.messages.publish import CHUNK_MESSAGES
from tests.conftest import Connect, Declare
from tests.runtime.running import Seen, running
from tests.support.readers import begun, publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio

MINE = conditions.parse("data.mine = true")


async def replace_functions(connection: Any) -> None:
    """Replace the functions as an upgrade does."""
    async with connection.transaction():
        await connection.execute(revisions.functions())


@asynccontextmanager
async def held(connect: Connect, consumer: int) -> AsyncIterator[Any]:
    """Hold the lock that lease calls of this consumer take first."""
    async with begun(connect) as (connection, transaction):
        await connection.fetch("select pg_advisory_xact_lock(1212498508, $1)", consumer)
        yield connection
        await transaction.rollback()


async def test_a_lease_by_condition_survives_functions_that_are_replaced_under_it(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(where=MINE)
    await publish(database, "a", mine=True)
    await reader.lease(judging=60.0, limit=1)
    await publish(database, "b", mine=True)
    async with held(connect, reader.id) as holder:
        lease = await start(reader.lease(judging=60.0))
        await until_blocked(database, holder)
        await replace_functions(await connect())
    assert (await lease).seqs == [2]


async def test_a_lease_by_condition_survives_a_segment_that_is_dropped_under_it(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(where=MINE)
    await publish(database, "a", mine=True)
    async with begun(connect) as (janitor, transaction):
        await janitor.fetch("lock table only headrace_streams.orders in access exclusive mode")
        await janitor.fetch('drop table headrace_streams."orders.1"')
        await janitor.fetch("delete from headrace_internal.segments where lower = 1")
        lease = await start(reader.lease(judging=60.0))
        await until_blocked(database, janitor)
        await janitor.fetch("select setval('headrace_streams.\"orders.seq\"', 100000)")
        await publish(janitor, "b", mine=True)
        await transaction.commit()
    assert (await lease).seqs + (await reader.lease(judging=60.0)).seqs == [100001]


async def test_a_worker_with_a_condition_survives_functions_that_are_replaced_under_it(
    dsn: str, database: store.Database, connect: Connect
) -> None:
    app, seen = App(dsn), Seen()

    @app.consumer("orders", where="data.mine = true")
    async def ship(message: Message) -> None:
        seen.note(message.seq)

    async with running(app):
        await app.publish("orders", "a", {"mine": True})
        await seen.until(1)
        consumer = await store.consumer_id(app.database, "orders", "ship")
        for number in range(2, 5):
            async with held(connect, consumer) as holder:
                await app.publish("orders", "a", {"mine": True})
                await until_blocked(database, holder)
                await replace_functions(await connect())
            assert await seen.until(number) == list(range(1, number + 1))


async def test_an_ack_in_a_transaction_that_hits_replaced_functions_costs_no_attempt(
    dsn: str, database: store.Database, connect: Connect
) -> None:
    app, attempts = App(dsn), Seen()

    @app.consumer("orders", transactional=True, max_deliver=1)
    async def ship(message: Message, tx: Transaction) -> None:
        attempts.note(message.attempt)
        if len(attempts.notes) == 1:
            await database.fetch(
                "alter function headrace.ack(int, bigint[], bigint[], timestamptz, uuid, text, real) rename to gone"
            )

    async with running(app):
        await app.publish("orders", "a", 1)
        await attempts.until(2)
        await database.fetch(
            "alter function headrace.gone(int, bigint[], bigint[], timestamptz, uuid, text, real) rename to ack"
        )
        await app.idle()
        info = await store.consumer(app.database, "orders", "ship")
    assert (info.dead_letters, info.lag) == (0, 0)
    assert set(attempts.notes) == {1}


async def test_a_large_publish_survives_functions_that_are_replaced_under_it(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    await declare()
    keys = ["a"] * (CHUNK_MESSAGES + 1)  # two statements
    async with begun(connect) as (holder, transaction):
        await holder.fetch("lock table headrace_internal.streams in access exclusive mode")
        published = await start(store.publish_all(database, "orders", keys, ["1"] * len(keys)))
        await until_blocked(database, holder)
        await holder.execute(revisions.functions())
        await transaction.commit()
    assert await published == len(keys)


async def test_only_a_missing_schema_is_reported_as_missing(database: store.Database) -> None:
    """The call is part of a transaction, so it can't be retried automatically."""
    with pytest.raises(StoreUnavailable, match="replaced meanwhile"):
        async with database.transaction() as connection:
            await connection.fetch("select headrace.not_there()")
    await database.fetch("drop schema headrace, headrace_internal cascade")
    with pytest.raises(SchemaError, match="Run `headrace migrate`"):
        async with database.transaction() as connection:
            await connection.fetch("select headrace.not_there()")
