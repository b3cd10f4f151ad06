"""The plans of the two readers, without Spark: where a read ends, what it waits for, and what it may lose."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql.datasource import Filter, GreaterThan, LessThan, LessThanOrEqual

from headrace import store, sweep
from headrace.model.errors import InvalidInput
from headrace.model.specs import StreamSpec
from headrace_spark.source.options import Options
from headrace_spark.source.reader import HeadraceReader
from headrace_spark.source.rows import SCHEMA
from headrace_spark.source.streaming import HeadraceStreamReader
from tests.conftest import Connect
from tests.runtime.running import eventually
from tests.spark.test_source_ranges import hang_up
from tests.support.ranges import begin, make_old
from tests.support.readers import publish
from tests.support.waiting import start

pytestmark = pytest.mark.asyncio

SEQ = ("seq",)


def options(dsn: str, **given: Any) -> Options:
    return Options.of({"database": dsn, "stream": "orders", **{name: str(value) for name, value in given.items()}})


def found(dsn: str, filters: Sequence[Filter] = (), **given: Any) -> list[int]:
    """Return the seqs that a read finds."""
    reader = HeadraceReader(options(dsn, **given), SCHEMA)
    assert list(reader.pushFilters(list(filters))) == []
    return [seq for part in reader.partitions() for seq in seqs(reader, part)]


def seqs(reader: Any, part: Any) -> list[int]:
    return [seq for batch in reader.read(part) for seq in batch.column("seq").to_pylist()]


async def test_what_was_published_late_and_after_the_end_is_not_read(
    dsn: str, database: store.Database, connect: Connect
) -> None:
    async def waits() -> bool:
        sql = """select exists (select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
                                and query like '%still_open%')"""
        return bool(await database.fetchval(sql))

    await store.create_stream(database, "orders")
    await publish(database, "a")
    time = await database.fetchval("select clock_timestamp()")
    _, late = await begin(connect, "late")
    await publish(database, "b")
    # Once the reader waits for the late transaction, the end is before message 3. After the late commit
    # it is before message 2.
    reading = await start(asyncio.to_thread(found, dsn, end=time.isoformat(), settleTimeout="60s"))
    await eventually(waits)
    await late.commit()
    assert await reading == [1]


async def test_a_filter_of_seqs_waits_for_no_transaction_above_them(
    dsn: str, database: store.Database, connect: Connect
) -> None:
    await store.create_stream(database, "orders")
    await publish(database, "a", "b", "c")
    _, late = await begin(connect, "late")
    await publish(database, "d")
    filters = [LessThanOrEqual(SEQ, 2)]
    assert await asyncio.wait_for(asyncio.to_thread(found, dsn, filters, settleTimeout="1h"), 60) == [1, 2]
    await late.rollback()


@pytest.mark.parametrize(
    ("filters", "seqs_"),
    [
        ([GreaterThan(SEQ, 2**63 - 1)], []),
        ([LessThan(SEQ, -(2**63))], []),
        ([LessThan(SEQ, -(2**63) + 1)], []),
        ([LessThan(SEQ, 1)], []),
        ([GreaterThan(SEQ, 2), LessThan(SEQ, 2)], []),
        ([GreaterThan(SEQ, -(2**63)), LessThan(SEQ, 2**63 - 1)], [1, 2, 3]),
    ],
)
async def test_impossible_seqs_are_not_found(
    dsn: str, database: store.Database, filters: list[Filter], seqs_: list[int]
) -> None:
    await store.create_stream(database, "orders")
    await publish(database, "a", "b", "c")
    assert await asyncio.to_thread(found, dsn, filters) == seqs_


async def test_from_the_earliest_on_a_query_begins_although_messages_go_all_the_time(
    dsn: str, database: store.Database
) -> None:
    await store.create_stream(database, StreamSpec(name="orders", retain_up_to=3600))
    await publish(database, *(f"k.{n}" for n in range(10)))
    reader = HeadraceStreamReader(options(dsn), SCHEMA)

    def fetch() -> list[int]:
        return [seq for part in reader.partitions(begin_, end) for seq in seqs(reader, part)]

    try:
        begin_ = reader.initialOffset()
        assert reader.latestOffset(begin_, reader.getDefaultReadLimit())["position"] == 10
        end = {**begin_, "position": 5}
        await make_old(database, 4)
        assert (await sweep(database)).messages_trimmed == 3
        assert await asyncio.to_thread(fetch) == [4, 5]
        begin_, end = {"stream": begin_["stream"], "position": 2}, {**begin_, "position": 5}
        with pytest.raises(InvalidInput, match="the seqs from 3 to 3 were removed by retention before they were read"):
            await asyncio.to_thread(fetch)
    finally:
        reader.stop()


async def test_a_stream_without_news_has_no_new_offset(dsn: str, database: store.Database) -> None:
    await store.create_stream(database, "orders")
    reader = HeadraceStreamReader(options(dsn), SCHEMA)
    try:
        begin_ = reader.initialOffset()
        assert reader.latestOffset(begin_, reader.getDefaultReadLimit()) == begin_
    finally:
        reader.stop()


@pytest.mark.parametrize("available_now", [False, True])
async def test_a_checkpoint_that_is_ahead_of_its_stream_is_reported(
    dsn: str, database: store.Database, available_now: bool
) -> None:
    """This happens after the database was restored from a backup."""
    await store.create_stream(database, "orders")
    await publish(database, "a", "b")
    reader, tolerant = (HeadraceStreamReader(options(dsn, failOnDataLoss=fail), SCHEMA) for fail in ("true", "false"))
    try:
        ahead = {**reader.initialOffset(), "position": 3}
        for one in (reader, tolerant):
            if available_now:
                one.prepareForTriggerAvailableNow()
        with pytest.raises(InvalidInput, match=r"up to seq 3, and its last one is 2\. The database is older"):
            reader.latestOffset(ahead, reader.getDefaultReadLimit())
        assert tolerant.latestOffset(ahead, tolerant.getDefaultReadLimit()) == ahead
    finally:
        reader.stop()
        tolerant.stop()


async def draw_again(database: store.Database, last: int) -> None:
    """Bring the stream back to a seq, as a restore does, or a failover to a standby that lagged."""
    await database.fetch("delete from headrace_streams.orders where seq > $1", last)
    await database.fetch("select setval((select sequence from headrace_internal.streams)::regclass, $1::bigint)", last)


async def test_seqs_that_are_drawn_again_after_a_restore_are_not_skipped(
    dsn: str, database: store.Database, caplog: pytest.LogCaptureFixture
) -> None:
    await store.create_stream(database, "orders")
    await publish(database, *"abcdefghij")
    given = ("true", "true", "true", "false")
    readers = reader, repeating, idle, tolerant = [
        HeadraceStreamReader(options(dsn, failOnDataLoss=fail), SCHEMA) for fail in given
    ]
    limit = reader.getDefaultReadLimit()
    try:
        begin_ = reader.initialOffset()
        first = reader.latestOffset(begin_, limit)
        await draw_again(database, 6)
        await publish(database, *"klmn")
        for one in (reader, repeating):
            with pytest.raises(
                InvalidInput, match=r"up to seq 10, and its message 10 is another one now\. The database is"
            ):
                one.partitions(begin_, first)  # a batch that Spark repeats
        with pytest.raises(InvalidInput, match="its message 10 is another one now"):
            idle.latestOffset(first, limit)  # although nothing is new
        await publish(database, "o")
        with pytest.raises(InvalidInput, match="Start again with a new checkpoint"):
            reader.latestOffset(first, limit)
        second = tolerant.latestOffset(first, limit)
        assert second["position"] == 11
        assert "The query continues after seq 10" in caplog.text
        assert reader.latestOffset(second, limit) == second
    finally:
        for one in readers:
            one.stop()


async def test_a_message_that_is_gone_is_no_other_history(dsn: str, database: store.Database) -> None:
    """It was erased, or removed by retention. Offsets of release 0.1 name no message."""
    await store.create_stream(database, "orders")
    await publish(database, *"abcdefghij")
    reader = HeadraceStreamReader(options(dsn, maxRows=5), SCHEMA)
    limit = reader.getDefaultReadLimit()
    try:
        first = reader.latestOffset(reader.initialOffset(), limit)
        await database.fetch("delete from headrace_streams.orders where seq = 5")
        assert reader.latestOffset(first, limit)["position"] == 10
        await database.fetch("delete from headrace_streams.orders where seq <= 5")
        assert reader.latestOffset(first, limit)["position"] == 10
        assert reader.latestOffset({name: first[name] for name in ("stream", "position")}, limit)["position"] == 10
    finally:
        reader.stop()


@pytest.mark.parametrize("available_now", [False, True])
async def test_what_was_complete_before_a_failover_does_not_count_after_it(
    dsn: str, database: store.Database, connect: Connect, available_now: bool
) -> None:
    """A standby may lack the newest messages, and their seqs are then used again."""
    await store.create_stream(database, "orders")
    await publish(database, *"abcdefghij")
    reader = HeadraceStreamReader(options(dsn, maxRows=5, settleTimeout="0.5s"), SCHEMA)

    async def next_position(start: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(reader.latestOffset, start, reader.getDefaultReadLimit())

    try:
        if available_now:
            await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
        first = await next_position(await asyncio.to_thread(reader.initialOffset))
        assert first["position"] == 5
        await draw_again(database, 7)
        await hang_up(database)
        _, late = await begin(connect, "late")
        await publish(database, "k", "l", "m")
        second = await next_position(first)
        assert second["position"] == 7, "message 8 is not there yet"
        await late.commit()
        assert (await next_position(second))["position"] == (7 if available_now else 11)
    finally:
        reader.stop()


async def test_max_connections_bounds_the_tasks_of_a_read(dsn: str, database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await database.fetch("select headrace.publish('orders', 'k', to_json(n)) from generate_series(1, 40) as n")

    def tasks(**given: Any) -> int:
        return len(HeadraceReader(options(dsn, **given), SCHEMA).partitions())

    assert await asyncio.to_thread(tasks, partitions=8) == 8
    assert await asyncio.to_thread(tasks, partitions=8, maxConnections=3) == 3
    assert await asyncio.to_thread(tasks, partitions=2, maxConnections=3) == 2
    assert await asyncio.to_thread(found, dsn, partitions=8, maxConnections=3) == list(range(1, 41))
    reader = HeadraceStreamReader(options(dsn, partitions=8, maxConnections=3), SCHEMA)
    try:
        end = await asyncio.to_thread(reader.latestOffset, reader.initialOffset(), reader.getDefaultReadLimit())
        assert len(await asyncio.to_thread(reader.partitions, reader.initialOffset(), end)) == 3
    finally:
        reader.stop()
