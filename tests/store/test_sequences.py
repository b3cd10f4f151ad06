"""Sequences: each transaction draws its seqs one by one. Anything that would break that is refused,
or survived and repaired."""

from __future__ import annotations

import logging

import asyncpg
import pytest

from headrace import App, store, sweep
from headrace.model.errors import ConfigurationError
from headrace.model.specs import StreamSpec
from tests.conftest import Connect, Declare
from tests.runtime.running import eventually, running
from tests.support.logs import logged
from tests.support.readers import Reader, begun, publish

pytestmark = pytest.mark.asyncio

SEQUENCE = 'headrace_streams."orders.seq"'
WITH_CACHE = f"alter sequence {SEQUENCE} cache 10"


async def lease_and_settle(reader: Reader, database: store.Database, times: int = 4) -> list[int]:
    """Several lease calls and settles. After them all holes that no transaction can fill are forgotten."""
    found: list[int] = []
    for _ in range(times):
        await publish(database, "other")
        reader.clock.advance(2)
        found += await reader.drain()
    return found


async def cache_of(database: store.Database) -> int:
    found: int = await database.fetchval("select seqcache from pg_sequence where seqrelid = $1::regclass", SEQUENCE)
    return found


async def test_a_seq_that_was_drawn_before_the_transaction_is_refused(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """An ORM does this when it draws the primary key first."""
    reader = await declare()
    session = await connect()
    await publish(database, "a")
    seq = await session.fetchval(f"select nextval('{SEQUENCE}')")
    assert await lease_and_settle(reader, database)
    assert (await reader.cursor())["settled"] > seq
    with pytest.raises(asyncpg.GeneratedAlwaysError, match='cannot insert a non-DEFAULT value into column "seq"'):
        await session.execute("insert into headrace_streams.orders (seq, key, data) values ($1, 'k', '1')", seq)
    assert (
        await session.fetchval("insert into headrace_streams.orders (key, data) values ('k', '1') returning seq") > seq
    )


async def test_nothing_is_lost_by_a_sequence_with_a_cache(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, "a")
    await reader.drain()
    await database.fetch(WITH_CACHE)
    session = await connect()
    await publish(session, "k")  # the session holds nine more seqs in its cache
    delivered = await lease_and_settle(reader, database)
    await publish(session, *"kkk")
    late = await reader.drain()
    assert late == [delivered[0] + 1, delivered[0] + 2, delivered[0] + 3]
    assert late[0] < delivered[-1]


async def test_a_sequence_with_a_cache_is_repaired_and_the_cached_seqs_are_forgotten(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await database.fetch(WITH_CACHE)
    session = await connect()
    await publish(session, "k")
    async with begun(connect) as (publisher, transaction):
        await publish(publisher, "late")
        swept = await sweep(database)
        assert (swept.mended, swept.busy) == ([], ["orders"])
        await transaction.commit()
    while not (swept := await sweep(database)).mended:
        assert swept.busy == ["orders"]  # it waits for a few milliseconds, and tries again in the next round
    assert swept.mended == ["orders"]
    assert await cache_of(database) == 1
    last = await database.fetchval(f"select pg_sequence_last_value('{SEQUENCE}')")
    await publish(session, "k")
    delivered = await reader.drain()
    assert delivered == [1, delivered[1], last + 1]
    assert await lease_and_settle(reader, database)
    assert (await reader.cursor())["settled"] > last
    assert (await sweep(database)).mended == []


@pytest.mark.parametrize("what", ["cache 2", "cycle", "increment -1 minvalue -9"])
async def test_a_position_without_holes_is_refused_while_the_sequence_is_altered(
    database: store.Database, declare: Declare, what: str
) -> None:
    reader = await declare()
    await publish(database, "a")
    await database.fetch(f"alter sequence {SEQUENCE} {what}")
    with pytest.raises(ConfigurationError, match=r"select headrace\.mend_sequence\('orders'\)"):
        await database.fetch("select headrace_internal.range_mark('orders')")
    with pytest.raises(ConfigurationError, match=r"select headrace\.mend_sequence\('orders'\)"):
        await reader.seek(None)
    assert await database.fetchval("select headrace.mend_sequence('orders')")
    assert not await database.fetchval("select headrace.mend_sequence('orders')")
    await publish(database, "b")
    assert await reader.drain() == [1, 2]


async def test_a_running_app_repairs_a_sequence_and_logs_it(
    dsn: str, database: store.Database, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(dsn)
    await store.create_stream(database, "orders")
    await database.fetch(WITH_CACHE)

    async def mended() -> bool:
        return await cache_of(database) == 1

    async def logs_it() -> bool:
        return bool(logged(caplog, "altered sequence reset", stream="orders"))

    with caplog.at_level(logging.WARNING, "headrace"):
        async with running(app):
            await eventually(mended)
            await eventually(logs_it)


async def test_a_compacted_stream_survives_a_sequence_with_a_cache(database: store.Database, connect: Connect) -> None:
    await store.create_stream(database, StreamSpec(name="prices", one_message_per_key=True))
    await database.fetch('alter sequence headrace_streams."prices.seq" cache 10')
    await publish(database, "a", stream="prices")
    assert (await sweep(database)).mended == ["prices"]
