"""A publication for all tables, as logical replicas and capture tools create it, breaks nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from headrace import store, sweep
from headrace.model.errors import StoreError
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.specs import StreamSpec
from tests.conftest import Declare
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio

WITHOUT = """
    select c.oid::regclass::text as name from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
    where n.nspname ~ '^headrace(_internal|_streams|_staging)?$' and c.relkind in ('r', 'p') and c.relpersistence = 'p'
      and not case c.relreplident
          when 'd' then exists (select from pg_index where indrelid = c.oid and indisprimary and indisvalid)
          when 'i' then exists (select from pg_index where indrelid = c.oid and indisreplident and indisvalid)
          else c.relreplident = 'f' end"""
"""The logged tables without a replica identity. With a publication, each UPDATE and DELETE of them fails."""


async def without_identity(database: store.Database) -> list[str]:
    return [row["name"] for row in await database.fetch(WITHOUT)]


async def test_every_table_has_a_replica_identity(database: store.Database, declare: Declare) -> None:
    """This includes tables that are created later: segments, streams and staging tables."""
    await declare()
    await store.create_stream(database, StreamSpec(name="prices", one_message_per_key=True, dedupe=True))
    await database.fetchval("select headrace_internal.stage_write('orders', 'w')")
    await publish(database, "k")
    await database.fetch("select setval('headrace_streams.\"orders.seq\"', 150000)")
    await sweep(database)
    assert await database.fetchval("select count(*) from headrace_internal.segments") > 4
    assert await without_identity(database) == []


async def test_everything_works_beside_a_publication_for_all_tables(database: store.Database, declare: Declare) -> None:
    await database.fetch("create publication everything for all tables")
    reader = await declare(ack_wait=10.0, max_deliver=2)
    await publish(database, *"abcdefgh")
    batch = await reader.lease()
    async with database.transaction() as connection:
        await reader.ack_within(connection, batch, 1)
    async with database.transaction() as connection:
        await reader.ack_within(connection, batch, 2, 3)
    await reader.ack(batch, 1, 4)
    await reader.nack(batch, 5, delay=60.0)
    await reader.reject(batch, 6)
    await reader.extend()
    reader.clock.advance(20)  # 7 and 8 expire, and the acks above are removed
    assert await reader.drain() == [7, 8]
    assert await reader.count("acks") == 0
    reader.clock.advance(60)
    assert await reader.drain() == [5]
    assert await reader.redrive() == 1
    assert await reader.drain() == [6]
    await reader.seek(0)
    assert len(await reader.drain()) == 8
    assert (await reader.info()).lag == 0


async def test_streams_are_kept_and_compacted_beside_a_publication_for_all_tables(database: store.Database) -> None:
    await database.fetch("create publication everything for all tables")
    await store.create_stream(database, StreamSpec(name="prices", one_message_per_key=True, retain_up_to=60.0))
    await store.create_stream(database, StreamSpec(name="orders", retain_up_to=60.0))
    for stream in ("prices", "orders"):
        await publish(database, "a", "b", "a", stream=stream)
        await publish(database, "a", stream=stream)
    due = datetime.now(UTC) + timedelta(hours=1)
    await store.publish_many(database, "orders", ["c"], ["1"], options=PublishOptions(message_id="x", deliver_at=due))
    swept = await sweep(database, now=due + timedelta(hours=1))
    assert (swept.published, swept.messages_trimmed) == (1, 6)
    assert await without_identity(database) == []
    await database.fetchval("select headrace_internal.delete_stream('orders', true)")


async def test_a_capture_keeps_its_position_beside_a_publication_for_all_tables(database: store.Database) -> None:
    await database.fetch("create publication everything for all tables")
    await store.create_stream(database, "orders")
    await store.create_source(database, "shop", "postgres", "orders", {"tables": ["public.orders"]})
    (todo,) = await store.captures_to_do(database)
    epoch = await store.take_capture(database, todo.number, uuid4(), 6.0)
    assert epoch is not None
    await store.begin_capture(database, todo.number, epoch, "0/10", "sys", 1)
    for position in ("0/20", "0/30"):
        what = store.CaptureBatch(keys=["a"], data=["1"], position=position, captured=1)
        await store.append_captured(database, todo.number, epoch, "orders", what)
        assert await store.renew_capture(database, todo.number, epoch, 6.0)
    await store.release_capture(database, todo.number, epoch)


async def test_an_unknown_server_error_contains_the_servers_message(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, "a")
    batch = await reader.lease()
    await database.fetch("alter table headrace_internal.leases replica identity nothing")
    await database.fetch("create publication everything for all tables")
    with pytest.raises(StoreError, match=r"cannot delete from table \"leases\".*55000.*REPLICA IDENTITY") as raised:
        await reader.ack_all(batch)
    assert type(raised.value.__cause__).__name__ == "ObjectNotInPrerequisiteStateError"
