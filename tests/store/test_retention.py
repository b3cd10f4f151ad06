"""Retention: a stream keeps the messages that its policy requires, a consumer's gap is counted, and
no call is blocked for long."""

from __future__ import annotations

import asyncio
import json
import secrets
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio

from headrace import store
from headrace.model.errors import StreamFull
from headrace.model.specs import Backoff, ConsumerSpec, StreamSpec
from headrace.store.maintenance.retention import Swept
from tests.conftest import Connect
from tests.support.readers import Clock, Reader, publish

pytestmark = pytest.mark.asyncio

HOUR = 3600.0
DEAD = "select pg_stat_get_dead_tuples('headrace_streams.orders'::regclass)"


class Stream:
    """The stream `orders`, cut into segments of ten."""

    def __init__(self, database: store.Database, clock: Clock) -> None:
        self.database = database
        self.clock = clock
        self.now = datetime.now(UTC)

    async def create(self, *, width: int = 10, count: int = 20, **policy: Any) -> None:
        """With `count` segments of `width` seqs, followed by segments of increasing width."""
        stream = await store.create_stream(self.database, StreamSpec(name="orders", **policy))
        for row in await self.database.fetch("delete from headrace.segments returning relation"):
            await self.database.fetch(f"drop table {row[0]}")
        await self.database.fetch(
            "select headrace.add_segment($1, i * $2::int + 1, (i + 1) * $2::int + 1) from generate_series(0, $3::int - 1) as i",
            stream,
            width,
            count,
        )
        await self.database.fetch("select headrace.add_segments_ahead($1, $2, $3)", stream, width * count + 1, width)

    async def edit(self, **policy: Any) -> None:
        await store.edit_stream(self.database, StreamSpec(name="orders", **policy))

    async def fill(self, count: int, *, keys: int = 5, size: int = 0) -> None:
        """Publish this many messages, each with an incompressible text of this many bytes."""
        texts = [json.dumps({"n": n, "text": secrets.token_hex(size // 2)}) for n in range(count)]
        await store.publish_many(self.database, "orders", [f"k.{n % keys}" for n in range(count)], texts)

    async def consumer(self, name: str = "ship", **settings: Any) -> Reader:
        spec = ConsumerSpec(stream="orders", name=name, **settings)
        return Reader(self.database, spec, (await store.declare_consumer(self.database, spec)).id, self.clock)

    async def sweep(self, after: float = 0.0) -> Swept:
        """Sweep this many seconds from now, until no work is left to do at once."""
        swept = await store.sweep(self.database, now=self.now + timedelta(seconds=after))
        if swept.more:
            again = await self.sweep(after)
            swept.segments_dropped += again.segments_dropped
            swept.messages_trimmed += again.messages_trimmed
            swept.missed += again.missed
        return swept

    async def age(self, seconds: float, below: int) -> None:
        """Make the messages below a seq older."""
        await self.database.fetch(
            "update headrace_streams.orders set created_at = created_at - make_interval(secs => $1) where seq < $2",
            seconds,
            below,
        )

    async def seqs(self) -> list[int]:
        return [row[0] for row in await self.database.fetch("select seq from headrace_streams.orders order by seq")]

    async def segments(self) -> list[tuple[int, int | None]]:
        rows = await self.database.fetch("select lower, upper from headrace.segments order by lower")
        return [(row[0], row[1]) for row in rows]

    async def gap(self, reader: Reader) -> tuple[int, int, int] | None:
        row = await self.database.fetchrow(
            "select messages, lower, upper from headrace.gaps where consumer_id = $1", reader.id
        )
        return None if row is None else (row[0], row[1], row[2])


@pytest_asyncio.fixture
async def stream(database: store.Database, clock: Clock) -> Stream:
    return Stream(database, clock)


# --- what is removed and what is kept


async def test_a_stream_without_limits_keeps_everything(stream: Stream) -> None:
    await stream.create()
    await stream.fill(55)
    assert (await stream.sweep(1000 * HOUR)).segments_dropped == 0
    assert await stream.seqs() == list(range(1, 56))


async def test_by_age_whole_segments_are_dropped_and_the_open_one_is_trimmed(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.fill(55)
    assert not (await stream.sweep()).segments_dropped
    await stream.age(2 * HOUR, below=36)
    assert (await stream.sweep()).segments_dropped == 3
    assert await stream.seqs() == list(range(31, 56)), "a segment goes when its newest message is too old"
    swept = await stream.sweep(2 * HOUR)
    assert (swept.segments_dropped, swept.messages_trimmed) == (2, 5)
    assert await stream.seqs() == []
    await stream.fill(1)
    assert await stream.seqs() == [56]


async def test_the_last_open_segment_is_trimmed_only_up_to_the_first_that_is_young(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.fill(8)
    await stream.age(2 * HOUR, below=4)
    assert (await stream.sweep()).messages_trimmed == 3
    assert await stream.seqs() == [4, 5, 6, 7, 8]


async def test_by_size_the_oldest_segments_are_dropped_until_the_rest_fits(stream: Stream) -> None:
    await stream.create(max_storage=1_000_000)
    await stream.fill(105, size=20_000)
    assert (await size(stream)) > 2_000_000
    swept = await stream.sweep()
    left = await stream.seqs()
    assert left == list(range(left[0], 106))
    assert left[0] % 10 == 1
    assert await size(stream) <= 1_000_000
    assert swept.segments_dropped == (left[0] - 1) / 10
    assert len(left) >= 25, "no more went than had to"


async def size(stream: Stream) -> int:
    return int(
        await stream.database.fetchval(
            "select headrace.stored_bytes(s) from headrace.streams as s where name = 'orders'"
        )
    )


async def test_age_and_size_limits_both_apply(stream: Stream) -> None:
    await stream.create(max_storage=1_000_000, retain_up_to=HOUR)
    await stream.fill(105, size=10_000)
    await stream.age(2 * HOUR, below=81)
    assert (await stream.sweep()).segments_dropped == 8
    assert await stream.seqs() == list(range(81, 106))


async def test_young_messages_stay_whatever_the_size_and_publishing_is_refused_until_they_are_old(
    stream: Stream,
) -> None:
    await stream.create(max_storage=1_000_000, retain_at_least=HOUR)
    await stream.fill(105, size=20_000)
    swept = await stream.sweep()
    assert (swept.segments_dropped, swept.full) == (0, ["orders"])
    with pytest.raises(StreamFull, match="max_storage"):
        await stream.fill(1)
    with pytest.raises(StreamFull):
        await store.publish(stream.database, "orders", "a", "1")
    swept = await stream.sweep(2 * HOUR)
    assert swept.segments_dropped > 0
    assert swept.full == []
    await stream.fill(1)
    assert (await stream.seqs())[-1] == 106


async def test_the_refusal_of_publishing_ends_unless_it_is_renewed(stream: Stream) -> None:
    await stream.create(max_storage=1_000_000, retain_at_least=HOUR)
    await stream.fill(105, size=20_000)
    await stream.sweep(-3600)  # the mark was set an hour ago
    await stream.fill(1)


async def test_the_refusal_of_publishing_is_renewed_only_when_it_is_about_to_end(stream: Stream) -> None:
    await stream.create(max_storage=1_000_000, retain_at_least=HOUR)
    await stream.fill(105, size=20_000)
    until = []
    for second in range(0, 12, 2):
        await stream.sweep(second)
        until.append(await stream.database.fetchval("select full_until from headrace.streams"))
    assert [(time - stream.now).total_seconds() for time in dict.fromkeys(until)] == [15, 21]


async def test_a_larger_max_storage_lets_publishing_go_on(stream: Stream) -> None:
    await stream.create(max_storage=1_000_000, retain_at_least=HOUR)
    await stream.fill(105, size=20_000)
    await stream.sweep()
    await stream.edit(max_storage=100_000_000, retain_at_least=HOUR)
    await stream.fill(1)
    assert (await stream.sweep()).full == []


async def test_at_least_wins_over_at_most(stream: Stream) -> None:
    """Specs can't have both, but SQL can."""
    await stream.create(retain_up_to=HOUR)
    await stream.database.fetch("update headrace.streams set retain_at_least = '1 day'")
    await stream.fill(55)
    swept = await stream.sweep(2 * HOUR)
    assert (swept.segments_dropped, swept.messages_trimmed) == (0, 0)
    await stream.sweep(25 * HOUR)
    assert await stream.seqs() == []


async def test_a_segment_is_dropped_after_all_its_publishers_rolled_back(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.database.fetch("select nextval('headrace_streams.\"orders.seq\"') from generate_series(1, 20)")
    await stream.fill(1)
    assert (await stream.sweep()).segments_dropped == 2
    assert await stream.seqs() == [21]


# --- interest


async def test_by_interest_a_segment_goes_once_every_consumer_is_done_with_it(stream: Stream) -> None:
    await stream.create(retention="interest")
    await stream.fill(35)
    assert (await stream.sweep()).segments_dropped == 0, "nobody reads it yet"
    one, other = await stream.consumer("one"), await stream.consumer("other")
    await one.drain()
    assert (await stream.sweep()).segments_dropped == 0
    await other.drain(limit=15, calls=1)
    assert (await stream.sweep()).segments_dropped == 1
    await other.drain()
    swept = await stream.sweep(1000 * HOUR)
    assert (swept.segments_dropped, swept.messages_trimmed, swept.missed) == (2, 0, 0)
    assert await stream.seqs() == [31, 32, 33, 34, 35]
    assert await stream.gap(one) is await stream.gap(other) is None


@pytest.mark.parametrize("way", ["lease", "nack", "block", "replay"])
async def test_by_interest_a_message_that_is_not_done_keeps_its_segment(stream: Stream, way: str) -> None:
    await stream.create(retention="interest")
    await stream.fill(35)
    reader = await stream.consumer(
        max_deliver=1 if way == "block" else 10, on_exhausted="block", backoff=Backoff(delays=(HOUR,))
    )
    first = await reader.lease(limit=15)
    if way == "nack":
        await reader.nack(first, 12, delay=HOUR)
    elif way == "block":
        await reader.nack(first, 12)
    if way != "lease":
        await reader.ack_all(first)
    await reader.drain()
    if way == "replay":
        await stream.database.fetch(
            "insert into headrace.replays values ($1, 12, hashtextextended('k.1', 0))", reader.id
        )
        await stream.database.fetch("update headrace.cursors set replay_floor = 12 where consumer_id = $1", reader.id)
    swept = await stream.sweep(1000 * HOUR)
    assert swept.missed == 0
    assert (await stream.seqs())[0] == (1 if way == "lease" else 11)
    if way == "lease":
        await reader.ack_all(first)
    elif way == "block":
        assert await reader.discard() == 1
        await reader.drain()
    else:
        reader.clock.advance(2 * HOUR)
        assert (await reader.drain())[0] == 12
    await stream.sweep()
    assert (await stream.seqs())[0] == 31


async def test_by_interest_late_commits_are_waited_for(stream: Stream, connect: Connect) -> None:
    await stream.create(retention="interest")
    reader = await stream.consumer()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late")
    await stream.fill(35)
    assert len(await reader.drain()) == 35
    assert (await stream.sweep()).busy == ["orders"]
    await transaction.commit()
    assert (await stream.sweep()).segments_dropped == 0, "it is there now, and not yet delivered"
    assert await reader.drain() == [1]
    assert (await stream.sweep()).segments_dropped == 3


async def test_by_interest_rolled_back_numbers_keep_nothing(stream: Stream) -> None:
    await stream.create(retention="interest")
    reader = await stream.consumer()
    await stream.fill(15)
    await stream.database.fetch("select nextval('headrace_streams.\"orders.seq\"') from generate_series(1, 20)")
    await reader.drain()
    await stream.sweep()
    assert await stream.seqs() == []
    await stream.fill(2)
    assert await reader.drain() == [36, 37]
    assert await stream.gap(reader) is None


async def test_by_interest_size_removes_nothing_that_is_needed_and_publishing_is_refused(stream: Stream) -> None:
    await stream.create(retention="interest", max_storage=1_000_000)
    reader = await stream.consumer()
    await stream.fill(105, size=20_000)
    swept = await stream.sweep()
    assert (swept.segments_dropped, swept.full) == (0, ["orders"])
    with pytest.raises(StreamFull):
        await stream.fill(1)
    assert len(await reader.drain()) == 105
    swept = await stream.sweep()
    assert (swept.segments_dropped, swept.missed, swept.full) == (10, 0, [])
    await stream.fill(1)


async def test_by_interest_settled_messages_may_be_kept_for_a_while(stream: Stream) -> None:
    await stream.create(retention="interest", retain_at_least=HOUR)
    reader = await stream.consumer()
    await stream.fill(35)
    await reader.drain()
    assert (await stream.sweep()).segments_dropped == 0
    assert (await stream.sweep(2 * HOUR)).segments_dropped == 3


# --- gaps


async def test_a_consumer_continues_after_removed_messages_and_the_gap_is_counted(
    stream: Stream,
) -> None:
    await stream.create(retain_up_to=HOUR)
    behind, done, fresh = [await stream.consumer(name) for name in ("behind", "done", "fresh")]
    await stream.fill(55)
    await behind.drain(limit=7, calls=1)
    await done.drain()
    await stream.age(2 * HOUR, below=31)
    swept = await stream.sweep()
    assert (swept.segments_dropped, swept.missed) == (3, 23 + 30)
    assert await stream.gap(behind) == (23, 8, 31)
    assert await stream.gap(fresh) == (30, 1, 31)
    assert await stream.gap(done) is None
    assert await behind.drain() == list(range(31, 56))
    assert await fresh.drain() == list(range(31, 56))
    await stream.sweep(2 * HOUR)
    assert await stream.gap(behind) == (23, 8, 31)


async def test_trimmed_messages_are_counted_too(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer()
    await stream.fill(8)
    await reader.drain(limit=3, calls=1)
    await stream.age(2 * HOUR, below=7)
    assert (await stream.sweep()).missed == 3
    assert await stream.gap(reader) == (3, 4, 7)
    assert await reader.drain() == [7, 8]


async def test_the_gap_counts_only_messages_that_the_consumer_wanted(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    keyed = await stream.consumer("keyed", filters=("k.1", "k.3"))
    await stream.fill(55)
    await stream.age(2 * HOUR, below=31)
    await stream.sweep()
    assert await stream.gap(keyed) == (12, 2, 30)
    await stream.sweep(2 * HOUR)
    assert (await stream.gap(keyed) or ())[0] == 22


async def test_the_gap_counts_messages_parked_replayed_or_behind_a_block(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer(max_deliver=2, on_exhausted="block")
    await stream.fill(40)
    batch = await reader.lease(limit=10)
    await reader.nack(batch, 3, delay=10 * HOUR)
    await reader.nack(batch, 4)
    await reader.ack_all(batch)
    retried = await reader.lease(limit=1)
    assert retried.seqs == [4]
    await reader.nack(retried)  # this blocks k.3 and all later messages of that key
    rest = await reader.drain()
    assert set(rest) == {n for n in range(11, 41) if n % 5 not in (3, 4)}
    await stream.database.fetch("insert into headrace.replays values ($1, 7, hashtextextended('k.1', 0))", reader.id)
    await stream.age(2 * HOUR, below=31)
    await stream.sweep()
    parked, blocked = [3, 13, 18, 23, 28, 8], [14, 19, 24, 29, 9]
    lost = [n for n in (*parked, *blocked, 7) if n > 10 or n in (3, 7)]
    assert await stream.gap(reader) == (len(lost), 3, 30)
    assert await reader.count("replays") == 0
    (letter,) = await reader.dead_letters()
    assert letter.seq == 4
    assert letter.blocks
    await stream.fill(5)
    assert set(await reader.drain()) & {44} == set(), "its key still waits for a person"
    assert await reader.discard() == 1
    assert [seq for seq in await reader.drain() if seq % 5 == 4] == [34, 39, 44]


async def test_a_late_arrival_that_goes_unseen_is_counted(stream: Stream, connect: Connect) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late", "late")
    await stream.fill(33)
    assert len(await reader.drain()) == 33
    await transaction.commit()
    assert (await stream.sweep(2 * HOUR)).missed == 2
    assert await stream.gap(reader) == (2, 1, 3)
    await stream.fill(1)
    assert await reader.drain() == [36]


async def test_acks_of_removed_messages_have_no_effect_and_failures_are_counted(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer()
    await stream.fill(35)
    batch = await reader.lease(limit=10)
    assert (await stream.sweep(2 * HOUR)).missed == 25
    assert await reader.ack(batch, *range(1, 6)) == []
    await reader.nack(batch, *range(6, 11))
    assert await reader.drain() == []
    assert (await stream.gap(reader) or ())[0] == 30
    info = await reader.info()
    assert (info.in_flight, info.parked) == (0, 0)


@pytest.mark.parametrize("on_exhausted", ["dead_letter", "block"])
async def test_a_message_removed_in_flight_that_then_fails_for_good_is_counted(
    stream: Stream, on_exhausted: Any
) -> None:
    """Rejected, exhausted, or exhausted because the worker died. There is no dead letter, so the
    count must include it."""
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer(max_deliver=1, on_exhausted=on_exhausted, ack_wait=30.0)
    await stream.fill(35, keys=35)
    batch = await reader.lease(limit=8)
    dying = await reader.lease("bob", limit=2)
    assert dying.seqs == [9, 10]
    assert (await stream.sweep(2 * HOUR)).missed == 25
    await reader.reject(batch, 1, 2)
    assert await stream.gap(reader) == (27, 1, 3)
    await reader.nack(batch, 3)
    assert await stream.gap(reader) == (28, 3, 4)
    await reader.ack(batch, 4, 5, 6, 7, 8)
    reader.clock.advance(60)
    assert await reader.drain() == []
    assert await stream.gap(reader) == (30, 9, 11)
    info = await reader.info()
    assert (info.missed, info.dead_letters, info.blocked, info.in_flight) == (30, 0, 0, 0)
    await stream.fill(5, keys=35)
    assert len(await reader.drain()) == 5, "no key waits for what is gone"


async def test_dropped_messages_are_not_counted_as_a_gap(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer(max_deliver=1, on_exhausted="drop")
    await stream.fill(10)
    batch = await reader.lease()
    assert (await stream.sweep(2 * HOUR)).missed == 0
    await reader.nack(batch, *range(1, 9))
    assert await stream.gap(reader) is None
    await reader.reject(batch, 9, 10)
    assert await stream.gap(reader) == (2, 9, 11)


async def test_a_blocked_key_is_freed_and_counted_when_its_messages_are_removed(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer(max_deliver=1, on_exhausted="block")
    await stream.fill(10, keys=1)
    await reader.nack(await reader.lease(limit=1))
    assert await reader.drain() == []
    assert (await stream.sweep(2 * HOUR)).missed == 9
    assert await reader.redrive() == 0, "its dead letter is all that is left"
    assert await reader.discard() == 1
    await stream.fill(1, keys=1)
    assert await reader.drain() == [11]
    assert (await stream.gap(reader) or ())[0] == 9


@pytest.mark.parametrize("policy", [{"retain_up_to": HOUR}, {"retention": "interest"}], ids=["age", "interest"])
async def test_messages_that_a_consumer_has_just_moved_back_to_are_not_removed_uncounted(
    stream: Stream, connect: Connect, policy: dict[str, Any]
) -> None:
    await stream.create(**policy)
    await stream.fill(15)
    reader = await stream.consumer()
    await reader.drain()
    mover = await connect()
    transaction = mover.transaction()
    await transaction.start()
    await store.seek(mover, reader.id, 0)
    early = await stream.sweep(after=2 * HOUR)
    await transaction.commit()
    late = await stream.sweep(after=2 * HOUR)
    left = await reader.drain()
    assert early.missed + late.missed + len(left) == 15


async def test_a_consumer_that_is_far_behind_is_moved_over_it_in_steps(stream: Stream) -> None:
    await stream.create(width=30_000, count=3, retain_up_to=HOUR)
    reader = await stream.consumer(filters=("k.1",))
    await stream.fill(65_000)
    first = await store.sweep(stream.database, now=stream.now + timedelta(hours=2))
    assert first.segments_dropped == 2
    assert first.missed == 13_000
    assert (await reader.cursor())["position"] == 60_000
    assert len(await stream.seqs()) == 0
    assert (await stream.gap(reader) or ())[0] == 13_000


async def test_a_consumer_that_was_moved_over_rolled_back_numbers_has_no_holes_left(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer()
    for _ in range(20):
        await stream.fill(1)
        await stream.database.fetch("select nextval('headrace_streams.\"orders.seq\"')")
    await reader.lease(limit=1)
    assert (await stream.sweep(2 * HOUR)).missed == 19
    cursor = await reader.cursor()
    assert cursor["position"] == 40
    assert list(cursor["holes"]) == []


# --- no call is blocked


async def test_a_publisher_that_is_left_open_is_neither_failed_nor_waited_for_and_removing_resumes(
    stream: Stream, connect: Connect
) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer()
    await stream.fill(35)
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late")
    swept = await stream.sweep(2 * HOUR)
    assert (swept.segments_dropped, swept.missed, swept.busy) == (0, 0, ["orders"])
    assert await stream.gap(reader) is None
    await publish(late, "late")
    await stream.fill(1)
    await transaction.commit()
    assert (await stream.sweep(2 * HOUR)).segments_dropped == 3
    assert await reader.drain() == []
    assert (await stream.gap(reader) or ())[0] == 38


async def test_no_lock_is_requested_while_a_transaction_has_used_the_table_for_more_than_a_second(
    stream: Stream, connect: Connect
) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.fill(35)
    late = await connect()
    await late.execute("begin; select headrace.publish('orders', 'late', '1'); select pg_sleep(1.1)")
    asked = await stream.database.fetchval("select headrace.is_locked_for_long(array['headrace_streams.orders'])")
    assert asked is True
    # Without a limit to its patience, the sweep would wait for ever.
    row = await stream.database.fetchrow(
        "select * from headrace.drop_segments(1, 0, $1)", stream.now + timedelta(hours=2)
    )
    assert row["busy"]
    await late.execute("commit")
    assert (await stream.sweep(2 * HOUR)).segments_dropped == 3


async def test_an_old_snapshot_neither_stops_removing_nor_fails(stream: Stream, connect: Connect) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.fill(35)
    old = await connect()
    transaction = old.transaction(isolation="repeatable_read")
    await transaction.start()
    await old.fetchval("select pg_current_xact_id()")
    assert (await stream.sweep(2 * HOUR)).segments_dropped == 3
    assert [row[0] for row in await old.fetch("select seq from headrace_streams.orders order by seq")] == [
        31, 32, 33, 34, 35,
    ]  # fmt: skip
    await transaction.rollback()


async def test_a_reader_with_an_open_transaction_is_not_disturbed(stream: Stream, connect: Connect) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.fill(35)
    old = await connect()
    transaction = old.transaction(isolation="repeatable_read")
    await transaction.start()
    assert await old.fetchval("select count(*) from headrace_streams.orders") == 35
    assert (await stream.sweep(2 * HOUR)).busy == ["orders"]
    assert await old.fetchval("select count(*) from headrace_streams.orders") == 35
    await transaction.rollback()
    assert (await stream.sweep(2 * HOUR)).segments_dropped == 3


async def test_patience_grows_while_a_lock_is_held_up_to_a_second(
    stream: Stream, database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stream.create(retain_up_to=HOUR)
    asked: list[int] = []
    fetchrow = database.fetchrow

    async def spy(query: str, *args: Any) -> Any:
        if "plan_segments" in query:
            asked.append(args[1])
            return (0, True, None) if len(asked) < 8 else (1, False, None)
        return await fetchrow(query, *args)

    monkeypatch.setattr(database, "fetchrow", spy)
    sweeper = store.Sweeper(database)
    for _ in range(10):
        await sweeper.sweep(stream.now)
    assert asked == [50, 100, 200, 400, 800, 1000, 1000, 1000, 50, 50]


async def test_sweeps_at_the_same_time_remove_and_count_everything_once(stream: Stream, connect: Connect) -> None:
    await stream.create(retain_up_to=HOUR)
    readers = [await stream.consumer(name) for name in ("one", "two", "three")]
    await stream.fill(155)
    swept = await asyncio.gather(*(stream.sweep(2 * HOUR) for _ in range(6)))
    again = await stream.sweep(2 * HOUR)
    assert sum(one.segments_dropped for one in (*swept, again)) == 15
    assert sum(one.missed for one in (*swept, again)) == 3 * 155
    assert [(await stream.gap(reader) or ())[0] for reader in readers] == [155] * 3


async def test_retention_during_leasing_loses_and_doubles_nothing(stream: Stream, connect: Connect) -> None:
    """Four lease loops, a publisher, and a janitor that removes closed segments at once. Each
    message is either delivered or counted."""
    await stream.create(width=40, count=60, retain_up_to=HOUR)
    reader = await stream.consumer(max_ack_pending=10_000)
    await stream.fill(90)
    missed_before = (await stream.sweep(2 * HOUR)).missed
    delivered: list[int] = []
    publishing = True

    async def lease(name: str) -> None:
        empty = 0
        while empty < 3:
            over = not publishing
            batch = await reader.lease(name, limit=7)
            delivered.extend(batch.seqs)
            await reader.ack_all(batch)
            empty = empty + 1 if over and not batch.seqs and not batch.more else 0

    async def publish_them() -> None:
        nonlocal publishing
        for _ in range(60):
            await stream.fill(30)
        publishing = False

    async def remove() -> int:
        missed = missed_before
        while publishing:
            missed += (await stream.sweep(2 * HOUR)).missed
        return missed

    *_, missed = await asyncio.gather(*(lease(name) for name in "abcd"), publish_them(), remove())
    await stream.fill(30)
    delivered += await reader.drain()
    assert len(delivered) == len(set(delivered))
    assert len(delivered) + missed == 90 + 60 * 30 + 30
    assert (await stream.gap(reader) or (0,))[0] == missed
    assert delivered
    assert missed


# --- segments made ahead


async def test_segments_are_made_ahead_of_the_sequence_and_nothing_that_it_has_reached_is_touched(
    stream: Stream,
) -> None:
    await stream.create(width=100, count=2)
    await stream.fill(150)
    before = await stream.segments()
    swept = await stream.sweep()
    assert swept.segments_made > 0
    after = await stream.segments()
    assert after[:2] == before[:2] == [(1, 101), (101, 201)]
    assert after[-1][1] is None
    assert all(one[1] == other[0] for one, other in pairwise(after)), "no gap between them"
    assert (await stream.sweep()).segments_made == 0
    await stream.fill(3000)
    assert len(await stream.seqs()) == 3150


async def test_without_a_janitor_for_a_day_nothing_fails_and_then_all_is_well_again(stream: Stream) -> None:
    await stream.create(width=10, count=1, retain_up_to=HOUR)
    reader = await stream.consumer()
    await stream.fill(3000)
    assert await stream.database.fetchval('select count(*) from headrace_streams."orders.2741"') == 260
    swept = await stream.sweep()
    assert swept.segments_made > 0
    assert (2741, 3001) in await stream.segments()
    assert await reader.drain() == list(range(1, 3001))
    await stream.fill(50)
    assert await reader.drain() == list(range(3001, 3051))
    await stream.sweep(2 * HOUR)
    assert await stream.seqs() == []
    assert (await stream.segments())[0][0] == 3001


async def test_the_width_of_segments_follows_the_size_of_messages(stream: Stream) -> None:
    await stream.create(width=1000, count=1, max_storage=160_000_000)
    await stream.fill(1000, size=2000)
    await stream.sweep(1000)
    assert (await stream.segments())[1] == (1001, 2001)
    lower, upper = (await stream.segments())[2]
    assert upper is not None
    assert 3_000 < upper - lower < 5_000


async def test_the_width_of_segments_follows_the_rate_of_messages(stream: Stream) -> None:
    await stream.create(width=1000, count=1, retain_up_to=8_000)
    await stream.fill(1000)
    await stream.sweep(100)  # ten messages a second, over five hundred seconds
    assert (await stream.segments())[1] == (1001, 2001)
    lower, upper = (await stream.segments())[2]
    assert upper is not None
    assert 4_000 < upper - lower < 6_000


async def test_an_open_segment_that_is_too_large_is_closed_early(stream: Stream) -> None:
    await stream.create(width=1000, count=3, max_storage=1_000_000)
    reader = await stream.consumer()
    await stream.fill(60, size=20_000)
    swept = await stream.sweep()
    assert swept.numbers_drawn == 940
    await stream.fill(10, size=20_000)
    assert (await stream.sweep()).segments_dropped == 1
    assert await stream.seqs() == list(range(1001, 1011))
    assert await stream.gap(reader) == (60, 1, 61)
    assert await reader.drain() == list(range(1001, 1011))


async def test_an_open_publisher_continues_while_segments_are_replaced(stream: Stream, connect: Connect) -> None:
    await stream.create(width=100, count=1)
    await stream.fill(100)
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late")
    assert (await stream.sweep()).busy == ["orders"]
    await transaction.commit()
    await stream.sweep()
    await stream.fill(100)
    assert await stream.seqs() == list(range(1, 202))


# --- one message per key


async def test_one_message_per_key_by_age(stream: Stream) -> None:
    await store.create_stream(stream.database, StreamSpec(name="orders", one_message_per_key=True, retain_up_to=HOUR))
    behind, done = await stream.consumer("behind"), await stream.consumer("done", filters=("k.2",))
    await stream.fill(10, keys=10)
    await done.drain()
    await stream.age(2 * HOUR, below=5)
    swept = await stream.sweep()
    assert (swept.messages_trimmed, swept.missed) == (4, 4)
    assert await stream.seqs() == [5, 6, 7, 8, 9, 10]
    assert await stream.gap(behind) == (4, 1, 5)
    assert await stream.gap(done) is None
    assert await behind.drain() == [5, 6, 7, 8, 9, 10]


async def test_one_message_per_key_by_size_counts_live_rows(stream: Stream) -> None:
    await store.create_stream(
        stream.database, StreamSpec(name="orders", one_message_per_key=True, max_storage=1_000_000)
    )
    for _ in range(10):
        await stream.fill(40, keys=40, size=10_000)
    assert (await stream.sweep()).messages_trimmed == 0, "ten times as much lies there, dead"
    await stream.fill(200, keys=200, size=10_000)
    swept = await stream.sweep()
    assert 100 < swept.messages_trimmed < 150
    left = await stream.seqs()
    assert left == list(range(left[0], 601))
    assert await size(stream) <= 1_000_000


async def test_one_message_per_key_refuses_publishing_when_no_message_may_be_removed(stream: Stream) -> None:
    spec = StreamSpec(name="orders", one_message_per_key=True, max_storage=1_000_000, retain_at_least=HOUR)
    await store.create_stream(stream.database, spec)
    await stream.fill(200, keys=200, size=10_000)
    swept = await stream.sweep()
    assert (swept.messages_trimmed, swept.full) == (0, ["orders"])
    with pytest.raises(StreamFull):
        await stream.fill(1)
    swept = await stream.sweep(2 * HOUR)
    assert swept.messages_trimmed > 0
    assert swept.full == []


async def test_tombstones_are_removed_once_every_consumer_has_settled_them(stream: Stream) -> None:
    await store.create_stream(stream.database, StreamSpec(name="orders", one_message_per_key=True, tombstones=True))
    reader = await stream.consumer()
    await publish(stream.database, "a", "b", "c")
    await store.publish_many(stream.database, "orders", ["a", "b"], ["null", " null"])
    assert (await stream.sweep()).tombstones_removed == 0
    batch = await reader.lease()
    assert batch.seqs == [3, 4, 5]
    assert (await stream.sweep()).tombstones_removed == 0
    await reader.ack_all(batch)
    await reader.drain()  # this lease call finds that the missing messages are gone for good
    assert (await stream.sweep()).tombstones_removed == 2
    assert await stream.seqs() == [3]
    await publish(stream.database, "a")
    assert await reader.drain() == [6]


async def test_tombstones_without_consumers_are_removed_at_once(stream: Stream, connect: Connect) -> None:
    await store.create_stream(stream.database, StreamSpec(name="orders", one_message_per_key=True, tombstones=True))
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await store.publish(late, "orders", "late", "null")
    await store.publish(stream.database, "orders", "a", "null")
    sweeper = store.Sweeper(stream.database)
    await sweeper.sweep(stream.now)
    await transaction.commit()
    await sweeper.sweep(stream.now)
    assert await stream.seqs() == []


async def test_a_table_that_is_rewritten_all_the_time_keeps_the_size_of_its_keys(
    stream: Stream, connect: Connect
) -> None:
    """The server also prunes pages between two vacuums, unless a snapshot in any database of the
    cluster prevents it. This test always holds such a snapshot, so each round needs the same space,
    and only a vacuum frees it."""
    await store.create_stream(stream.database, StreamSpec(name="orders", one_message_per_key=True))
    await stream.database.fetch("alter table headrace_streams.orders set (autovacuum_enabled = off)")
    reader, sizes = await connect(), []
    for _ in range(8):
        async with reader.transaction(isolation="repeatable_read"):
            await reader.fetch(DEAD)  # the snapshot is taken at the first statement
            for _ in range(8):
                await stream.fill(2000, keys=2000)
        await until_dead(stream, 10_000)
        await until_vacuumed(stream)
        sizes.append(await stream.database.fetchval("select pg_relation_size('headrace_streams.orders')"))
    assert len(await stream.seqs()) == 2000
    # Without a vacuum the table grows in each round. A snapshot of another database may keep single
    # vacuums from freeing everything.
    grew = [later > 1.05 * earlier for earlier, later in pairwise(sizes[1:])]
    assert sum(grew) <= len(grew) / 2, sizes


async def until_dead(stream: Stream, rows: int) -> None:
    """Wait until the server's statistics count more dead rows. They are updated with a delay."""
    async with asyncio.timeout(30):
        while True:
            if await stream.database.fetchval(DEAD) > rows:
                return
            await asyncio.sleep(0)


async def until_vacuumed(stream: Stream) -> None:
    """Sweep until the dead rows are gone. A snapshot that the server takes for its statistics may
    prevent a vacuum."""
    async with asyncio.timeout(30):
        while await stream.database.fetchval(DEAD) > 10_000:
            assert (await stream.sweep()).vacuumed == ["headrace_streams.orders"]


# --- scheduled messages


async def schedule(stream: Stream, seconds: float, *keys: str) -> None:
    due = stream.now + timedelta(hours=1, seconds=seconds)
    await store.publish_many(
        stream.database,
        "orders",
        keys,
        [json.dumps(f"{key} {seconds:g}") for key in keys],
        deliver_at=[due] * len(keys),
    )


async def published(stream: Stream) -> list[str]:
    rows = await stream.database.fetch("select data #>> '{}' from headrace_streams.orders order by seq")
    return [row[0] for row in rows]


async def test_scheduled_messages_are_published_when_due_in_the_order_of_their_times(stream: Stream) -> None:
    await stream.create()
    await schedule(stream, 30, "a", "b")
    await schedule(stream, 10, "a", "c")
    await schedule(stream, 20, "a")
    await schedule(stream, 10, "a")
    assert (await stream.sweep()).published == 0
    assert (await stream.sweep(HOUR + 20)).published == 4
    assert await published(stream) == ["a 10", "c 10", "a 10", "a 20"]
    janitor = store.Schedule(stream.database)
    assert await janitor.deliver(stream.now + timedelta(hours=1, seconds=25)) == (0, 5)
    assert await janitor.deliver(stream.now + timedelta(hours=1, seconds=30)) == (2, None)
    assert await published(stream) == ["a 10", "c 10", "a 10", "a 20", "a 30", "b 30"]


async def test_many_are_published_call_by_call_and_by_several_at_once_each_once(stream: Stream) -> None:
    await stream.create()
    for second in range(5):
        await schedule(stream, second, *(["a"] * 500))
    schedules = [store.Schedule(stream.database) for _ in range(4)]
    counts = await asyncio.gather(*(one.deliver(stream.now + timedelta(hours=2)) for one in schedules))
    total = sum(count for count, _ in counts) + (await schedules[0].deliver(stream.now + timedelta(hours=2)))[0]
    assert total == 2500
    assert await published(stream) == [f"a {second}" for second in range(5) for _ in range(500)]


async def test_scheduled_messages_wait_while_the_stream_is_full(stream: Stream) -> None:
    await stream.create(max_storage=1_000_000, retain_at_least=HOUR)
    await schedule(stream, 0, "a")
    await stream.database.fetch("update headrace.streams set full_until = now() + interval '1 hour'")
    janitor = store.Schedule(stream.database)
    assert await janitor.deliver(stream.now + timedelta(hours=2)) == (0, 1)
    await stream.database.fetch("update headrace.streams set full_until = null")
    assert await janitor.deliver(stream.now + timedelta(hours=2)) == (1, None)


async def test_message_ids_are_forgotten_after_their_window(stream: Stream) -> None:
    await stream.create(dedupe_window=60)
    for message_id in ("x", "y"):
        await store.publish(stream.database, "orders", "a", "1", message_id=message_id)
    assert (await stream.sweep(50)).ids_forgotten == 0
    assert (await stream.sweep(70)).ids_forgotten == 2
    assert await stream.database.fetchval("select count(*) from headrace.message_ids") == 0


async def test_every_stream_is_swept_though_one_fails(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.fill(15)
    await store.create_stream(stream.database, StreamSpec(name="other", retain_up_to=HOUR))
    await publish(stream.database, "a", stream="other")
    reader = await stream.consumer()
    await stream.database.fetch("update headrace.consumers set condition = '1 / 0 = 1' where id = $1", reader.id)
    sweeper = store.Sweeper(stream.database)
    with pytest.raises(Exception, match="division by zero"):
        await sweeper.sweep(stream.now + timedelta(hours=2))
    assert await stream.database.fetchval("select count(*) from headrace_streams.other") == 0
    await sweeper.sweep(stream.now + timedelta(hours=2))  # the failing stream is skipped for a while
    assert len(await stream.seqs()) == 15


# --- many consumers


async def very_many(stream: Stream, count: int) -> None:
    """Insert this many consumers at the start of the stream. They are inserted directly, because
    only their number matters."""
    await stream.consumer("ship-0")
    await stream.database.fetch(
        """with made as (
               insert into headrace.consumers (stream_id, name, filters, condition, ordered, ack_wait, max_ack_pending, max_deliver, backoff, on_exhausted)
               select c.stream_id, 'ship-' || n, c.filters, c.condition, c.ordered, c.ack_wait, c.max_ack_pending, c.max_deliver, c.backoff, c.on_exhausted
               from headrace.consumers as c, generate_series(1, $1::int - 1) as n returning id)
           insert into headrace.cursors (consumer_id, version, position) select id, 1, 0 from made""",
        count,
    )


@pytest.mark.parametrize("by_segments", [True, False])
async def test_very_many_consumers_that_lag_are_moved_on_some_at_a_time_and_all_are_counted(
    stream: Stream, by_segments: bool
) -> None:
    """A lock for each of them at once would exceed the server's lock table, and the whole sweep would fail."""
    await stream.create(retain_up_to=HOUR, count=20 if by_segments else 1, width=10 if by_segments else 1_000)
    await stream.fill(25)
    await very_many(stream, 200)
    async with stream.database.transaction() as connection:
        locked, more = await connection.fetchrow(
            "select * from headrace.lock_lagging_consumers((select id from headrace.streams), 21, 64)"
        )
        held = await connection.fetchval(
            "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'"
        )
    assert (len(locked), more, held) == (64, True, 64)
    swept = await stream.sweep(2 * HOUR)
    assert await stream.seqs() == []
    assert swept.missed == 200 * 25
    gaps = await stream.database.fetch("select distinct messages from headrace.gaps")
    assert [row["messages"] for row in gaps] == [25]


async def test_a_stream_without_publishers_is_swept_rarely(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    await stream.create(retain_up_to=HOUR)
    sweeper = store.Sweeper(stream.database)
    looks: list[str] = []
    tend = sweeper._tend

    async def spy(row: Any, *arguments: Any) -> None:
        looks.append(row["name"])
        await tend(row, *arguments)

    monkeypatch.setattr(sweeper, "_tend", spy)
    for _ in range(5):
        await sweeper.sweep()
    assert len(looks) == 1
    await stream.fill(5)
    await sweeper.sweep()
    assert len(looks) == 2
    await stream.edit(retain_up_to=2 * HOUR)
    await sweeper.sweep()
    assert len(looks) == 3
