"""Queries of ranges: they return each message once, report removed messages, and move a consumer
that stands for the reader."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headrace import store, sweep
from headrace.model.errors import HeadraceError
from headrace.model.specs import ConsumerSpec, StreamSpec
from tests.support.ranges import Segments, burn, make_old, mark, plan, read, resolved
from tests.support.readers import Clock, Reader, publish

pytestmark = pytest.mark.asyncio


async def test_ranges_cover_everything_once_and_in_order(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await publish(database, *(f"k.{n}" for n in range(20)))
    await burn(database, "x", "y")
    await publish(database, "z")
    ranges = await plan(database, None, 23, 4)
    assert [(part["first"], part["last"]) for part in ranges] == [(1, 6), (7, 12), (13, 18), (19, 23)]
    assert await read(database, ranges) == [*range(1, 21), 23]
    assert len(await plan(database, None, 23, 100)) == 23
    assert await plan(database, 24, 23, 4) == []


async def test_a_query_checks_once_whether_all_messages_still_exist(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await publish(database, *(f"k.{n}" for n in range(50)))
    [part] = await plan(database, 1, 50)
    lines = [
        row[0] for row in await database.fetch("explain (analyze, costs off, timing off, summary off) " + part["query"])
    ]
    assert lines[0].startswith("Limit")
    assert not any("Sort" in line for line in lines)


async def test_messages_that_retention_removed_are_reported(database: store.Database) -> None:
    segments = Segments(database)
    await segments.create(retain_up_to=3600)
    planned = await plan(database, 1, 35)
    tolerant = await plan(database, 1, 35, fail=False)
    later = await plan(database, 31, 35)
    assert await segments.drop() == 3
    with pytest.raises(HeadraceError, match="the seqs from 1 to 30 were removed by retention before they were read"):
        await read(database, planned)
    with pytest.raises(HeadraceError, match="failOnDataLoss=false"):
        await plan(database, 30, 35)
    assert await read(database, tolerant) == await read(database, later) == list(range(31, 36))
    assert await read(database, await plan(database, None, 35)) == list(range(31, 36))
    assert await resolved(database) == 35


async def test_a_range_with_all_segments_dropped_is_reported(database: store.Database) -> None:
    segments = Segments(database)
    await segments.create(retain_up_to=3600)
    planned = await plan(database, 1, 35, 4)
    tolerant = await plan(database, 1, 35, 4, fail=False)
    assert await segments.drop() == 3
    for part in planned:
        with pytest.raises(HeadraceError, match=f"the seqs from {part['first']} to 30 were removed by retention"):
            await read(database, [part])
    assert await read(database, tolerant) == list(range(31, 36))


@pytest.mark.parametrize("compacted", [False, True])
async def test_messages_removed_one_by_one_are_reported_to_a_reader_with_a_position(
    database: store.Database, compacted: bool
) -> None:
    await store.create_stream(database, StreamSpec(name="orders", retain_up_to=3600, one_message_per_key=compacted))
    await publish(database, *(f"k.{n}" for n in range(10)))
    planned = await plan(database, 4, 10)
    tolerant = await plan(database, 4, 10, fail=False)
    earliest = await plan(database, None, 10)
    await make_old(database, 8)
    assert (await sweep(database)).messages_trimmed == 7
    for first in (4, 7):
        with pytest.raises(HeadraceError, match=f"the seqs from {first} to 7 were removed by retention"):
            await plan(database, first, 10)
    with pytest.raises(HeadraceError, match="the seqs from 4 to 7 were removed by retention before they were read"):
        await read(database, planned)
    for ranges in (tolerant, earliest, await plan(database, 8, 10), await plan(database, None, 10)):
        assert await read(database, ranges) == [8, 9, 10]


async def test_a_stream_deleted_or_created_again_is_reported(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await publish(database, "a")
    uid = (await mark(database))["uid"]
    planned = await plan(database, 1, 1)
    await store.delete_stream(database, "orders")
    await store.create_stream(database, "orders")
    await publish(database, "a")
    with pytest.raises(HeadraceError, match="was deleted while it was read"):
        await read(database, planned)
    with pytest.raises(HeadraceError, match="deleted and created anew"):
        await plan(database, 1, 1, uid=uid)


async def test_with_one_message_per_key_a_range_holds_the_remaining_messages(database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="orders", one_message_per_key=True))
    await publish(database, "a", "b")
    await publish(database, "a")
    assert await resolved(database) == 3
    assert await read(database, await plan(database, 1, 3, 2)) == [2, 3]
    assert await read(database, await plan(database, 1, 1)) == []


async def test_a_range_begins_and_ends_at_a_seq_or_a_time(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await publish(database, "a", "a", "a", "a")
    await make_old(database, 3)
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    starts = await database.fetchrow(
        """select headrace_internal.range_start('orders', 'earliest') as earliest, headrace_internal.range_start('orders', 'latest') as latest,
                  headrace_internal.range_start('orders', null, 2) as seq, headrace_internal.range_start('orders', null, null, $1) as time""",
        hour_ago,
    )
    assert tuple(starts) == (0, 4, 1, 2)
    ends = await database.fetchrow(
        "select headrace_internal.range_end('orders') as latest, headrace_internal.range_end('orders', 3) as seq, headrace_internal.range_end('orders', null, $1) as time",
        hour_ago,
    )
    assert tuple(ends) == (None, 3, 2)
    for lies_ahead in ("range_end('orders', 5)", "range_start('orders', null, 5)"):
        with pytest.raises(HeadraceError, match="lies past the end of the stream 'orders', whose last one is 4"):
            await database.fetchval(f"select headrace_internal.{lies_ahead}")
    for lies_ahead in ("range_end('orders', null, 'infinity')", "range_start('orders', null, null, 'infinity')"):
        with pytest.raises(HeadraceError, match="lies in the future"):
            await database.fetchval(f"select headrace_internal.{lies_ahead}")


async def test_a_limit_counts_messages_and_not_seqs(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await publish(database, "a", "a")
    await burn(database, "x", "x", "x")
    await publish(database, "a", "a")
    limits = [
        await database.fetchval("select headrace_internal.range_limit('orders', 0, 7, $1)", rows)
        for rows in (1, 2, 3, 4, 9)
    ]
    assert limits == [1, 5, 6, 7, 7]


async def test_a_limit_counts_bytes_and_a_large_message_comes_alone(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    sql = "select headrace.publish('orders', 'k', to_json(repeat('x', case when n = 4 then 900 else 95 end))) from generate_series(1, 8) as n"
    await database.fetch(sql)
    size = "select octet_length(key) + pg_column_size(data) from headrace_streams.orders where seq = 1"
    small = await database.fetchval(size)
    limits = [
        await database.fetchval("select headrace_internal.range_limit('orders', $1, 8, $2, $3)", after, rows, given)
        for after, rows, given in (
            (0, 9, small * 2),
            (0, 9, small * 2 - 1),
            (0, 1, small * 2),
            (3, 9, 1),
            (4, 9, 10_000),
        )
    ]
    assert limits == [2, 1, 1, 4, 8]


async def test_a_consumer_that_stands_for_a_reader_only_moves_forward(database: store.Database) -> None:
    segments = Segments(database)
    await segments.create(retention="interest")
    await store.declare_consumer(database, ConsumerSpec(stream="orders", name="archive"))
    assert await segments.drop() == 0
    confirm = "select headrace_internal.confirm_range('orders', 'archive', $1)"
    assert await database.fetchval(confirm, 15) == 15
    assert await database.fetchval(confirm, 5) == 15
    assert await segments.drop() == 1
    assert await database.fetchval(confirm, 35) == 35
    assert await segments.drop() == 2
    info = await store.consumer(database, "orders", "archive")
    assert (info.position, info.num_pending, info.holes) == (35, 0, 0)


async def test_a_consumer_with_workers_can_not_stand_for_a_reader(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    with pytest.raises(HeadraceError, match="There is no consumer 'archive' on the stream 'orders': create it"):
        await database.fetchval("select headrace_internal.confirm_range('orders', 'archive', 1)")
    consumer = await store.declare_consumer(database, ConsumerSpec(stream="orders", name="archive"))
    await publish(database, "a", "b")
    await lease(database, consumer.id)
    with pytest.raises(HeadraceError, match="give the Spark query a consumer of its own"):
        await database.fetchval("select headrace_internal.confirm_range('orders', 'archive', 1)")


async def lease(database: store.Database, consumer: int) -> None:
    reader = Reader(database, ConsumerSpec(stream="orders", name="archive"), consumer, Clock())
    assert (await reader.lease()).seqs == [1, 2]


async def test_filter_tests_quote_their_values_and_unknown_tests_are_refused(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await publish(database, "a'b", "a%b", "c")
    pushed = "select headrace_internal.pushdown_condition($1::json)"
    for test, found in (
        ('{"column": "key", "op": "=", "value": "a\'b"}', [1]),
        ('{"column": "key", "op": "starts", "value": "a"}', [1, 2]),
        ('{"column": "key", "op": "contains", "value": "%"}', [2]),
        ('{"column": "key", "op": "ends", "value": "b", "not": true}', [3]),
        ('{"column": "seq", "op": "in", "value": ["1", "3"]}', [1, 3]),
        ('{"column": "headers", "op": "is not null"}', []),
        ('{"column": "created_at", "op": ">", "value": "2020-01-01T00:00:00+00:00"}', [1, 2, 3]),
    ):
        rows = await database.fetch(
            "select * from headrace_internal.plan_ranges('orders', 1, 3, $1::json, 1)", f'{{"tests": [{test}]}}'
        )
        assert await read(database, rows) == found, test
    for test in (
        '{"column": "has_xid", "op": "is null"}',
        '{"column": "data", "op": "=", "value": "1"}',
        '{"column": "seq", "op": ";"}',
    ):
        with pytest.raises(HeadraceError, match="can't be made here"):
            await database.fetchval(pushed, f"[{test}]")
