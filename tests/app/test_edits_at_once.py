"""Edits beside other changes: none overwrites another one, and none brings back what was deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
import pytest_asyncio

from headrace import store
from headrace.admin import Admin
from headrace.model.errors import UnknownConsumer
from headrace.model.specs import ConsumerSpec
from tests.conftest import Connect
from tests.support.readers import begun
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio

SHIP = ("orders", "ship")
DECLARATIONS = "select pg_advisory_xact_lock(1212498508, 0)"


@pytest_asyncio.fixture
async def admin(database: store.Database) -> Admin:
    admin = Admin(database)
    await admin.create_stream("orders")
    await admin.create_consumer(ConsumerSpec(stream="orders", name="ship"))
    return admin


async def at_once(database: store.Database, connect: Connect, *edits: Awaitable[Any]) -> None:
    """Make edits that all wait for the same session before the first of them is made."""
    async with begun(connect) as (other, transaction):
        await other.execute("select from headrace_internal.streams for update")
        await other.execute(DECLARATIONS)
        running = asyncio.gather(*edits)
        async with asyncio.timeout(20):
            while True:
                waiting = await database.fetchval(
                    "select count(*) from pg_stat_activity where datname = current_database() and $1 = any (pg_blocking_pids(pid))",
                    other.get_server_pid(),
                )
                if waiting == len(edits):
                    break
                await asyncio.sleep(0)
        await transaction.commit()
        await running


async def test_edits_of_a_consumer_at_the_same_time_keep_each_others_settings(
    admin: Admin, database: store.Database, connect: Connect
) -> None:
    await at_once(
        database, connect, admin.edit_consumer(*SHIP, ack_wait=60), admin.edit_consumer(*SHIP, max_ack_pending=5)
    )
    spec, _ = await store.consumer_spec(database, await store.consumer_id(database, *SHIP))
    assert (spec.ack_wait, spec.max_ack_pending) == (60, 5)


async def test_edits_of_a_stream_at_the_same_time_keep_each_others_settings(
    admin: Admin, database: store.Database, connect: Connect
) -> None:
    await at_once(
        database, connect, admin.edit_stream("orders", retain_up_to=60), admin.edit_stream("orders", dedupe_window=5)
    )
    info = await admin.stream("orders")
    assert (info.retain_up_to, info.dedupe_window) == (60, 5)


async def test_an_edit_does_not_bring_back_a_consumer_that_was_deleted_before(
    admin: Admin, database: store.Database, connect: Connect
) -> None:
    async with begun(connect) as (other, transaction):
        await other.execute(DECLARATIONS)
        edit = await start(admin.edit_consumer(*SHIP, ack_wait=60))
        await until_blocked(database, other)
        await admin.delete_consumer(*SHIP)
        await transaction.commit()
        with pytest.raises(UnknownConsumer):
            await edit
    assert await admin.consumers("orders") == []


async def test_an_edit_does_not_bring_back_a_consumer_that_is_deleted_meanwhile(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = store.consumer_spec

    async def spec_before_the_deletion(executor: store.Executor, consumer: int) -> tuple[ConsumerSpec, int]:
        found = await read(executor, consumer)
        await admin.delete_consumer(*SHIP)
        return found

    monkeypatch.setattr(store, "consumer_spec", spec_before_the_deletion)
    with pytest.raises(UnknownConsumer, match="'ship'"):
        await admin.edit_consumer(*SHIP, ack_wait=60)
    assert await admin.consumers("orders") == []
