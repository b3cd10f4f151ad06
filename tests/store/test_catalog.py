"""Declaring consumers by name. A second declaration changes the settings and keeps the position."""

from __future__ import annotations

import asyncio

import pytest

from headrace import store
from headrace.model.errors import UnknownStream
from headrace.model.specs import Backoff, ConsumerSpec
from tests.conftest import Declare
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio

PLAIN = ConsumerSpec(stream="orders", name="ship")
ELABORATE = ConsumerSpec(
    stream="orders",
    name="ship",
    filters=("a.>", "b.*"),
    ordered=False,
    ack_wait=1 / 3,
    max_ack_pending=7,
    max_deliver=-1,
    backoff=Backoff(delays=(0.1, 60.0)),
    on_exhausted="block",
)


async def test_declaring_a_new_consumer_reports_that_it_is_new(database: store.Database, declare: Declare) -> None:
    await store.create_stream(database, "orders")
    declared = await store.declare_consumer(database, PLAIN)
    assert (declared.new, declared.changed) == (True, {})
    assert await store.consumer_id(database, "orders", "ship") == declared.id


@pytest.mark.parametrize("spec", [PLAIN, ELABORATE], ids=["plain", "elaborate"])
async def test_declaring_the_same_again_changes_nothing(database: store.Database, spec: ConsumerSpec) -> None:
    await store.create_stream(database, "orders")
    first = await store.declare_consumer(database, spec)
    at = await database.fetchval("select updated_at from headrace_internal.consumers")
    again = await store.declare_consumer(database, spec)
    assert (again.id, again.new, again.changed) == (first.id, False, {})
    assert await database.fetchval("select updated_at from headrace_internal.consumers") == at


async def test_every_changed_setting_is_reported_as_it_was_and_as_it_is(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await store.declare_consumer(database, PLAIN)
    changed = (await store.declare_consumer(database, ELABORATE)).changed
    assert changed == {
        "filters": ([">"], ["a.>", "b.*"]),
        "ordered": (True, False),
        "ack_wait": (30.0, 0.333333),
        "max_ack_pending": (1000, 7),
        "max_deliver": (10, -1),
        "backoff": ({}, {"delays": [0.1, 60.0]}),
        "on_exhausted": ("dead_letter", "block"),
    }
    assert set((await store.declare_consumer(database, PLAIN)).changed) == set(changed)


async def test_changed_settings_count_from_the_next_call_and_the_position_is_kept(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, "a", "b", "a", "b")
    assert (await reader.lease(limit=2)).seqs == [1, 2]
    reader = await declare(filters=("b",), max_ack_pending=3)
    assert await reader.drain("bob") == []
    await reader.extend()
    assert (await reader.lease()).seqs == [4]
    assert (await reader.info()).settings["filters"] == ["b"]


async def test_a_consumer_of_an_unknown_stream_is_refused(database: store.Database) -> None:
    with pytest.raises(UnknownStream, match="no stream 'orders'"):
        await store.declare_consumer(database, PLAIN)


async def test_a_consumer_that_many_processes_declare_at_once_is_made_once(database: store.Database) -> None:
    await asyncio.gather(*[store.create_stream(database, "orders") for _ in range(8)])
    declared = await asyncio.gather(*[store.declare_consumer(database, PLAIN) for _ in range(8)])
    assert len({one.id for one in declared}) == 1
    assert [one.new for one in declared].count(True) == 1


async def test_consumer_info_shows_its_state(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aabcdefg")
    await reader.lease("ann", 1)
    bob = await reader.lease("bob", 4)
    await reader.nack(bob, bob.seqs[0], delay=10)
    await reader.reject(bob, bob.seqs[1])
    info = await reader.info()
    assert (info.stream, info.name, info.position, info.lag) == ("orders", "ship", 5, 3)
    assert (info.in_flight, info.owners, info.parked, info.dead_letters) == (2, 2, 2, 1)
    assert [one.name for one in await store.consumers(database)] == ["ship"]
    assert [one.name for one in await store.consumers(database, "orders")] == ["ship"]
    assert await store.consumers(database, "nowhere") == []
