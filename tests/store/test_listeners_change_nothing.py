"""Whether a transaction succeeds doesn't depend on who listens for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from headrace import store
from headrace.embedded.binaries import find_installation
from headrace.model.specs import ConsumerSpec
from tests.conftest import Connect, Declare
from tests.support import notifications
from tests.support.clusters import cluster
from tests.support.readers import publish
from tests.support.roles import Login

pytestmark = pytest.mark.asyncio

Act = Callable[[Any, int], Awaitable[Any]]


async def publish_one(connection: Any, _: int) -> None:
    await connection.execute("select headrace.publish('orders', 'b', '2')")


async def publish_many(connection: Any, _: int) -> None:
    await connection.execute("select headrace.publish_many('orders', array['b'], array['2'::json])")


async def publish_again(connection: Any, _: int) -> None:
    await connection.execute("savepoint one; select headrace.publish('orders', 'b', '2'); rollback to one")
    await connection.execute("select headrace.publish('orders', 'b', '2')")


async def publish_unique(connection: Any, _: int) -> None:
    await connection.execute("select headrace.publish_unique('orders', 'b', '2', 'unique')")


async def check_constraints(connection: Any, _: int) -> None:
    await publish_one(connection, _)
    await connection.execute("set constraints all immediate")


async def seek(connection: Any, consumer: int) -> None:
    await connection.execute("select headrace_internal.seek($1, 0)", consumer)


async def resume(connection: Any, consumer: int) -> None:
    await connection.execute("select headrace_internal.resume($1)", consumer)


async def delete(connection: Any, consumer: int) -> None:
    await connection.execute("select headrace_internal.delete_consumer($1, true)", consumer)


async def listening(connect: Connect) -> tuple[Any, list[str]]:
    """A session that listens, and what it was notified of."""
    listener = await connect()
    heard: list[str] = []
    await notifications.listen(listener, lambda *call: heard.append(call[3]))
    return listener, heard


async def notify_for_ever(connection: Any) -> None:
    for number in range(100_000):
        await connection.execute("select pg_notify('other', $1 || repeat('x', 7900))", str(number))


async def two_phases(database: store.Database) -> None:
    if int(await database.fetchval("select current_setting('max_prepared_transactions')")) == 0:
        pytest.skip("the server prepares no transactions")


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    "act", [publish_one, publish_many, publish_again, publish_unique, check_constraints, seek, resume, delete]
)
async def test_a_transaction_is_prepared_whoever_listens(
    database: store.Database, declare: Declare, connect: Connect, act: Act, waits: bool
) -> None:
    await two_phases(database)
    reader = await declare()
    await publish(database, "a")
    listener, heard = await listening(connect)
    if waits:
        await store.wait(database, reader.id, 60.0)
    connection, name = await connect(), f"test-{uuid4()}"
    await connection.execute("begin")
    await act(connection, reader.id)
    await connection.execute(f"prepare transaction '{name}'")
    await connection.execute(f"commit prepared '{name}'")
    await listener.execute("select")
    assert heard == []
    assert await database.fetchval("select count(*) from headrace_internal.notifications") == 0
    if act not in (delete, seek, resume):
        assert min((await reader.lease()).seqs) == 1
        assert len(await database.fetch("select from headrace_streams.orders")) == 2


@pytest.mark.parametrize("act", [publish_one, publish_many, publish_again, publish_unique, seek, resume, delete])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_a_transaction_notifies_at_its_commit(
    database: store.Database, declare: Declare, connect: Connect, act: Act, ends: str
) -> None:
    reader = await declare()
    await publish(database, "a")
    listener, heard = await listening(connect)
    await store.wait(database, reader.id, 60.0)
    stream = await database.fetchval("select id from headrace_internal.streams")
    connection = await connect()
    await connection.execute("begin")
    await act(connection, reader.id)
    await connection.execute(ends)
    await listener.execute("select")
    assert heard == ([str(stream)] if ends == "commit" else [])
    assert await database.fetchval("select count(*) from headrace_internal.notifications") == 0


async def test_a_statement_of_its_own_notifies(database: store.Database, declare: Declare, connect: Connect) -> None:
    reader = await declare()
    listener, heard = await listening(connect)
    await store.wait(database, reader.id, 60.0)
    await (await connect()).fetchval("select headrace.publish($1, $2, $3)", "orders", "a", "1")
    await listener.execute("select")
    assert len(heard) == 1


@pytest.mark.process
@pytest.mark.skipif(find_installation().major < 17, reason="the queue has a fixed size of 8 GB")
async def test_a_full_queue_of_notifications_refuses_nothing(tmp_path: Path) -> None:
    """A session that listens, and stays in a transaction, keeps all notifications of the server."""
    with cluster(tmp_path / "postgres", max_notify_queue_pages="64") as server:
        database = store.Database(server.url())
        await database.open()
        await store.migrate(database)
        await store.create_stream(database, "orders")
        spec = ConsumerSpec(stream="orders", name="ship")
        consumer = (await store.declare_consumer(database, spec)).id
        await store.wait(database, consumer, 60.0)
        stuck, other = await asyncpg.connect(server.url()), await asyncpg.connect(server.url())
        await stuck.execute("listen other")
        await stuck.execute("begin; select 1")
        with pytest.raises(asyncpg.PostgresError, match="too many notifications"):
            await notify_for_ever(other)
        await publish(database, "a")
        await store.resume(database, consumer)
        await store.delete_consumer(database, consumer, force=True)
        stuck.terminate()
        other.terminate()
        await database.close()


async def test_a_prepared_ack_keeps_its_lease_until_it_is_committed(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    await two_phases(database)
    reader = await declare(ack_wait=30)
    await publish(database, "a")
    batch = await reader.lease()
    connection, name = await connect(), f"test-{uuid4()}"
    await connection.execute("begin")
    await reader.ack_within(connection, batch)
    await publish_one(connection, reader.id)
    await connection.execute(f"prepare transaction '{name}'")
    reader.clock.advance(100)
    assert (await reader.lease("bob")).seqs == []
    await connection.execute(f"commit prepared '{name}'")
    assert (await reader.lease("bob")).seqs == [2]


@pytest.mark.parametrize("prepared", [False, True])
async def test_a_role_with_a_grant_notifies_at_its_commit_alone(
    database: store.Database, login: Login, connect: Connect, prepared: bool
) -> None:
    await two_phases(database)
    consumer = await store.consumer_id(database, "orders", "ship")
    listener, heard = await listening(connect)
    await store.wait(database, consumer, 60.0)
    role, name = await login("publish"), f"test-{uuid4()}"
    connection = await asyncpg.connect(role.dsn)
    await connection.execute("begin")
    await publish_one(connection, consumer)
    if prepared:
        await connection.execute(f"prepare transaction '{name}'")
        await connection.execute(f"commit prepared '{name}'")
    else:
        await connection.execute("commit")
    await connection.close()
    await listener.execute("select")
    assert len(heard) == (0 if prepared else 1)
