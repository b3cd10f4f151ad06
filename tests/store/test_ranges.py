"""Resolved positions: a position is resolved once no message can appear below it, however messages
are published."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from headrace import store
from headrace_spark.positions.marks import Marks
from tests.conftest import Connect
from tests.support.late import LatePublishers
from tests.support.ranges import Segments, begin, burn, is_open, make_old, mark, plan, read, resolved
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio


async def test_without_open_publishers_all_drawn_seqs_are_resolved(database: store.Database) -> None:
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


async def test_the_hole_of_a_rollback_does_not_stop_the_position(database: store.Database, connect: Connect) -> None:
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
    assert "late" in await database.fetchval("select headrace_internal.describe_transactions($1)", after["open"])
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


async def test_a_stream_that_always_has_an_open_publisher_is_resolved_with_a_short_delay(
    database: store.Database, connect: Connect
) -> None:
    await store.create_stream(database, "orders")
    marks = Marks()
    _, previous = await begin(connect, "a")
    for seq in range(2, 6):
        await burn(database, "burnt")  # a hole that would stop a search for holes
        seen = await mark(database)
        marks.add(seen["last"], seen["open"])
        _, following = await begin(connect, "a")
        await previous.commit()
        marks.ended(await database.fetchval("select headrace_internal.still_open_xids($1)", list(marks.open)))
        assert marks.position == seen["last"] == 2 * seq - 2
        previous = following
    await previous.rollback()


async def test_a_transaction_that_stays_open_stops_the_stream_at_its_own_first_seq(
    database: store.Database, connect: Connect
) -> None:
    await store.create_stream(database, "orders")
    await publish(database, "a")
    await burn(database, "old_hole")
    await publish(database, "a", "a")
    await make_old(database, 4)
    _, late = await begin(connect, "late")
    await publish(database, "a")
    assert await resolved(database) == 4
    assert await resolved(database, 4) == 4
    await late.rollback()


async def test_holders_are_described_for_an_operator(database: store.Database, connect: Connect) -> None:
    await store.create_stream(database, "orders")
    connection, late = await begin(connect)
    await connection.execute("set local application_name = 'the import'")
    await publish(connection, "late")
    told = await database.fetchval("select headrace_internal.describe_transactions($1)", (await mark(database))["open"])
    assert f"process {connection.get_server_pid()} (the import), since 2" in told
    await late.rollback()


async def test_dropped_segments_do_not_stop_the_position(database: store.Database, connect: Connect) -> None:
    segments = Segments(database)
    await segments.create(retain_up_to=3600)
    assert await segments.drop() == 3
    _, late = await begin(connect, "late")
    await publish(database, "a")
    assert await resolved(database) == 35
    await late.rollback()


async def test_a_commit_during_the_search_for_a_position_skips_no_message(
    database: store.Database, connect: Connect
) -> None:
    """The fourth was the oldest visible message. While the search looks for the message before it,
    the third becomes visible too."""
    await store.create_stream(database, "orders")
    (_, first), (_, _), (_, third) = [await begin(connect, key) for key in ("first", "second", "third")]
    await publish(database, "fourth")
    await database.fetch(
        "create or replace function headrace_internal.seq_near(p_stream headrace_internal.streams, p_time timestamptz) returns bigint language sql stable"
        " as 'select 4::bigint'"
    )
    await first.commit()
    await third.commit()
    assert await resolved(database) == 1


@pytest.mark.parametrize("seed", [1, 2])
async def test_ranges_between_resolved_positions_hold_each_committed_message_once(
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
        marks.ended(await database.fetchval("select headrace_internal.still_open_xids($1)", list(marks.open)))
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
    assert len(ranges) > 1, "nothing was read while messages were published"
