"""Segments: streams are partitioned, and publishing and leasing work across the boundaries."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import store
from headrace.model.specs import StreamSpec
from tests.conftest import Connect, Declare
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio


async def skip_to(database: store.Database, seq: int) -> None:
    """Set the seq of the next message, as if the messages before it had been rolled back."""
    await database.fetchval("select setval('headrace_streams.\"orders.seq\"', $1, false)", seq)


async def bounds(database: store.Database, stream: str = "orders") -> list[tuple[int, int | None]]:
    rows = await database.fetch(
        "select lower, upper from headrace_internal.segments join headrace_internal.streams s on s.id = stream_id where s.name = $1 order by 1",
        stream,
    )
    return [tuple(row) for row in rows]


async def small(database: store.Database) -> None:
    """Use segments of 1,000, 16,000, 256,000 and the rest."""
    if any(stream.name == "orders" for stream in await store.streams(database)):
        await store.delete_stream(database, "orders")  # it has wider ones
    await store.create_stream(database, StreamSpec(name="orders", max_storage=1_000_000))
    assert await bounds(database) == [(1, 1001), (1001, 17001), (17001, 273001), (273001, None)]


async def test_segments_grow_and_the_last_has_no_end(database: store.Database) -> None:
    await small(database)
    assert await bounds(database) == [(1, 1001), (1001, 17001), (17001, 273001), (273001, None)]


async def test_a_backlog_is_read_across_segments_in_order(database: store.Database, declare: Declare) -> None:
    await small(database)
    reader = await declare()
    for _ in range(25):
        await publish(database, *(f"k{n % 7}" for n in range(100)))
    assert await reader.drain(limit=90) == list(range(1, 2501))


async def test_empty_segments_are_passed_over(database: store.Database, declare: Declare) -> None:
    await small(database)
    reader = await declare()
    await publish(database, "a", "b")
    await skip_to(database, 300_000)  # three segments ahead
    await publish(database, "a", "b")
    assert await reader.drain() == [1, 2, 300_000, 300_001]


async def test_a_publish_across_a_boundary_is_one_publish(database: store.Database, declare: Declare) -> None:
    await small(database)
    reader = await declare()
    await skip_to(database, 990)
    await publish(database, *["a"] * 30)
    assert (await reader.lease(limit=1000)).seqs == list(range(990, 1020))


async def test_a_late_commit_below_a_boundary_is_delivered(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    await small(database)
    reader = await declare()
    await skip_to(database, 995)
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, *["late"] * 10)
    await skip_to(database, 18_000)
    await publish(database, "a")
    assert await reader.drain() == [18_000]
    await transaction.commit()
    assert await reader.drain() == list(range(995, 1005))


async def test_parked_messages_are_found_in_whichever_segment_they_are(
    database: store.Database, declare: Declare
) -> None:
    await small(database)
    reader = await declare()
    seqs = [1, 1500, 20_000, 300_000]
    for seq in seqs:
        await skip_to(database, seq)
        await publish(database, "a")
    batches = [await reader.lease() for _ in range(3)]  # a call reads two segments at most
    assert [seq for batch in batches for seq in batch.seqs] == seqs
    for batch in batches:
        await reader.nack(batch)
    assert (await reader.lease()).seqs == seqs


async def test_a_selective_filter_crosses_segments(database: store.Database, declare: Declare) -> None:
    await small(database)
    reader = await declare(filters=("wanted",))
    for _ in range(3):
        await publish(database, *["other"] * 500)
    await publish(database, "wanted")
    assert await reader.drain(look=100) == [1501]


async def test_a_call_that_leases_nothing_says_that_a_later_segment_may_have_more(
    database: store.Database, declare: Declare
) -> None:
    """A call reads two segments at most, which may have few messages, all of them unwanted."""
    await small(database)
    reader = await declare(filters=("wanted",))
    for seq, key in ((999, "other"), (16_999, "other"), (17_002, "wanted")):
        await skip_to(database, seq)
        await publish(database, key)
    batch = await reader.lease()
    assert (batch.seqs, batch.more) == ([], True)
    assert await reader.drain() == [17_002]


async def plan(connection: Any, query: str) -> str:
    return "\n".join(row[0] for row in await connection.fetch(f"explain {query}"))


async def test_a_query_for_some_seqs_touches_their_segments_only(database: store.Database) -> None:
    await small(database)
    shown = await plan(database, "select * from headrace_streams.orders where seq between 5 and 2000")
    assert [lower for lower in (1, 1001, 17001, 273001) if f'orders.{lower}"' in shown] == [1, 1001], shown
