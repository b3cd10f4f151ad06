"""The short way of a lease call, for the messages that follow the cursor while nothing is in the way."""

from __future__ import annotations

import json
import random

import pytest

from headrace import store
from tests.conftest import Connect, Declare
from tests.runtime.running import eventually
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio


LARGE = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=20_000))
"""A text that makes a payload large, although it is compressed."""


async def cursor(database: store.Database) -> dict[str, int]:
    row = await database.fetchrow(
        "select version, position, parked_floor, lease_floor >> 20 as lease_floor, settled"
        " from headrace_internal.cursors order by version desc limit 1"
    )
    return dict(row)


async def test_a_call_that_finds_nothing_writes_nothing(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    await reader.ack_all(await reader.lease())
    before = await cursor(database)
    for who in ("ann", "bob", "ann"):
        batch = await reader.lease(who)
        assert (batch.seqs, batch.more, batch.looked_at, batch.due_in) == ([], False, 0, None)
    assert await cursor(database) == before


async def test_a_call_that_finds_nothing_says_when_a_lease_expires(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, "a")
    assert (await reader.lease("ann")).seqs == [1]
    reader.clock.advance(10)
    assert (await reader.lease("bob")).due_in == pytest.approx(20)
    reader.clock.advance(20)
    assert (await reader.lease("bob")).seqs == [1]


async def test_the_floors_follow_while_calls_find_nothing(database: store.Database, declare: Declare) -> None:
    """Otherwise they would walk more and more dead rows under an old snapshot."""
    reader = await declare(max_ack_pending=100_000)
    await publish(database, *["a"] * 3_000)
    for _ in range(2):
        held = [await reader.lease("ann", 10) for _ in range(150)]
        await reader.ack_all(*held)

    async def followed() -> bool:  # a transaction elsewhere on the server may hold back the marks for a while
        assert (await reader.lease("ann")).seqs == []
        now = await cursor(database)
        assert now["position"] == 3_000
        return now["position"] - now["parked_floor"] < 1_000 and now["settled"] >= 2_000

    await eventually(followed)


@pytest.mark.parametrize("shares", [None, [1, 1, 1, 1]])
async def test_messages_of_all_sizes_are_leased(
    database: store.Database, declare: Declare, shares: list[int] | None
) -> None:
    """Small ones, one that is compressed, and one that is stored out of line."""
    reader = await declare()
    noise = random.Random(1).randbytes(20_000).hex()
    payloads = ['"small"', '"%s"' % ("x" * 100_000), f'"{noise}"', '"last"']
    for place, payload in enumerate(payloads):
        await store.publish(database, "orders", f"k.{place}", payload)
        batch = await reader.lease("ann", 4, shares=shares)
        assert batch.data == [payload]
        await reader.ack_all(batch)


async def test_a_large_header_is_leased(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    noise = random.Random(1).randbytes(20_000).hex()
    await store.publish(database, "orders", "a", "1", headers=json.dumps({"note": noise}))
    batch = await reader.lease()
    assert noise in str(batch.headers[0])


async def test_messages_of_a_key_that_another_owner_holds_wait(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, "a")
    first = await reader.lease("ann")
    await publish(database, *"ab")
    assert (await reader.lease("bob")).seqs == [3]
    await publish(database, "a")
    assert (await reader.lease("bob")).seqs == []
    assert (await reader.lease("ann")).seqs == [2, 4]
    assert await reader.ack_all(first) == []


async def test_no_two_shares_have_a_key(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aab")
    batch = await reader.lease("ann", 3, shares=[1, 1, 1])
    assert batch.seqs == [1, 3]
    assert len(batch.lease_ids or ()) == 2


async def test_the_cached_messages_are_left_out(database: store.Database, declare: Declare) -> None:
    first, second = await declare(name="one"), await declare(name="two")
    await publish(database, *"abc")
    batch = await first.lease()
    again = await second.lease("ann", 10, known=[(1, 2)], history=batch.history)
    assert (again.seqs, again.keys, again.data) == ([1, 2, 3], [None, None, "c"], [None, None, batch.data[2]])


async def test_a_late_message_is_a_hole_until_it_arrives(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    connection = await connect()
    transaction = connection.transaction()
    await transaction.start()
    await publish(connection, "late")
    await publish(database, "early")
    assert (await reader.lease()).seqs == [2]
    assert (await reader.lease()).seqs == []
    await transaction.commit()
    assert (await reader.lease()).seqs == [1]


async def test_a_seq_that_was_drawn_and_is_not_visible_is_no_message(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, "early")
    await reader.ack_all(await reader.lease())
    connection = await connect()
    transaction = connection.transaction()
    await transaction.start()
    await publish(connection, "late")
    before = await cursor(database)
    assert (await reader.lease()).seqs == []
    assert await cursor(database) == before
    await transaction.commit()
    assert (await reader.lease()).seqs == [2]


@pytest.mark.parametrize("late_first", [True, False])
async def test_a_publisher_in_flight_is_awaited_for_a_moment_and_once(
    database: store.Database, declare: Declare, connect: Connect, late_first: bool
) -> None:
    """It may not notify, since another publisher has notified. But its transaction may stay open for long."""
    reader = await declare()
    connection = await connect()
    transaction = connection.transaction()
    await transaction.start()
    for executor in (connection, database) if late_first else (database, connection):
        await publish(executor, "k")
    found = await reader.lease()
    assert found.due_in == 0.001
    await reader.ack_all(found)
    assert (await reader.lease()).due_in is None
    await transaction.commit()
    assert (await reader.lease()).due_in is None


async def test_a_rate_limit_does_not_wait_for_a_publisher_in_flight(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(rate_limit=100.0)
    connection = await connect()
    transaction = connection.transaction()
    await transaction.start()
    await publish(database, "a")
    await publish(connection, "b")
    assert (await reader.lease()).due_in is None
    await transaction.rollback()


async def version_written(database: store.Database) -> int:
    return (await cursor(database))["version"]


@pytest.mark.parametrize("limit", [1, 2, 3, 30, 40])
async def test_few_messages_of_a_backlog_are_leased_in_their_order(
    database: store.Database, declare: Declare, limit: int
) -> None:
    """From one segment into the next as well."""
    reader = await declare()
    upper = await database.fetchval("select upper from headrace_internal.segments order by lower limit 1")
    await database.fetchval("""select setval('headrace_streams."orders.seq"', $1)""", upper - 51)
    await reader.seek(upper - 51)
    await publish(database, *(f"k.{number}" for number in range(100)))
    seqs: list[int] = []
    while len(seqs) < 100:
        batch = await reader.lease("ann", limit)
        assert len(batch.seqs) <= limit
        assert batch.seqs or batch.more
        assert batch.keys == [f"k.{seq - upper + 50}" for seq in batch.seqs]
        assert batch.more or len(seqs) + len(batch.seqs) == 100
        seqs += batch.seqs
    assert seqs == list(range(upper - 50, upper + 50))
    assert (await reader.lease("ann", limit)).seqs == []


@pytest.mark.parametrize("limit", [1, 2, 50])
async def test_a_seq_that_is_missing_in_a_backlog_is_a_hole(
    database: store.Database, declare: Declare, connect: Connect, limit: int
) -> None:
    reader = await declare()
    connection = await connect()
    transaction = connection.transaction()
    await publish(database, *(f"k.{number}" for number in range(40)))
    await transaction.start()
    await publish(connection, "late")
    await publish(database, *(f"m.{number}" for number in range(40)))
    early = await reader.drain("ann", limit)
    assert early == [*range(1, 41), *range(42, 82)]
    await transaction.commit()
    assert (await reader.lease("ann", limit)).seqs == [41]


@pytest.mark.parametrize("filler", ["", LARGE], ids=["small", "large"])
@pytest.mark.parametrize("limit", [6, 50])
async def test_a_batch_ends_before_a_seq_that_is_missing(
    database: store.Database, declare: Declare, connect: Connect, filler: str, limit: int
) -> None:
    """It mostly commits before the next call. Then it is no hole, which would have to be searched."""
    reader = await declare()
    await publish(database, *(f"k.{number}" for number in range(40)), filler=filler)
    await reader.drain("ann", 40)
    connection = await connect()
    async with connection.transaction():
        await publish(database, *"abc", filler=filler)
        await publish(connection, "late", filler=filler)
        await publish(database, *"de", filler=filler)
        batch = await reader.lease("ann", limit)
        assert (batch.seqs, batch.more, len(batch.data)) == ([41, 42, 43], True, 3)
    assert (await reader.lease("ann", limit)).seqs == [44, 45, 46]
    assert await database.fetchval("select holes from headrace_internal.cursors order by version desc limit 1") == []


@pytest.mark.parametrize("filler", ["", LARGE], ids=["small", "large"])
async def test_a_seq_that_is_missing_among_the_first_half_is_a_hole(
    database: store.Database, declare: Declare, connect: Connect, filler: str
) -> None:
    reader = await declare()
    connection = await connect()
    async with connection.transaction():
        await publish(database, "a", filler=filler)
        await publish(connection, "late", filler=filler)
        await publish(database, *"bc", filler=filler)
        assert (await reader.lease()).seqs == [1, 3, 4]
    assert (await reader.lease()).seqs == [2]


async def test_one_message_waits_for_its_key(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aab")
    first = await reader.lease("ann", 1)
    assert first.seqs == [1]
    assert (await reader.lease("bob", 1)).seqs == [3]
    await reader.nack(first, delay=10)
    await publish(database, *"ac")
    assert (await reader.lease("bob", 1)).seqs == [5]
    assert (await reader.lease("ann", 1)).seqs == []
    reader.clock.advance(10)
    assert await reader.drain("ann", 1) == [1, 2, 4]


async def test_one_message_is_left_out_if_it_is_cached(database: store.Database, declare: Declare) -> None:
    first, second = await declare(name="one"), await declare(name="two")
    await publish(database, *"ab")
    history = (await first.lease()).history
    batches = [await second.lease("ann", 1, known=[(1, 1)], history=history) for _ in range(2)]
    assert [(batch.seqs, batch.keys) for batch in batches] == [([1], [None]), ([2], ["b"])]
    assert [batch.data[0] is None for batch in batches] == [True, False]


async def test_one_message_that_has_expired_is_passed_over(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await store.publish(database, "orders", "a", "1", '{"headrace-expires-in": 1}')
    await publish(database, "b")
    reader.clock.advance(60)
    assert (await reader.drain("ann", 1)) == [2]


@pytest.mark.parametrize("shares", [None, [1]])
async def test_one_message_is_leased_and_settled(
    database: store.Database, declare: Declare, shares: list[int] | None
) -> None:
    reader = await declare()
    for number in range(1, 4):
        await store.publish(database, "orders", "a", str(number), '{"n": "x"}')
        before = await version_written(database)
        batch = await reader.lease("ann", 1, shares=shares)
        assert (batch.seqs, batch.keys, batch.data, batch.headers) == ([number], ["a"], [str(number)], ['{"n": "x"}'])
        assert (batch.attempts, batch.looked_at, batch.more) == (None, 1, True)
        assert await version_written(database) == before + 1
        assert await reader.ack_all(batch) == []


async def test_a_batch_ends_before_the_first_message_that_must_wait(database: store.Database, declare: Declare) -> None:
    """Those that follow it are leased next. Nothing is parked if its key is free by then."""
    reader = await declare()
    await publish(database, "busy")
    ann = await reader.lease("ann")
    await publish(database, *"abc", "busy", *"de")
    batch = await reader.lease("bob")
    assert (batch.seqs, batch.more, await reader.count("parked")) == ([2, 3, 4], True, 0)
    await reader.ack_all(ann)
    assert (await reader.lease("cid")).seqs == [5, 6, 7]


async def test_a_message_that_must_wait_among_the_first_half_is_parked(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, "busy")
    ann = await reader.lease("ann")
    await publish(database, *"ab", "busy", *"def")
    batch = await reader.lease("bob")
    assert (batch.seqs, await reader.count("parked")) == ([2, 3, 5, 6, 7], 1)
    await reader.ack_all(ann)
    assert (await reader.lease("cid")).seqs == [4]


async def test_a_batch_of_shares_ends_before_the_second_message_of_a_key(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, "first")
    await reader.ack_all(await reader.lease())
    await publish(database, *"abcdbef")
    batch = await reader.lease("ann", 6, shares=[3, 3])
    assert (batch.seqs, batch.more) == ([2, 3, 4, 5], True)
    assert await database.fetchval(
        "select array_agg(cardinality(seqs) order by seqs) from headrace_internal.leases"
    ) == [3, 1]


async def test_many_messages_are_left_out_if_they_are_cached(database: store.Database, declare: Declare) -> None:
    first, second = await declare(name="one"), await declare(name="two")
    await publish(database, *(f"k.{number}" for number in range(50)))
    history = (await first.lease()).history
    batch = await second.lease("ann", 50, known=[(1, 20), (31, 40)], history=history)
    cached = [seq for seq, key in zip(batch.seqs, batch.keys, strict=True) if key is None]
    assert cached == [*range(1, 21), *range(31, 41)]
    assert [text is None for text in batch.data] == [key is None for key in batch.keys]


async def test_large_payloads_of_many_messages_are_delivered(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *(f"k.{number}" for number in range(45)))
    await publish(database, "large", filler=LARGE)
    batch = await reader.lease("ann", 60)
    assert batch.seqs == list(range(1, 47))
    assert len(batch.data[-1]) > 20_000
