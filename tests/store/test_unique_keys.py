"""Unique keys: a message is not published while the last one with the same unique key is pending."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from headrace import store, sweep
from headrace.model import conditions
from headrace.model.errors import InvalidInput, UnknownStream
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.specs import StreamSpec
from headrace.store.messages.replay import Selection
from tests.conftest import Connect, Declare
from tests.store.test_bounded_cost import empty_by_statistics, touched
from tests.support.readers import publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


async def put(executor: Any, unique_key: str = "x", key: str = "a", **more: Any) -> int | None:
    """Publish a message under a unique key, and return its seq or that of the one that is pending."""
    return await store.publish(
        executor, "orders", key, '{"n": 1}', options=PublishOptions(unique_key=unique_key, **more)
    )


async def is_pending(executor: Any, seq: int = 1, **more: Any) -> bool:
    """Whether the message 1, the only one of the stream, keeps another one of its unique key from being published."""
    return await put(executor, **more) == seq


async def remembered(database: store.Database) -> int:
    found: int = await database.fetchval("select count(*) from headrace_internal.unique_keys")
    return found


# --- pending


async def test_a_message_is_pending_from_its_publication_to_its_ack(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    assert await put(database) == 1
    assert await is_pending(database), "not read yet"
    batch = await reader.lease()
    assert await is_pending(database), "in flight"
    await reader.nack(batch, delay=60.0)
    assert await is_pending(database), "parked until its next attempt"
    reader.clock.advance(60)
    await reader.ack_all(await reader.lease())
    assert await put(database) == 2


async def test_an_expired_message_is_pending_only_while_it_is_in_flight(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await put(database, expires_in=3_000_000_000)
    batch = await reader.lease()
    await database.fetch("update headrace_streams.orders set created_at = created_at - interval '100 years'")
    assert await is_pending(database), "in flight"
    await reader.nack(batch, delay=60.0)
    assert await put(database) == 2


async def test_a_message_behind_another_of_its_key_or_of_a_paused_consumer_is_pending(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await put(database)
    await reader.nack(await reader.lease(), delay=60.0)
    assert await put(database, "y") == 2
    assert (await reader.drain(), await reader.count("tails")) == ([], 1)
    assert await is_pending(database, 2, unique_key="y")
    await store.pause(database, reader.id)
    assert await put(database, "z") == 3
    assert await is_pending(database, 3, unique_key="z")


async def test_a_message_is_pending_until_all_consumers_are_done_with_it(
    database: store.Database, declare: Declare
) -> None:
    await store.create_stream(database, "other")
    await store.publish(database, "other", "a", "1", options=PublishOptions(unique_key="x"))
    await put(database)
    assert await is_pending(database), "it waits for the first consumer of the stream"
    fast, slow, deleted = await declare("fast"), await declare("slow"), await declare("deleted")
    await fast.drain()
    assert await is_pending(database)
    await slow.drain()
    assert await is_pending(database)
    await database.fetchval("select headrace_internal.delete_consumer($1, true)", deleted.id)
    assert await put(database) == 2


async def test_a_message_that_commits_late_is_pending_although_the_position_has_passed_it(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    assert await put(late) == 1
    assert await put(database, "y") == 2
    assert await reader.drain() == [2]
    await transaction.commit()
    assert await is_pending(database)
    assert await reader.drain() == [1]
    assert await put(database) == 3


async def test_messages_to_be_replayed_or_before_a_new_position_are_pending_again(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await put(database)
    await reader.drain()
    await store.replay(database, reader.id, Selection())
    assert await is_pending(database), "replayed"
    await reader.drain()
    await reader.seek(0)
    assert await is_pending(database), "above the position"
    await reader.drain()
    assert await put(database) == 2
    await reader.seek(None)
    assert await put(database) == 3, "passed by"


async def test_a_message_that_no_consumer_wants_is_not_pending(database: store.Database, declare: Declare) -> None:
    await declare("by-key", filters=("b.>",))
    await declare("by-content", where=conditions.parse("data.n > 10"))
    assert [await put(database), await put(database)] == [1, 2]
    await declare("by-content-too", where=conditions.parse("data.n = 1"), deliver_policy="new")
    assert [await put(database), await put(database)] == [3, 3]


@pytest.mark.parametrize("on_exhausted", ["dead_letter", "block"])
async def test_a_message_that_failed_for_good_is_not_pending(
    database: store.Database, declare: Declare, on_exhausted: str
) -> None:
    reader = await declare(max_deliver=1, ack_wait=10.0, on_exhausted=on_exhausted)
    await put(database)
    await reader.lease()
    reader.clock.advance(11)
    assert await is_pending(database), "its worker died, and its lease was not looked at"
    await reader.lease()
    assert await put(database) == 2
    if on_exhausted == "dead_letter":
        await reader.reject(await reader.lease())
        await reader.redrive(1)
        assert await put(database) == 3, "the last message counts, and the one that was redriven is another"


async def test_an_ack_counts_when_its_transaction_commits(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await put(database)
    batch = await reader.lease(limit=2, shares=[1, 1])
    other = await connect()
    for end in ("rollback", "commit"):
        transaction = other.transaction()
        await transaction.start()
        await reader.ack_within(other, batch)
        assert await is_pending(database)
        await getattr(transaction, end)()
    assert await put(database) == 2


async def test_waiting_ignores_messages_in_flight_and_no_others(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await put(database)
    assert await is_pending(database, unique_while="waiting")
    batch = await reader.lease()
    assert await is_pending(database)
    await reader.nack(batch, delay=60.0)
    assert await is_pending(database, unique_while="waiting")
    reader.clock.advance(60)
    await reader.lease()
    assert await put(database, unique_while="waiting") == 2
    assert await put(database) == 2


async def test_a_message_that_retention_removed_is_not_pending(database: store.Database, declare: Declare) -> None:
    await declare()
    await store.edit_stream(database, StreamSpec(name="orders", retain_up_to=60.0))
    await put(database)
    swept = await sweep(database, now=datetime.now(UTC) + timedelta(hours=1))
    assert (swept.messages_trimmed, swept.unique_keys_forgotten) == (1, 1)
    assert await put(database) == 2


# --- many, later, and other kinds of streams


async def test_a_batch_leaves_out_pending_and_repeated_unique_keys(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await put(database)
    published = await store.publish_many(
        database,
        "orders",
        list("abcdef"),
        list("123456"),
        options=PublishOptions.of_many(len(list("123456")), unique_keys=["x", "y", None, "y", "z", None]),
    )
    assert published == 4
    assert await reader.drain() == [1, 2, 3, 4, 5]
    many: dict[str, Any] = {
        "keys": ["a"] * 1_100,
        "data": ["1"] * 1_100,
        "options": [PublishOptions(unique_key=f"u{n}") for n in range(1_100)],
    }
    for published in (1_100, 0):  # more than fit into one chunk of other messages
        assert await store.publish_many(database, "orders", **many) == published
    assert (await sweep(database)).unique_keys_forgotten == 3


async def test_a_scheduled_message_is_pending_before_and_after_its_time(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    now = datetime.now(UTC)
    later = now + timedelta(hours=1)
    published = await store.publish_many(
        database, "orders", list("abcd"), list("1234"),
        options=[PublishOptions(unique_key=key, deliver_at=due)
                 for key, due in zip(["x", "y", None, "x"], [later, now, later, now], strict=True)],
    )  # fmt: skip
    assert (published, await reader.drain()) == (3, [1])
    assert [await put(database), await put(database, unique_while="waiting", deliver_at=later)] == [None, None]
    assert (await sweep(database)).unique_keys_forgotten == 1
    assert await put(database) is None
    assert (await sweep(database, now=later)).published == 2
    assert await is_pending(database, 2)
    assert await reader.drain() == [2, 3]
    assert await put(database, deliver_at=now) == 4
    assert await put(database, "z", deliver_at=later) is None
    await database.fetch("delete from headrace_internal.scheduled")
    assert await put(database, "z") == 5, "a user deleted it"


async def test_with_one_message_per_key_a_newer_one_takes_the_place_of_the_pending_one(
    database: store.Database,
) -> None:
    await store.create_stream(database, StreamSpec(name="orders", one_message_per_key=True, dedupe=True))
    assert [await put(database), await put(database)] == [1, 1]
    assert await store.publish(database, "orders", "a", '{"n": 2}') == 2
    assert await put(database) == 3
    assert (
        await store.publish_many(
            database,
            "orders",
            ["a", "b"],
            ['{"n": 1}', "1"],
            options=PublishOptions.of_many(len(['{"n": 1}', "1"]), unique_keys=["y", "z"]),
        )
        == 1
    )
    assert [await put(database, "y"), await put(database, "z", "b")] == [3, 4]


# --- transactions


async def test_a_unique_key_of_a_publish_that_was_rolled_back_is_free(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    await declare()
    other = await connect()
    transaction = other.transaction()
    await transaction.start()
    await put(other)
    waiting = await start(put(database))
    await until_blocked(database, by=other)
    await transaction.rollback()
    assert await waiting == 2


async def test_who_replaces_a_message_that_is_done_waits_for_who_came_first(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await put(database)
    await reader.drain()
    other = await connect()
    for end, expected in (("rollback", 3), ("commit", 4)):
        transaction = other.transaction()
        await transaction.start()
        await put(other)
        waiting = await start(put(database))
        await until_blocked(database, by=other)
        await getattr(transaction, end)()
        assert await waiting == expected
        await reader.drain()


async def test_a_publish_that_finds_a_pending_message_waits_for_nobody_and_sees_its_own(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    await declare()
    await put(database)
    other = await connect()
    async with other.transaction():
        assert await is_pending(other)
        assert await is_pending(database)
        assert [await put(other, "y"), await put(other, "y")] == [2, 2]


async def test_publishers_at_the_same_time_publish_once(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    for expected in (1, 2, 3):
        assert set(await asyncio.gather(*(put(database) for _ in range(8)))) == {expected}
        assert await reader.drain() == [expected]


async def test_publishers_of_the_same_unique_keys_in_other_orders_do_not_deadlock(
    dsn: str, database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    keys = [f"u{n}" for n in range(40)]
    connections = [await asyncpg.connect(dsn) for _ in range(3)]

    async def publish_from(connection: Any, turn: int) -> int:
        order = keys[turn * 7 :] + keys[: turn * 7]
        return await store.publish_many(
            connection,
            "orders",
            ["a"] * 40,
            ["1"] * 40,
            options=PublishOptions.of_many(len(["1"] * 40), unique_keys=order),
        )

    try:
        for _ in range(4):
            published = await asyncio.gather(*(publish_from(one, turn) for turn, one in enumerate(connections)))
            assert sum(published) == 40
            await reader.drain()
    finally:
        for connection in connections:
            await connection.close()


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_under_a_stricter_isolation_two_publishers_do_not_both_publish(
    database: store.Database, declare: Declare, connect: Connect, isolation: Any
) -> None:
    await declare()
    other = await connect()
    async with other.transaction(isolation=isolation):
        await other.fetchval("select count(*) from headrace_streams.orders")
        await put(database)
        with pytest.raises(asyncpg.SerializationError):
            await put(other)


# --- maintenance


async def test_maintenance_looks_at_a_bounded_number_of_keys(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    number = await database.fetchval("select id from headrace_internal.streams")
    await store.publish_many(
        database,
        "orders",
        ["a"] * 5,
        ["1"] * 5,
        options=PublishOptions.of_many(len(["1"] * 5), unique_keys=list("12345")),
    )
    assert await store.delete_done_unique_keys(database, number, "", 5) == (0, "5")
    await reader.drain()
    assert await store.delete_done_unique_keys(database, number, "", 2) == (2, "2")
    assert await store.delete_done_unique_keys(database, number, "2", 2) == (2, "4")
    assert await store.delete_done_unique_keys(database, number, "4", 2) == (1, None)
    assert await store.streams_with_unique_keys(database) == []


async def test_maintenance_leaves_keys_that_a_publisher_has_taken_and_waits_for_none(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await put(database)
    await put(database, "y")
    await reader.drain()
    other = await connect()
    transaction = other.transaction()
    await transaction.start()
    assert await put(other) == 3
    assert (await sweep(database)).unique_keys_forgotten == 1
    waiting = await start(put(database))
    await until_blocked(database, by=other)
    await transaction.commit()
    assert await waiting == 3
    assert await remembered(database) == 1


async def test_a_key_that_maintenance_deletes_while_a_publisher_waits_for_it_is_published_once(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await put(database)
    await reader.drain()
    maintenance = await connect()
    transaction = maintenance.transaction()
    await transaction.start()
    assert (await maintenance.fetchval("select deleted from headrace_internal.delete_done_unique_keys(1)")) == 1
    waiting = [await start(put(database)) for _ in range(2)]
    await until_blocked(database, by=maintenance)
    await transaction.commit()
    assert [await one for one in waiting] == [2, 2]


async def test_a_key_that_is_published_again_and_again_costs_no_more_beside_an_old_snapshot(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    old, own = await connect(), await connect()
    costs = []
    async with old.transaction(isolation="repeatable_read", readonly=True):
        await old.fetchval("select 1 from headrace_internal.unique_keys")
        for _ in range(30):
            costs.append(await touched(own, lambda: put(own)))
            assert len(await reader.drain()) == 1
    assert costs[-1] <= costs[2] + 5, costs
    assert await remembered(database) == 1


async def test_what_waits_in_the_stream_costs_a_publisher_nothing(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(max_ack_pending=5_000)
    own = await connect()
    costs = []
    for count in (20, 2_000):
        await publish(database, *[f"{count}.{n}" for n in range(count)])
        await reader.nack(await reader.lease(limit=count), delay=3600.0)
        seq = await put(database, str(count), key=f"{count}.1")  # behind a parked one
        await reader.drain()
        await empty_by_statistics(own)
        costs.append(await touched(own, lambda seq=seq, count=count: is_pending(own, seq, unique_key=str(count))))  # type: ignore[misc]
    assert costs[1] <= costs[0] + 5, costs


# --- errors


async def test_wrong_arguments_say_what_would_be_right(database: store.Database, declare: Declare) -> None:
    await declare()
    for wrong in ("", "x" * 257, "é" * 129, "half\ud800", "nul\0"):
        with pytest.raises(InvalidInput, match="1 to 256 bytes") as error:
            await put(database, wrong)
        assert error.value.field == "unique_key"
    for wrong in ("", "x" * 257, "é" * 129):
        with pytest.raises(InvalidInput, match="1 to 256 bytes"):
            await database.fetchval("select headrace.publish_unique('orders', 'a', '1', $1)", wrong)
    with pytest.raises(InvalidInput, match="'pending', or 'waiting'"):
        await put(database, unique_while="running")
    with pytest.raises(InvalidInput, match='"pending", or "waiting"'):
        await database.fetchval("select headrace.publish_unique('orders', 'a', '1', 'x', p_unique_while => 'running')")
    with pytest.raises(InvalidInput, match="needs a unique key"):
        await store.publish(database, "orders", "a", "1", options=PublishOptions(unique_while="waiting"))
    with pytest.raises(InvalidInput, match="Pass one of the two"):
        await put(database, message_id="m")
    with pytest.raises(UnknownStream):
        await store.publish(database, "nowhere", "a", "1", options=PublishOptions(unique_key="x"))
    with pytest.raises(InvalidInput):
        await put(database, key="a..b")
    assert await remembered(database) == 0
    sql = "select headrace.publish_unique('orders', 'a', '1', null)"
    seqs = [await database.fetchval(sql), await database.fetchval(sql)]
    assert seqs[0] < seqs[1], "without a unique key it is published in any case"
