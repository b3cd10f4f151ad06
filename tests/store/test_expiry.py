"""Messages with a time to live: once it has passed, no consumer gets them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import store
from headrace.model.errors import InvalidInput
from headrace.model.messages.payloads import with_expiry
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.specs import ConsumerSpec, StreamSpec
from tests.conftest import Connect, Declare
from tests.support.readers import Clock, Reader, begun, by_key, owner, publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


async def put(executor: store.Executor, *keys: str, life: float | None = 60, headers: str | None = None) -> None:
    """Publish a message for each key, with a time to live in seconds."""
    head = with_expiry(headers, life)
    await store.publish_many(executor, "orders", keys, ["{}"] * len(keys), [head] * len(keys))


@pytest.fixture(autouse=True)
def from_now(clock: Clock) -> None:
    """The time of the test begins now, since messages have the time of the server."""
    clock.now = datetime.now(UTC)


async def test_a_lease_passes_expired_messages_by(database: store.Database, declare: Declare, clock: Clock) -> None:
    reader = await declare()
    await put(database, *"aab")
    await publish(database, *"ac")
    clock.advance(600)
    batch = await reader.lease()
    assert (batch.seqs, batch.more) == ([4, 5], False)
    info = await reader.info()
    assert (info.position, info.missed, info.dead_letters, info.num_pending) == (5, 0, 0, 0)


async def test_a_message_that_lives_is_delivered_with_the_time_of_the_call(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    reader = await declare()
    await put(database, "a")
    clock.advance(50)
    batch = await reader.lease()
    assert (batch.seqs, batch.begun_at) == ([1], clock.now)


@pytest.mark.parametrize("settings", [{}, {"ordered": False}, {"filters": (">",), "max_ack_pending": 5}])
async def test_a_long_backlog_of_expired_messages_is_passed_in_a_few_calls(
    database: store.Database, declare: Declare, clock: Clock, settings: dict[str, Any]
) -> None:
    reader = await declare(**settings)
    await put(database, *"abcde" * 200)
    await publish(database, "a")
    clock.advance(600)
    assert await reader.drain(limit=5, calls=3) == [1001]


async def test_a_filter_and_expiry_work_together(database: store.Database, declare: Declare, clock: Clock) -> None:
    reader = await declare(filters=("a",))
    await put(database, *"ab")
    await put(database, *"ab", life=None)
    await put(database, *"ab", life=600)
    clock.advance(600)
    assert (await reader.lease()).seqs == [3, 5]


async def test_expired_messages_of_a_window_make_room_for_no_earlier_message_of_their_key(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    reader = await declare()
    await publish(database, "a")
    await put(database, "a")
    await publish(database, "a")
    clock.advance(600)
    ann = await reader.lease("ann", limit=1)
    assert (ann.seqs, (await reader.lease("bob")).seqs) == ([1], [])
    await reader.ack_all(ann)
    assert by_key(await reader.lease("bob")) == {"a": [3]}


async def test_an_expired_retry_is_dropped_and_its_key_goes_on(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    reader = await declare()
    await put(database, "a")
    await publish(database, "a")
    batch = await reader.lease(limit=1)
    await reader.nack(batch, delay=600)
    assert (await reader.lease()).seqs == []
    clock.advance(600)
    assert await reader.drain() == [2]
    info = await reader.info()
    assert (info.parked, info.dead_letters, info.missed) == (0, 0, 0)


async def test_a_retry_that_lives_longer_than_its_delay_comes_again(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    reader = await declare()
    await put(database, "a")
    await reader.nack(await reader.lease(), delay=30)
    clock.advance(31)
    assert (await reader.lease()).attempts == [2]


async def test_parked_messages_that_expired_take_no_place_of_others(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    reader = await declare(ordered=False)
    await put(database, *"abc")
    await publish(database, *"de")
    await reader.release(await reader.lease())
    clock.advance(600)
    first = await reader.lease(limit=2)
    assert first.more, "others are due"
    assert sorted([*first.seqs, *await reader.drain(limit=2)]) == [4, 5]


async def test_a_lease_that_expires_gives_no_expired_message_to_the_next_owner(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    reader = await declare(ack_wait=30)
    await put(database, "a")
    await publish(database, "a")
    await reader.lease("ann")
    clock.advance(600)
    assert (await reader.lease("bob")).seqs == [2]


async def test_an_ack_after_the_expiry_counts(database: store.Database, declare: Declare, clock: Clock) -> None:
    reader = await declare(ack_wait=600)
    await put(database, "a")
    batch = await reader.lease()
    clock.advance(600)
    assert await reader.ack_all(batch) == []


async def test_a_failure_after_the_expiry_makes_no_dead_letter_unless_it_was_the_last_attempt(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    reader = await declare(ack_wait=600, max_deliver=3)
    await put(database, *"ab")
    batch = await reader.lease()
    clock.advance(600)
    await reader.nack(batch, 1, error="away")
    await reader.reject(batch, 2)
    assert [letter.seq for letter in await reader.dead_letters()] == [2]
    assert (await reader.lease()).seqs == []


async def test_a_late_commit_with_an_expired_message_is_passed_by(
    database: store.Database, declare: Declare, clock: Clock, connect: Connect
) -> None:
    reader = await declare()
    async with begun(connect) as (late, transaction):
        await put(late, "a")
        await publish(late, "a")
        await publish(database, "b")
        assert await reader.drain() == [3]
        clock.advance(600)
        await transaction.commit()
    assert await reader.drain() == [2]
    assert (await reader.info()).holes == 0


async def test_a_seek_and_a_replay_bring_no_expired_message_back(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    reader = await declare()
    await put(database, "a")
    await publish(database, "a")
    assert await reader.drain() == [1, 2]
    await database.fetch("update headrace_streams.orders set created_at = created_at - interval '600 s'")
    await reader.seek(0)
    assert await reader.drain() == [2]
    assert await store.replay(database, reader.id, store.Selection()) == 1
    assert await reader.drain() == [2]


async def test_expired_dead_letters_stay_until_they_are_discarded(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    reader = await declare()
    await put(database, *"ab")
    await publish(database, "c")
    await reader.reject(await reader.lease())
    await database.fetch(
        "update headrace_internal.dead_letters set created_at = created_at - interval '600 s' where seq = 1"
    )
    assert await reader.redrive() == 2
    assert [letter.seq for letter in await reader.dead_letters()] == [1]
    assert await reader.discard() == 1


async def test_a_scheduled_message_lives_from_its_publication(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    reader = await declare()
    due = clock.now + timedelta(seconds=1000)
    await store.publish(database, "orders", "a", "{}", with_expiry(None, 60), options=PublishOptions(deliver_at=due))
    stream = await database.fetchval("select id from headrace_internal.streams")
    await store.publish_scheduled(database, stream, None, now=due)
    assert (await reader.lease()).seqs == [1]


async def test_with_one_message_per_key_the_last_time_to_live_counts(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    await store.create_stream(database, StreamSpec(name="latest", one_message_per_key=True))
    declared = await store.declare_consumer(database, ConsumerSpec(stream="latest", name="ship"))
    reader = Reader(database, ConsumerSpec(stream="latest", name="ship"), declared.id, clock)
    for life in (60, 600, None):
        await store.publish(database, "latest", f"k{life}", "1", with_expiry(None, 60))
        await store.publish(database, "latest", f"k{life}", "2", with_expiry(None, life))
    clock.advance(600)
    assert (await reader.lease()).keys == ["k600", "kNone"]


async def test_shares_get_no_expired_message(database: store.Database, declare: Declare, clock: Clock) -> None:
    reader = await declare()
    await put(database, *"abc")
    await publish(database, *"abc")
    clock.advance(600)
    batch = await store.lease(database, reader.id, owner("ann"), 2, now=clock.now, shares=[1, 1])
    assert (batch.seqs, len(batch.lease_ids or [])) == ([4, 5], 2)


async def test_lists_and_peek_show_when_a_message_expires(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    reader = await declare()
    await put(database, "a", headers='{"trace": "x"}')
    await put(database, "b", life=None)
    first, second = await store.messages(database, "orders")
    assert first.expires_at == first.created_at + timedelta(seconds=60)
    assert first.headers == {"trace": "x", "headrace-expires-in": 60}
    assert second.expires_at is None
    assert [one.expires_at for one in await store.peek(database, reader.id)] == [first.expires_at, None]
    (latest,) = await store.messages(database, "orders", store.SeqRange(filters=["a"]), limit=1, newest=True)
    assert latest.expires_at == first.expires_at
    await database.fetch("update headrace_streams.orders set created_at = created_at - interval '600 s'")
    assert [one.seq for one in await store.peek(database, reader.id)] == [2], "what comes next has not expired"


_UNREADABLE: list[str] = ["0", "-1", '"soon"', "null", "1e3", "[60]", "3153600001", '"60s"']


async def test_a_time_to_live_that_cant_be_read_is_refused(database: store.Database, declare: Declare) -> None:
    await declare()
    for given in _UNREADABLE:
        headers = f'{{"headrace-expires-in": {given}}}'
        with pytest.raises(InvalidInput, match="time to live in seconds"):
            await store.publish(database, "orders", "a", "{}", headers)
        with pytest.raises(InvalidInput, match="time to live in seconds"):
            await store.publish_many(database, "orders", ["a", "b"], ["{}"] * 2, [None, headers])


@pytest.mark.parametrize(
    "headers",
    [
        '{"headrace-expires-in": "soon"}',
        '{"original": {"headrace-expires-in": 1}}',
        '{"note": "\\"headrace-expires-in\\": 1"}',
        '{"headrace-expires-in": 1, "odd": "\\ud800"}',
        '{"headrace-expires-in": 1, "odd": "\\u0000"}',
        '{"headrace-expires-in": "\\ud800"}',
        '{"headrace-expires-in": ' + "9" * 500 + "}",
    ],
)
async def test_no_stored_header_stops_a_consumer(
    database: store.Database, declare: Declare, clock: Clock, headers: str
) -> None:
    reader = await declare()
    await database.fetch(f"insert into headrace_streams.orders (key, data, headers) values ('a', '{{}}', '{headers}')")
    clock.advance(3600)
    assert (await reader.lease()).seqs == [1], "nothing of that is a time to live that can be read"


async def test_sql_publishes_with_a_header(database: store.Database, declare: Declare, clock: Clock) -> None:
    reader = await declare()
    await database.fetch("""select headrace.publish('orders', 'a', '{}', '{"headrace-expires-in": "0.5"}')""")
    clock.advance(600)
    assert (await reader.lease()).seqs == []
    assert json.loads(await database.fetchval("select headers from headrace_streams.orders")) == {
        "headrace-expires-in": "0.5"
    }


async def test_no_setting_of_a_session_makes_messages_expire_at_another_time(
    database: store.Database, declare: Declare, clock: Clock, connect: Connect
) -> None:
    """In Kolkata the German text of a time ends in IST, which PostgreSQL before 18 reads as the time of Israel."""
    reader, session = await declare(), await connect()
    await session.execute("set datestyle = 'German'; set timezone = 'Asia/Kolkata'")
    await put(database, *"abcdefghij")
    await put(database, "a", life=3600)
    clock.advance(600)
    there = Reader(session, reader.spec, reader.id, clock)
    assert await there.drain(limit=5) == [11]
    now = datetime.now(UTC)
    assert await store.replay(session, reader.id, store.Selection(start_time=now - timedelta(hours=1))) == 11
    assert await store.replay(session, reader.id, store.Selection(start_time=now + timedelta(hours=1))) == 0


async def test_a_message_that_may_expire_is_published_again_though_dedupe_finds_it_unchanged(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    await store.create_stream(database, StreamSpec(name="latest", one_message_per_key=True, dedupe=True))
    declared = await store.declare_consumer(database, ConsumerSpec(stream="latest", name="ship"))
    reader = Reader(database, ConsumerSpec(stream="latest", name="ship"), declared.id, clock)
    for life in (60, 60, None, None):
        await store.publish(database, "latest", "a", "1", with_expiry(None, life))
    clock.advance(600)
    assert await reader.drain() == [3], "it lives on, and the last publish changed nothing"


async def test_a_scheduled_message_with_a_header_that_cant_be_read_stops_no_other(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    """Releases that knew no time to live have scheduled it."""
    reader = await declare()
    due = clock.now + timedelta(seconds=1000)
    for key in "ab":
        await store.publish(database, "orders", key, "{}", options=PublishOptions(deliver_at=due))
    await database.fetch(
        """update headrace_internal.scheduled set headers = '{"headrace-expires-in": "soon"}' where key = 'a'"""
    )
    stream = await database.fetchval("select id from headrace_internal.streams")
    await store.publish_scheduled(database, stream, None, now=due)
    assert (await reader.lease()).keys == ["a", "b"]


async def test_a_message_lives_as_long_after_a_call_that_waited(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Processes count the rest of its life from the beginning of the call."""
    reader = await declare()
    async with begun(connect) as (holder, transaction):
        await holder.execute("select pg_advisory_xact_lock(1212498508, $1)", reader.id)
        leasing = await start(store.lease(database, reader.id, owner("ann"), 1))
        await until_blocked(database, holder)
        await put(database, "a")
        await transaction.commit()
    batch = await leasing
    assert batch.seqs == [1]
    assert batch.begun_at is not None
    assert batch.begun_at < batch.created_at[0]
