"""A lease call for free keys passes those that its owner holds, and their order is kept."""

from __future__ import annotations

import pytest

from headrace import store
from tests.conftest import Declare
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("backlog", [1, 50], ids=["short", "long"])
async def test_it_leases_what_is_behind_the_messages_of_keys_in_flight(
    database: store.Database, declare: Declare, backlog: int
) -> None:
    reader = await declare()
    await publish(database, "a", *"a" * backlog, "b", "c")
    first = await reader.lease("ann", 1)
    batch = await reader.lease("ann", 10, free_keys=True)
    assert (first.keys, batch.keys) == (["a"], ["b", "c"])
    assert (await reader.lease("ann", 10, free_keys=True)).lease_id is None
    rest = await reader.lease("ann")
    assert rest.seqs == list(range(2, backlog + 2)), "a usual call continues the keys of its owner"


async def test_messages_that_it_passed_wait_for_the_one_in_flight(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aab")
    first = await reader.lease("ann", 1)
    await reader.lease("ann", free_keys=True)
    assert (await reader.lease("bob")).lease_id is None
    await reader.ack(first)
    assert (await reader.lease("ann", free_keys=True)).seqs == [2]


async def test_a_retry_comes_before_the_messages_that_it_passed(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aaab")
    first = await reader.lease("ann", 1)
    await reader.lease("ann", free_keys=True)
    await reader.nack(first, delay=10)
    assert (await reader.lease("ann")).lease_id is None
    assert (await reader.lease("bob")).lease_id is None
    reader.clock.advance(11)
    assert (await reader.lease("ann", free_keys=True)).seqs == [1, 2, 3]


async def test_messages_that_it_passed_are_delivered_when_the_lease_expires(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"aab")
    await reader.lease("ann", 1)
    await reader.lease("ann", free_keys=True)
    reader.clock.advance(31)
    again = await reader.lease("bob")
    assert again.seqs == [1, 2, 3]


async def test_without_order_all_keys_are_free(database: store.Database, declare: Declare) -> None:
    reader = await declare(ordered=False)
    await publish(database, *"aab")
    await reader.lease("ann", 1)
    assert (await reader.lease("ann", free_keys=True)).seqs == [2, 3]
