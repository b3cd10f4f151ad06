"""Ranges: a position is resolved once nothing can appear below it any more, whoever publishes, and how."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import store
from headrace.model.errors import HeadraceError
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace_spark.source.marks import Marks
from tests.conftest import Connect
from tests.support.late import LatePublishers
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio


async def begin(connect: Connect, *keys: str) -> tuple[Any, Any]:
    """A transaction that has published, and is open."""
    connection = await connect()
    transaction = connection.transaction()
    await transaction.start()
    if keys:
        await publish(connection, *keys)
    return connection, transaction


async def mark(database: store.Database) -> Any:
    return await database.fetchrow("select uid, last, open from headrace.range_mark('orders')")


async def is_open(database: store.Database, mark: Any) -> bool:
    return bool(await database.fetchval("select headrace.still_open($1)", mark["open"]))


async def resolved(database: store.Database, after: int = 0) -> int:
    position: int = await database.fetchval("select headrace.resolved('orders', $1)", after)
    return position


async def burn(database: store.Database, *keys: str) -> None:
    """Publish, and roll it back."""
    with suppress(ZeroDivisionError):
        async with database.transaction() as connection:
            await publish(connection, *keys)
            raise ZeroDivisionError


async def plan(
    database: store.Database, first: int | None, last: int, parts: int = 1, *, fail: bool = True, uid: Any = None
) -> list[Any]:
    return await database.fetch(
        "select * from headrace.plan_ranges('orders', $1, $2, '{>}', null, null, $3, $4, $5)",
        first,
        last,
        parts,
        uid,
        fail,
    )


async def read(database: store.Database, ranges: list[Any]) -> list[int]:
    return [row["seq"] for part in ranges for row in await database.fetch(part["query"])]


async def make_old(database: store.Database, below: int) -> None:
    """Let the messages below a seq be two hours older."""
    await database.fetch(
        "update headrace_streams.orders set created_at = created_at - interval '2 hours' where seq < $1", below
    )


class Segments:
    """The stream `orders`, in segments of ten."""

    def __init__(self, database: store.Database) -> None:
        self._database = database

    async def create(self, **policy: Any) -> None:
        """With 35 messages, of which the first 30 are two hours old."""
        stream = await store.create_stream(self._database, StreamSpec(name="orders", **policy))
        for row in await self._database.fetch("delete from headrace.segments returning relation"):
            await self._database.fetch(f"drop table {row[0]}")
        await self._database.fetch(
            "select headrace.add_segment($1, i * 10 + 1, (i + 1) * 10 + 1) from generate_series(0, 9) as i", stream
        )
        await self._database.fetch("select headrace.lay_out($1, 101, 10)", stream)
        await publish(self._database, *(f"k.{n}" for n in range(35)))
        await make_old(self._database, 31)

    async def drop(self) -> int:
        """Let a sweep drop what policy lets go. Returns how many segments."""
        return (await store.sweep(self._database)).segments_dropped


async def test_with_nobody_at_it_all_that_was_drawn_is_resolved(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    assert await resolved(database) == 0
    await publish(database, "a", "b")
    await burn(database, "c")
    assert await resolved(database) == 3
    assert (await mark(database))["open"] == []


async def test_a_late_commit_stops_the_position_before_it_and_no_earlier(
    database: store.Database, connect: Connect
) -> None:
    await store.create_stream(database, "orders")
    await publish(database, "a")
    _, late = await begin(connect, "late")
    await publish(database, "b")
    before = await mark(database)
    assert (before["last"], len(before["open"])) == (3, 1)
    assert await resolved(database) == 1
    assert await is_open(database, before)
    await late.commit()
    assert not await is_open(database, before)
    assert await resolved(database) == 3


async def test_a_rollback_leaves_a_hole_that_stops_nobody(database: store.Database, connect: Connect) -> None:
    await store.create_stream(database, "orders")
    _, late = await begin(connect, "late")
    await publish(database, "a")
    before = await mark(database)
    await late.rollback()
    assert not await is_open(database, before)
    assert await resolved(database) == 2
    assert await read(database, await plan(database, 1, 2)) == [2]


async def test_a_transaction_is_open_until_its_end_whatever_its_savepoints_do(
    database: store.Database, connect: Connect
) -> None:
    await store.create_stream(database, "orders")
    connection, outer = await begin(connect)
    inner = connection.transaction()
    await inner.start()
    await publish(connection, "inner")
    before = await mark(database)
    await inner.rollback()
    assert len(before["open"]) == 1
    assert await is_open(database, before)
    kept = connection.transaction()
    await kept.start()
    await publish(connection, "kept")
    await kept.commit()
    later = await mark(database)
    await publish(database, "a")
    assert await is_open(database, before)
    assert await is_open(database, later)
    assert await resolved(database) == 0
    await outer.commit()
    assert not await is_open(database, later)
    assert await read(database, await plan(database, 1, await resolved(database))) == [2, 3]


async def test_a_prepared_transaction_is_open_under_the_mark_from_before_it(
    database: store.Database, connect: Connect
) -> None:
    await store.create_stream(database, "orders")
    connection = await connect()
    await connection.execute("begin")
    await publish(connection, "late")
    await publish(database, "a")
    before = await mark(database)
    await connection.execute("prepare transaction 'late'")
    after = await mark(database)
    assert before["open"] == after["open"] != []
    assert await is_open(database, before)
    assert "late" in await database.fetchval("select headrace.holders($1)", after["open"])
    assert await resolved(database) == 0
    await (await connect()).execute("commit prepared 'late'")
    assert not await is_open(database, before)
    assert await read(database, await plan(database, 1, await resolved(database))) == [1, 2]


async def test_an_old_transaction_elsewhere_stops_nothing(database: store.Database, connect: Connect) -> None:
    await store.create_stream(database, "orders")
    await store.create_stream(database, "others")
    connection = await connect()
    async with connection.transaction(isolation="repeatable_read"):
        await store.publish(connection, "others", "a", "1")
        await connection.fetch("select from headrace_streams.orders")
        await burn(database, "a")
        await publish(database, "b")
        assert (await mark(database))["open"] == []
        assert await resolved(database) == 2


async def test_a_stream_that_always_has_a_publisher_is_resolved_a_moment_behind(
    database: store.Database, connect: Connect
) -> None:
    await store.create_stream(database, "orders")
    marks = Marks()
    _, previous = await begin(connect, "a")
    for seq in range(2, 6):
        await burn(database, "burnt")  # a hole that would stop who only looks for holes
        seen = await mark(database)
        marks.add(seen["last"], seen["open"])
        _, following = await begin(connect, "a")
        await previous.commit()
        marks.ended(await database.fetchval("select headrace.still_open($1)", list(marks.open)))
        assert marks.position == seen["last"] == 2 * seq - 2
        previous = following
    await previous.rollback()


async def test_a_transaction_that_stays_open_stops_the_stream_at_its_own_first_seq(
    database: store.Database, connect: Connect
) -> None:
    await store.create_stream(database, "orders")
    await publish(database, "a")
    await burn(database, "old hole")
    await publish(database, "a", "a")
    await make_old(database, 4)
    _, late = await begin(connect, "late")
    await publish(database, "a")
    assert await resolved(database) == 4
    assert await resolved(database, 4) == 4
    await late.rollback()


async def test_a_holder_is_told_for_a_person(database: store.Database, connect: Connect) -> None:
    await store.create_stream(database, "orders")
    connection, late = await begin(connect)
    await connection.execute("set local application_name = 'the import'")
    await publish(connection, "late")
    told = await database.fetchval("select headrace.holders($1)", (await mark(database))["open"])
    assert f"process {connection.get_server_pid()} (the import), since 2" in told
    await late.rollback()


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


async def test_a_query_asks_once_whether_all_is_still_there(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await publish(database, *(f"k.{n}" for n in range(50)))
    [part] = await plan(database, 1, 50)
    lines = [
        row[0] for row in await database.fetch("explain (analyze, costs off, timing off, summary off) " + part["query"])
    ]
    assert any("One-Time Filter" in line for line in lines)
    assert any("InitPlan" in line for line in lines)


async def test_what_retention_removed_is_told(database: store.Database) -> None:
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


async def test_dropped_segments_are_no_hole_to_wait_for(database: store.Database, connect: Connect) -> None:
    segments = Segments(database)
    await segments.create(retain_up_to=3600)
    assert await segments.drop() == 3
    _, late = await begin(connect, "late")
    await publish(database, "a")
    assert await resolved(database) == 35
    await late.rollback()


async def test_a_stream_deleted_or_made_anew_is_told(database: store.Database) -> None:
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


async def test_with_one_message_per_key_a_range_holds_what_is_still_there(database: store.Database) -> None:
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
        """select headrace.range_start('orders', 'earliest') as earliest, headrace.range_start('orders', 'latest') as latest,
                  headrace.range_start('orders', null, 2) as seq, headrace.range_start('orders', null, null, $1) as time""",
        hour_ago,
    )
    assert tuple(starts) == (0, 4, 1, 2)
    ends = await database.fetchrow(
        "select headrace.range_end('orders') as latest, headrace.range_end('orders', 3) as seq, headrace.range_end('orders', null, $1) as time",
        hour_ago,
    )
    assert tuple(ends) == (None, 3, 2)
    for lies_ahead in ("range_end('orders', 5)", "range_start('orders', null, 5)"):
        with pytest.raises(HeadraceError, match="lies past the end of the stream 'orders', whose last one is 4"):
            await database.fetchval(f"select headrace.{lies_ahead}")
    for lies_ahead in ("range_end('orders', null, 'infinity')", "range_start('orders', null, null, 'infinity')"):
        with pytest.raises(HeadraceError, match="lies in the future"):
            await database.fetchval(f"select headrace.{lies_ahead}")


async def test_a_limit_counts_messages_and_not_seqs(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await publish(database, "a", "a")
    await burn(database, "x", "x", "x")
    await publish(database, "a", "a")
    limits = [
        await database.fetchval("select headrace.range_limit('orders', 0, 7, $1)", rows) for rows in (1, 2, 3, 4, 9)
    ]
    assert limits == [1, 5, 6, 7, 7]


async def test_a_consumer_that_stands_for_a_reader_moves_forward_alone(database: store.Database) -> None:
    segments = Segments(database)
    await segments.create(retention="interest")
    await store.declare_consumer(database, ConsumerSpec(stream="orders", name="archive"))
    assert await segments.drop() == 0
    confirm = "select headrace.confirm_range('orders', 'archive', $1)"
    assert await database.fetchval(confirm, 15) == 15
    assert await database.fetchval(confirm, 5) == 15
    assert await segments.drop() == 1
    assert await database.fetchval(confirm, 35) == 35
    assert await segments.drop() == 2
    info = await store.consumer(database, "orders", "archive")
    assert (info.position, info.num_pending, info.holes) == (35, 0, 0)


async def test_a_consumer_with_workers_is_no_place_for_a_reader(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    with pytest.raises(HeadraceError, match="There is no consumer 'archive' on the stream 'orders': create it"):
        await database.fetchval("select headrace.confirm_range('orders', 'archive', 1)")
    consumer = await store.declare_consumer(database, ConsumerSpec(stream="orders", name="archive"))
    await publish(database, "a", "b")
    await lease(database, consumer.id)
    with pytest.raises(HeadraceError, match="give the Spark query a consumer of its own"):
        await database.fetchval("select headrace.confirm_range('orders', 'archive', 1)")


async def lease(database: store.Database, consumer: int) -> None:
    from tests.support.readers import Clock, Reader

    reader = Reader(database, ConsumerSpec(stream="orders", name="archive"), consumer, Clock())
    assert (await reader.lease()).seqs == [1, 2]


async def test_tests_are_made_with_quoted_values_and_unknown_ones_refused(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await publish(database, "a'b", "a%b", "c")
    pushed = "select headrace.pushed_condition($1::json)"
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
            "select * from headrace.plan_ranges('orders', 1, 3, '{>}', null, $1::json, 1)", f"[{test}]"
        )
        assert await read(database, rows) == found, test
    for test in (
        '{"column": "xid", "op": "is null"}',
        '{"column": "data", "op": "=", "value": "1"}',
        '{"column": "seq", "op": ";"}',
    ):
        with pytest.raises(HeadraceError, match="can't be made here"):
            await database.fetchval(pushed, f"[{test}]")


@pytest.mark.parametrize("seed", [1, 2])
async def test_ranges_between_resolved_positions_hold_what_was_committed_once(
    database: store.Database, dsn: str, seed: int
) -> None:
    await store.create_stream(database, "orders")
    publishers = LatePublishers(dsn, messages=1500, seed=seed)
    found: Counter[int] = Counter()
    again: Counter[int] = Counter()
    work = asyncio.create_task(publishers.run())
    marks, position, ranges, done = Marks(), 0, [], False
    while not done:
        done = not publishers.publishing
        marks.ended(await database.fetchval("select headrace.still_open($1)", list(marks.open)))
        seen = await mark(database)
        marks.add(seen["last"], seen["open"])
        if len(ranges) % 3 == 0:
            marks.raise_to(await resolved(database, marks.position))
        if marks.position > position:
            ranges.append((position + 1, marks.position))
            found.update(await read(database, await plan(database, position + 1, marks.position)))
            position = marks.position
    await work
    for first, last in ranges:
        again.update(await read(database, await plan(database, first, last, 2)))
    assert set(found) == publishers.committed
    assert max(found.values()) == 1
    assert found == again
    assert len(ranges) > 10
