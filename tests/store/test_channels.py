"""Channels of notifications: each stream has one, and a process listens to those of its streams."""

from __future__ import annotations

import anyio
import pytest

from headrace import store
from headrace.model.specs import StreamSpec
from headrace.store.database.listener import CHANNELS, channels
from tests.conftest import Connect, Declare
from tests.support import notifications

pytestmark = pytest.mark.asyncio

IDS = (1, CHANNELS - 1, CHANNELS, CHANNELS + 1, 10_000, 2**31 - 1)


@pytest.mark.parametrize("stream", IDS)
async def test_a_stream_is_announced_on_the_channel_that_its_consumers_listen_to(connect: Connect, stream: int) -> None:
    listener, publisher = await connect(), await connect()
    heard: list[str] = []
    await notifications.listen(listener, lambda *call: heard.append(call[3]), [stream])
    await publisher.execute("select headrace_internal.notify_listeners($1)", stream)
    await listener.execute("select")
    assert heard == [str(stream)]


async def test_a_process_without_certain_streams_listens_to_all() -> None:
    assert {*channels(IDS)} <= {*channels()}
    assert len(channels()) == CHANNELS
    assert channels([]) == []


@pytest.mark.parametrize("prepares", [False, True])
async def test_a_stream_is_announced_once_for_a_transaction(
    database: store.Database, declare: Declare, connect: Connect, prepares: bool
) -> None:
    reader, listener, publisher = await declare(), await connect(), await connect()
    stream = await publisher.fetchval("select id from headrace_internal.streams")
    heard: list[str] = []
    await notifications.listen(listener, lambda *call: heard.append(call[3]))
    await store.wait(database, reader.id, 60.0)
    async with publisher.transaction():
        for key in "abc":
            await publisher.execute("select headrace.publish('orders', $1, '1')", key)
            if prepares:  # as on a server where transactions can be prepared
                await publisher.execute("select headrace_internal.notify_at_commit($1)", stream)
    await listener.execute("select")
    assert heard == [str(stream)]


async def test_a_stream_that_is_created_again_is_heard_by_its_new_id(database: store.Database) -> None:
    heard: list[int] = []
    ready = anyio.Event()
    first = await store.create_stream(database, StreamSpec(name="news"))
    await store.delete_stream(database, "news")
    second = await store.create_stream(database, StreamSpec(name="news"))
    assert first != second
    async with anyio.create_task_group() as group:
        group.start_soon(store.listen, database, heard.append, ready.set, [second])
        await ready.wait()
        for stream in (first, second):
            await database.fetchval("select headrace_internal.notify_listeners($1)", stream)
        with anyio.fail_after(10):
            while not heard:  # noqa: ASYNC110 - the notification comes by another connection
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert heard == [second]
