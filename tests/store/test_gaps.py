"""The gap-aware cursor: messages that commit late are delivered, and holes that nothing can fill
are forgotten."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest

from headrace import store
from tests.conftest import Connect, Declare
from tests.support.readers import Reader, publish

pytestmark = pytest.mark.asyncio


async def begin(connect: Connect) -> tuple[Any, Any]:
    connection = await connect()
    transaction = connection.transaction()
    await transaction.start()
    return connection, transaction


async def pin_xmin(connect: Connect) -> Any:
    """Leave a transaction with a snapshot and an xid open elsewhere in the database."""
    connection = await connect()
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await connection.fetchval("select pg_current_xact_id()")
    return transaction


async def holes(reader: Reader) -> list[Any]:
    cursor = await reader.cursor()
    return list(cursor["holes"])


async def forgets_its_holes(reader: Reader) -> bool:
    """Whether a few calls remove all holes. The clock advances between them, in case another test pins xmin."""
    for _ in range(5):
        reader.clock.advance(2)
        await reader.drain()
    return await holes(reader) == [] and (await reader.info()).holes == 0


async def burn_a_seq(database: store.Database) -> None:
    with suppress(ZeroDivisionError):
        async with database.transaction() as connection:
            await publish(connection, "burnt")
            raise ZeroDivisionError


async def test_a_late_commit_is_still_delivered(database: store.Database, declare: Declare, connect: Connect) -> None:
    reader = await declare()
    late, transaction = await begin(connect)
    await publish(late, "late")
    await publish(database, "early")
    assert await reader.drain() == [2]
    await transaction.commit()
    assert await reader.drain() == [1]


async def test_a_late_commit_is_delivered_however_many_leases_later(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    late, transaction = await begin(connect)
    await publish(late, *["late"] * 3)
    for seq in range(4, 24):
        await publish(database, "early")
        assert await reader.drain() == [seq]
        reader.clock.advance(5)
    await transaction.commit()
    assert await reader.drain(limit=2) == [1, 2, 3]
    assert await forgets_its_holes(reader)


async def test_late_commits_come_in_any_order_and_each_once(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    open_ones = []
    for n in range(5):
        late, transaction = await begin(connect)
        await publish(late, f"late.{n}", f"late.{n}")
        await publish(database, "early")
        open_ones.append((3 * n + 1, transaction))
    assert await reader.drain() == [3, 6, 9, 12, 15]
    for n in (3, 0, 4, 2, 1):
        seq, transaction = open_ones[n]
        await transaction.commit()
        assert await reader.drain() == [seq, seq + 1]
    assert await forgets_its_holes(reader)


async def test_rolled_back_holes_are_forgotten(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    for _ in range(3):
        await burn_a_seq(database)
        await publish(database, "a")
    assert await reader.drain() == [2, 4, 6]
    assert await forgets_its_holes(reader)


async def test_an_open_publisher_keeps_its_hole_and_not_the_others(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """A transaction that is left open delays only its own messages."""
    reader = await declare()
    late, transaction = await begin(connect)
    await publish(late, "late")
    for _ in range(20):
        await burn_a_seq(database)
        await publish(database, "a")
        assert len(await reader.drain()) == 1
        reader.clock.advance(2)
    await transaction.commit()
    assert await reader.drain() == [1]
    assert await forgets_its_holes(reader)


async def test_holes_are_forgotten_while_an_idle_transaction_pins_xmin(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    pin = await pin_xmin(connect)
    for n in range(10):
        await burn_a_seq(database)
        await publish(database, "a")
        assert await reader.drain() == [2 * n + 2]
        reader.clock.advance(2)
    assert await forgets_its_holes(reader)
    await pin.rollback()


async def test_a_late_commit_is_delivered_while_an_idle_transaction_pins_xmin(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    pin = await pin_xmin(connect)
    late, transaction = await begin(connect)
    await publish(late, "late")
    for n in range(10):
        await burn_a_seq(database)
        await publish(database, "a")
        assert await reader.drain() == [2 * n + 3]
        reader.clock.advance(2)
    await transaction.commit()
    assert await reader.drain() == [1]
    await pin.rollback()


async def test_open_publishers_are_looked_up_at_most_once_a_second(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    pin = await pin_xmin(connect)
    late, transaction = await begin(connect)
    await publish(late, "late")
    await publish(database, "a")
    asked = []
    for _ in range(8):
        await reader.lease()
        asked.append((await reader.cursor())["suspects_at"])
        reader.clock.advance(0.4)
    times = sorted(set(asked) - {None})
    assert len(times) == 3
    assert all(later - earlier >= timedelta(seconds=1) for earlier, later in pairwise(times))
    assert (times[1] - times[0]).total_seconds() > 1
    await transaction.commit()
    await pin.rollback()
    assert await reader.drain() == [1]


async def test_a_publisher_that_came_after_the_holes_does_not_keep_them(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Only a transaction that held the lock when the holes were found can fill them. New publishers
    keep arriving all the time."""
    reader = await declare()
    pin = await pin_xmin(connect)
    await burn_a_seq(database)
    await publish(database, "a")
    assert await reader.drain() == [2]
    newer, transaction = await begin(connect)
    await publish(newer, "b")
    await reader.lease()  # the holes are old now, and the newer publisher is a suspect like any other
    for _ in range(6):
        overlapping, next_transaction = await begin(connect)
        await publish(overlapping, "b")
        reader.clock.advance(2)
        await reader.lease()
        await transaction.commit()
        newer, transaction = overlapping, next_transaction
    assert 1 not in [hole.lower for hole in await holes(reader)]
    await transaction.commit()
    assert await forgets_its_holes(reader)
    await pin.rollback()


