"""Information about streams and consumers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headrace import store
from headrace.model import conditions
from headrace.model.errors import UnknownConsumer, UnknownStream
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.specs import StreamSpec
from tests.conftest import Declare
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio


# --- streams


async def test_stream_info_shows_its_settings(database: store.Database) -> None:
    spec = StreamSpec(name="orders", retain_up_to=3600.5, retain_at_least=60, max_storage=10_000_000, dedupe_window=30)
    await store.create_stream(database, spec)
    info = await store.stream(database, "orders")
    assert {name: getattr(info, name) for name in StreamSpec.__struct_fields__} == {
        name: getattr(spec, name) for name in StreamSpec.__struct_fields__
    }


async def test_stream_info_shows_its_messages_and_size(database: store.Database, declare: Declare) -> None:
    await declare()
    empty = await store.stream(database, "orders")
    assert (empty.first_seq, empty.last_seq, empty.messages, empty.consumers, empty.full) == (None, None, 0, 1, False)
    await publish(database, *"abcde")
    await database.fetch("delete from headrace_streams.orders where seq in (1, 5)")
    info = await store.stream(database, "orders")
    assert (info.first_seq, info.last_seq, info.messages) == (2, 4, 3)
    assert info.segments == await database.fetchval("select count(*) from headrace_internal.segments")
    assert info.size > empty.size
    assert [one.name for one in await store.streams(database)] == ["orders"]


async def test_stream_info_of_a_compacted_stream_shows_its_messages_and_size(database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="orders", one_message_per_key=True))
    for key in "abab":
        await publish(database, key)
    info = await store.stream(database, "orders")
    assert (info.first_seq, info.last_seq, info.messages, info.segments) == (3, 4, 2, 0)
    assert info.size > 8192


async def test_a_large_stream_is_estimated_and_all_its_segments_are_measured(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    await database.fetch(
        "insert into headrace_streams.orders (seq, key, data) overriding system value select seq, 'k', '1' from generate_series(1, 120000) as seq"
    )
    await database.fetchval("select setval('headrace_streams.\"orders.seq\"', 120000)")
    unknown = await store.stream(database, "orders")
    assert unknown.messages == 120_000  # it was never analyzed, so the estimate is the number of its seqs
    await database.fetch("analyze headrace_streams.orders")
    await database.fetch("delete from headrace_streams.orders where seq <= 60000")
    await database.fetch("analyze headrace_streams.orders")
    info = await store.stream(database, "orders")
    assert info.messages == pytest.approx(60_000, rel=0.05)
    leaves = await database.fetchval(
        "select sum(pg_total_relation_size(relid)) from pg_partition_tree('headrace_streams.orders')"
    )
    assert info.size == leaves


async def test_the_last_message_is_found_after_many_that_were_rolled_back(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    await publish(database, *"abc")
    await database.fetchval("select setval('headrace_streams.\"orders.seq\"', 150000)")
    assert (await store.stream(database, "orders")).last_seq == 3


async def test_messages_that_are_scheduled_are_counted(database: store.Database, declare: Declare) -> None:
    await declare()
    times = [datetime(2999, 1, day, tzinfo=UTC) for day in (3, 2)]
    await store.publish_many(
        database, "orders", ["a", "b"], ["1", "2"], options=[PublishOptions(deliver_at=at) for at in times]
    )
    info = await store.stream(database, "orders")
    assert (info.scheduled, info.next_scheduled, info.messages) == (2, times[1], 0)


async def test_stream_info_shows_that_the_stream_refuses_messages(database: store.Database, declare: Declare) -> None:
    await declare()
    await database.fetch("update headrace_internal.streams set full_until = clock_timestamp() + interval '1 minute'")
    assert (await store.stream(database, "orders")).full
    await database.fetch("update headrace_internal.streams set full_until = clock_timestamp()")
    assert not (await store.stream(database, "orders")).full


async def test_unknown_streams_and_consumers_are_reported(database: store.Database, declare: Declare) -> None:
    await declare()
    with pytest.raises(UnknownStream, match="nowhere"):
        await store.stream(database, "nowhere")
    for stream, name in (("orders", "nobody"), ("nowhere", "ship")):
        with pytest.raises(UnknownConsumer, match=name):
            await store.consumer(database, stream, name)
    assert await store.consumers(database, "nowhere") == []


# --- consumers


async def test_consumer_info_shows_its_settings_with_the_condition_as_text(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(
        filters=("a.>", "b"), where=conditions.parse("data.n > 1 and key != 'x'"), max_ack_pending=7, max_deliver=-1,
        deliver_policy="by_start_seq", start_seq=1,
    )  # fmt: skip
    settings = (await reader.info()).settings
    assert settings["filters"] == ["a.>", "b"]
    assert conditions.parse(settings["where"]) == conditions.parse("data.n > 1 and key != 'x'")
    assert (settings["max_ack_pending"], settings["max_deliver"], settings["ordered"]) == (7, -1, True)
    assert (settings["deliver_policy"], settings["start_seq"], settings["start_time"]) == ("by_start_seq", 1, None)
    assert settings["version"] == 1


async def test_consumer_info_shows_its_position_and_pending_messages(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(filters=("a", "b"))
    await publish(database, *"abcabca")
    batch = await reader.lease(limit=2)
    info = await reader.info()
    assert (info.position, info.last_seq, info.lag) == (2, 7, 5)
    assert (info.num_pending, info.num_pending_exact) == (3, True)
    assert (info.num_ack_pending, info.in_flight, info.owners) == (2, 2, 1)
    await reader.nack(batch, 1, delay=5)
    await reader.ack(batch, 2)
    info = await reader.info()
    assert (info.num_pending, info.num_ack_pending, info.parked) == (4, 0, 1)


async def test_pending_counts_messages_to_replay_and_redrive(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    await reader.reject(await reader.lease(limit=1))
    await reader.drain()
    assert (await reader.info()).num_pending == 0
    await reader.redrive()
    await store.replay(database, reader.id, store.Selection(start_seq=2))
    info = await reader.info()
    assert (info.num_pending, info.num_pending_exact, info.parked, info.replaying) == (3, True, 1, 2)


async def test_pending_is_a_lower_bound_when_there_are_too_many_to_count(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(filters=("a",))
    await publish(database, *["a", "b"] * 10)

    async def pending(look: int) -> tuple[int, bool]:
        info = await store.consumer(database, "orders", "ship", look=look)
        return info.num_pending, info.num_pending_exact

    assert await pending(21) == (10, True)
    assert await pending(20) == (10, False)
    assert await pending(5) == (3, False)
    assert await pending(0) == (0, False)
    await reader.seek(None)
    assert await pending(0) == (0, True)


async def test_pending_is_counted_over_long_gaps(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, "a")
    await database.fetchval("select setval('headrace_streams.\"orders.seq\"', 1900000)")
    await publish(database, "b")
    info = await reader.info()
    assert (info.last_seq, info.lag, info.num_pending, info.num_pending_exact) == (1_900_001, 1_900_001, 2, True)


async def test_the_oldest_message_that_is_not_settled(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    for key in "abcde":
        await publish(database, key)
    times = [
        row["created_at"] for row in await database.fetch("select created_at from headrace_streams.orders order by seq")
    ]

    async def oldest() -> datetime | None:
        return (await reader.info()).oldest_unacked_at

    assert await oldest() == times[0]
    batch = await reader.lease(limit=3)
    await reader.ack(batch, 1)
    assert await oldest() == times[1]
    await reader.release(batch, 3)
    await reader.nack(batch, 2)
    assert await oldest() == times[1]  # this message blocks its key
    await reader.discard(2)
    assert await oldest() == times[2]
    assert await reader.drain() == [3, 4, 5]
    assert await oldest() is None


async def test_consumer_info_counts_the_messages_that_retention_removed(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    assert ((await reader.info()).missed, (await reader.info()).last_gap) == (0, None)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    await database.fetch("insert into headrace_internal.gaps values ($1, 25, 10, 20, $2)", reader.id, at)
    info = await reader.info()
    assert (info.missed, info.last_gap) == (25, (10, 20, at))


async def test_consumer_info_does_not_show_a_pause_that_is_over(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await store.pause(database, reader.id, datetime.now(UTC) - timedelta(seconds=1))
    assert (await reader.info()).paused_until is None