async def test_a_committed_savepoint_is_delivered_and_a_rolled_back_one_forgotten(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    late, transaction = await begin(connect)
    kept = late.transaction()
    await kept.start()
    await publish(late, "kept")
    await kept.commit()
    undone = late.transaction()
    await undone.start()
    await publish(late, "undone")
    await undone.rollback()
    again = late.transaction()
    await again.start()
    await publish(late, "again")
    await publish(database, "early")
    assert await reader.drain() == [4]
    await again.commit()
    assert await reader.drain() == []
    await transaction.commit()
    assert await reader.drain() == [1, 3]
    assert await forgets_its_holes(reader)


async def test_a_hole_wider_than_a_call_may_look_into_is_filled_call_by_call(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(filters=("late", "early"))
    late, transaction = await begin(connect)
    await publish(late, *["late"] * 250)
    await publish(database, "early")
    assert await reader.drain() == [251]
    await transaction.commit()
    assert sorted(await reader.drain(limit=30, look=100)) == list(range(1, 251))
    assert await forgets_its_holes(reader)


async def test_a_prepared_transaction_is_waited_for(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    if int(await database.fetchval("select current_setting('max_prepared_transactions')")) == 0:
        pytest.skip("the server allows no prepared transactions")
    reader = await declare()
    late = await connect()
    name = await database.fetchval("select current_database()")
    await late.execute(f"begin; select headrace.publish('orders', 'late', '1'); prepare transaction '{name}'")
    await publish(database, "early")
    for _ in range(4):
        reader.clock.advance(2)
        await reader.lease()
    await late.execute(f"commit prepared '{name}'")
    assert await reader.drain() == [1]


async def test_a_transaction_that_is_prepared_after_it_was_suspected_is_waited_for(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    if int(await database.fetchval("select current_setting('max_prepared_transactions')")) == 0:
        pytest.skip("the server allows no prepared transactions")
    reader = await declare()
    late = await connect()
    name = f"late-{uuid4().hex}"
    await late.execute("begin; select headrace.publish('orders', 'late', '1')")
    await publish(database, "early")
    for _ in range(4):
        reader.clock.advance(2)
        await reader.drain()
    assert (await reader.cursor())["suspects"]
    await late.execute(f"prepare transaction '{name}'")
    try:
        for _ in range(6):
            reader.clock.advance(2)
            await publish(database, "more")
            await reader.drain()
    finally:
        await late.execute(f"commit prepared '{name}'")
    assert await reader.drain() == [1]


async def test_positions_without_end_cost_one_row(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    for _ in range(50):
        await burn_a_seq(database)
        await publish(database, "a")
        await reader.drain()
    assert await reader.count("cursors") == 1
    assert len(await holes(reader)) <= 3
