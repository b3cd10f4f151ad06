"""The history of a consumer: it has each message that was completed, and no other."""

from __future__ import annotations

import struct
from collections import Counter
from datetime import timedelta
from math import nan
from random import Random
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from headrace import store
from headrace.flow.in_flight import InFlightTracker
from headrace.model.errors import LeaseLost
from headrace.model.outcomes import CANCEL, RELEASE, Failure, HandlingReport, Settlement
from headrace.model.records import Batch, Lost
from headrace.model.watching.completions import Completion
from headrace.runtime.maintenance.completions import Completions
from tests.conftest import Connect, Declare
from tests.support.readers import Reader, owner, publish

pytestmark = pytest.mark.asyncio

DAY = 86400.0


async def entries(reader: Reader, limit: int = 3) -> list[Completion]:
    """All entries of a consumer's history, read in pages."""
    found: list[Completion] = []
    before = None
    while True:
        read = await store.completion_page(reader.executor, reader.id, limit=limit, before=before, now=reader.clock.now)
        found += read.completions
        if read.next is None:
            return found
        before = store.CompletionPosition.parse(read.next)


async def outcomes(reader: Reader) -> list[tuple[int, str, int]]:
    """The seq, outcome and attempt of each entry, in the order of seq."""
    return sorted((one.seq, one.outcome, one.attempts) for one in await entries(reader))


def packed(*seconds: float) -> bytes:
    return struct.pack(f">{len(seconds)}f", *seconds)


async def acked_by_a_worker(reader: Reader, *batches: Batch) -> list[Lost]:
    """Ack leases that hold all their messages, as a worker does, with a 64th of its seq as the seconds of each message."""
    tracker: InFlightTracker[Any] = InFlightTracker()
    for batch in batches:
        lease = tracker.take(batch.lease_id or 0, batch.seqs, batch.keys, 30.0)
        lease.seconds = {seq: seq / 64 for seq in batch.seqs}
        for seq in reversed(batch.seqs):
            tracker.ack(SimpleNamespace(seq=seq, lease=lease))
    parcel = tracker.collect(0.0)
    assert parcel is not None
    settlement = parcel.settlement
    settlement.report = parcel.report("host:7")
    return await store.settle(reader.executor, reader.id, settlement, now=reader.clock.now)


async def test_a_consumer_without_history_keeps_nothing(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    await reader.ack(batch, 1)
    await reader.ack_all(batch)
    assert await reader.count("completions") == 0


async def test_a_settle_call_is_few_rows_of_a_worker(database: store.Database, declare: Declare) -> None:
    reader = await declare(history=DAY)
    await publish(database, *"abcdef")
    one, two, rest = [(await reader.lease(limit=2)).lease_id or 0 for _ in range(3)]
    report = HandlingReport("host:7", [2, 2], [1, None], packed(0.5, 1.5, nan, 2.5), [5], [3.5], [3])
    settlement = Settlement([one, two], [rest], [5], [None], report)
    assert await store.settle(database, reader.id, settlement, now=reader.clock.now) == []
    found = await entries(reader)
    assert {(c.seq, c.outcome, c.seconds, c.process) for c in found} == {
        (1, "acked", 0.5, "host:7"),
        (2, "acked", 1.5, "host:7"),
        (3, "expired", None, "host:7"),
        (4, "acked", 2.5, "host:7"),
        (5, "acked", 3.5, "host:7"),
    }
    assert {c.at for c in found} == {reader.clock.now}
    assert (
        await reader.count("completions") == 3
    )  # a lease of successive messages has a row, and the rest one for each outcome


async def test_of_a_client_the_time_since_the_delivery_is_kept(database: store.Database, declare: Declare) -> None:
    reader = await declare(history=DAY)
    await publish(database, *"ab")
    batch = await reader.lease()
    reader.clock.advance(3)
    await reader.ack(batch, 2)
    reader.clock.advance(4)
    await reader.ack_all(batch)
    assert [(c.seq, c.seconds, c.process) for c in await entries(reader)] == [(1, 7.0, None), (2, 3.0, None)]


async def test_seqs_of_several_buckets_are_found_one_by_one(database: store.Database, declare: Declare) -> None:
    reader = await declare(history=DAY, max_ack_pending=5000)
    await store.publish_many(database, "orders", [f"k{n}" for n in range(2500)], ["1"] * 2500)
    batch = await reader.lease(limit=2500)
    await reader.ack_all(batch)
    assert await reader.count("completions") == 3
    for seq in (1, 1023, 1024, 1025, 2048, 2500):
        (found,) = await store.completions_of_messages(database, reader.id, [seq], now=reader.clock.now)
        assert (found.seq, found.outcome) == (seq, "acked")
    assert await store.completions_of_messages(database, reader.id, [2501], now=reader.clock.now) == []


async def test_a_lease_of_successive_messages_is_kept_without_their_places(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(history=DAY, max_ack_pending=5000)
    await store.publish_many(database, "orders", [f"k{n}" for n in range(4000)], ["1"] * 4000)
    batches = [await reader.lease(limit=limit) for limit in (500, 2500, 1000)]
    assert await acked_by_a_worker(reader, *batches) == []
    rows = await database.fetch("select lower, upper, places from headrace_internal.completions order by lower")
    ends = (500, 1023, 2047, 3000, 3071, 4000)
    assert [(row["lower"], row["upper"]) for row in rows] == list(
        zip((1, *(end + 1 for end in ends[:-1])), ends, strict=True)
    )
    assert [row["places"] for row in rows] == [None] * 6
    for seq in (1, 500, 501, 1023, 1024, 2047, 2048, 3000, 3001, 4000):
        (found,) = await store.completions_of_messages(database, reader.id, [seq], now=reader.clock.now)
        assert (found.seq, found.outcome, found.attempts, found.seconds) == (seq, "acked", 1, seq / 64)
    assert [one.seq for one in await entries(reader, 700)] == list(range(4000, 0, -1))


async def test_a_report_that_does_not_fit_its_lease_tells_no_duration(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(history=DAY)
    await publish(database, *"abcd")
    lease = (await reader.lease()).lease_id or 0
    settlement = Settlement([lease], [], [], [], HandlingReport("host:7", [3], [1], packed(0.5, 0.5, 0.5)))
    await store.settle(database, reader.id, settlement, now=reader.clock.now)
    assert [(one.seq, one.seconds) for one in await entries(reader)] == [(seq, None) for seq in (4, 3, 2, 1)]


async def test_the_attempt_that_succeeded_is_kept(database: store.Database, declare: Declare) -> None:
    reader = await declare(history=DAY)
    await publish(database, *"ab")
    await reader.nack(await reader.lease(), 1)
    await reader.drain()
    assert await outcomes(reader) == [(1, "acked", 2)]
    reader.clock.advance(60)
    await reader.drain("bob")
    assert await outcomes(reader) == [(1, "acked", 2), (2, "acked", 2)]


async def test_a_message_that_was_cancelled_at_work_is_kept(database: store.Database, declare: Declare) -> None:
    """One that is cancelled while it waits has no process and no duration. The list of cancellations has it."""
    reader = await declare(history=DAY)
    await publish(database, *"ab")
    lease = (await reader.lease(limit=1)).lease_id or 0
    assert await store.cancel(database, reader.id, [1, 2], by="ops") == ([2], [1], [])
    report = HandlingReport("host:7", seqs=[1], seconds=[0.5])
    settlement = Settlement([], [lease], [1], [CANCEL], report)
    await store.settle(database, reader.id, settlement, now=reader.clock.now, process="host:7")
    (found,) = await entries(reader)
    assert (found.seq, found.outcome, found.seconds, found.process) == (1, "cancelled", 0.5, "host:7")


async def test_messages_that_die_are_kept_with_their_process(database: store.Database, declare: Declare) -> None:
    reader = await declare(history=DAY, max_deliver=1)
    await publish(database, *"abc")
    batch = await reader.lease(limit=2)
    lease = batch.lease_id or 0
    failures: list[Failure | None] = [Failure("reject", error="no"), Failure("retry", error="late")]
    settlement = Settlement(
        [], [lease, lease], [1, 2], failures, HandlingReport("host:7", seqs=[1, 2], seconds=[0.5, 2.0])
    )
    await store.settle(database, reader.id, settlement, now=reader.clock.now, process="host:7")
    await reader.lease()
    reader.clock.advance(60)
    await reader.lease()
    found = {c.seq: (c.outcome, c.seconds, c.process) for c in await entries(reader)}
    assert found == {
        1: ("dead_letter", 0.5, "host:7"),
        2: ("dead_letter", 2.0, "host:7"),
        3: ("dead_letter", None, None),
    }


async def test_a_report_that_names_a_message_twice_counts_once(database: store.Database, declare: Declare) -> None:
    """A worker's report of a lost lease and of a new one may name the same message."""
    reader = await declare(history=DAY, max_deliver=2)
    await publish(database, *"abc")
    lease = (await reader.lease()).lease_id or 0
    report = HandlingReport("host:7", seqs=[1, 2, 1, 2], seconds=[0.5, 0.5, 0.5, 0.5])
    settlement = Settlement([], [lease, lease], [1, 2], [Failure("retry"), None], report)
    assert await store.settle(database, reader.id, settlement, now=reader.clock.now) == []
    assert await outcomes(reader) == [(2, "acked", 1)]
    reader.clock.advance(60)
    assert sorted(await reader.drain("bob")) == [1, 3]


async def test_a_dropped_message_is_kept_and_not_as_a_dead_letter(database: store.Database, declare: Declare) -> None:
    reader = await declare(history=DAY, max_deliver=1, on_exhausted="drop")
    await publish(database, *"ab")
    batch = await reader.lease()
    await reader.nack(batch, 1)
    await reader.reject(batch, 2)
    assert await outcomes(reader) == [(1, "dropped", 1), (2, "dead_letter", 1)]


async def test_a_redriven_message_has_another_entry(database: store.Database, declare: Declare) -> None:
    reader = await declare(history=DAY)
    await publish(database, "a")
    await reader.reject(await reader.lease())
    reader.clock.advance(1)
    await reader.redrive()
    await reader.drain()
    assert [c.outcome for c in await entries(reader)] == ["acked", "dead_letter"]


async def test_an_ack_in_a_transaction_that_rolls_back_is_not_in_the_history(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(history=DAY)
    await publish(database, *"abc")
    batch = await reader.lease()
    connection = await connect()
    transaction = connection.transaction()
    await transaction.start()
    await reader.ack_within(connection, batch, 1)
    await transaction.rollback()
    assert await outcomes(reader) == []
    async with connection.transaction():
        await reader.ack_within(connection, batch, 1)
    async with connection.transaction():
        await reader.ack_within(connection, batch, 2, 3)
    assert await outcomes(reader) == [(1, "acked", 1), (2, "acked", 1), (3, "acked", 1)]
    await reader.ack_all(batch)
    assert len(await outcomes(reader)) == 3, "settling the lease records no ack again"


async def test_a_worker_that_acks_in_a_transaction_is_named(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(history=DAY)
    await publish(database, *"abc")
    batch = await reader.lease()
    lease, connection = batch.lease_id or 0, await connect()
    for seqs in ([1], [2, 3]):
        async with connection.transaction():
            await store.ack(
                connection,
                reader.id,
                [lease] * len(seqs),
                seqs,
                now=reader.clock.now,
                handled=store.Handled("host:7", 1.5),
            )
    assert {(c.seq, c.seconds, c.process) for c in await entries(reader)} == {(n, 1.5, "host:7") for n in (1, 2, 3)}


async def test_stale_acks_leave_no_entry(database: store.Database, declare: Declare, connect: Connect) -> None:
    reader = await declare(history=DAY)
    await publish(database, *"ab")
    stale = await reader.lease()
    reader.clock.advance(60)
    held = await reader.lease("bob")
    assert len(await reader.ack_all(stale)) == 1
    assert len(await reader.ack(stale, 1)) == 1
    connection = await connect()
    with pytest.raises(LeaseLost):
        async with connection.transaction():
            await reader.ack_within(connection, stale, 1)
    assert await outcomes(reader) == []
    await reader.ack_all(held)
    assert await outcomes(reader) == [(1, "acked", 2), (2, "acked", 2)]


async def test_what_is_in_the_history_was_acked_and_what_was_acked_is_in_the_history(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Random settles of three owners whose leases expire, against a count of the acks that were not refused."""
    random = Random(7)
    reader = await declare(history=DAY, max_deliver=-1)
    connection = await connect()
    await publish(database, *(f"k{n % 40}" for n in range(400)))
    acked: Counter[int] = Counter()
    held: list[Any] = []
    while sum(acked.values()) < 400:
        batch = await reader.lease(random.choice(("ann", "bob", "eve")), limit=random.randint(1, 20))
        if batch.lease_id is not None:
            held.append(batch)
        reader.clock.advance(random.choice((0, 1, 8)))
        batch = held.pop(random.randrange(len(held))) if held else None
        if batch is None:
            continue
        match random.randrange(5):
            case 0:
                await reader.nack(batch)
            case 1:
                lost = {one.lease_id for one in await acked_by_a_worker(reader, batch)}
                acked.update(() if batch.lease_id in lost else batch.seqs)
            case 2:
                missed = {one.seq for one in await reader.ack(batch)}
                acked.update(seq for seq in batch.seqs if seq not in missed)
            case 3:
                try:
                    async with connection.transaction():
                        await reader.ack_within(connection, batch, *batch.seqs[:3])
                        if rolled_back := random.random() < 0.3:
                            raise asyncpg.RaiseError
                except (LeaseLost, asyncpg.RaiseError):
                    rolled_back = True
                acked.update(() if rolled_back else batch.seqs[:3])
                await reader.release(batch)
            case 4:
                pass  # it expires
    found = await entries(reader)
    assert Counter(one.seq for one in found) == acked
    assert all(one.seconds == one.seq / 64 for one in found if one.process == "host:7")
    assert 0 < sum(one.process == "host:7" for one in found) < 400
    assert acked == Counter(range(1, 401)), "each message is acked once"


async def test_entries_that_are_too_old_are_not_shown_and_removed(database: store.Database, declare: Declare) -> None:
    reader = await declare(history=3600)
    other = await declare("other", history=DAY)
    for hours in range(3):
        reader.clock.now += timedelta(hours=bool(hours))
        await publish(database, "a")
        await reader.drain()
        await other.drain()
    reader.clock.advance(1)
    assert [one.seq for one in await entries(reader)] == [3]
    removal = Completions(database, clock=lambda: 0.0)
    assert await removal.delete_old(reader.clock.now) == 2
    assert (await reader.count("completions"), await other.count("completions")) == (1, 3)
    assert await removal.delete_old(reader.clock.now) == 0, "the next pass is later"


async def test_a_history_that_is_switched_off_is_removed(database: store.Database, declare: Declare) -> None:
    reader = await declare(history=3600)
    await publish(database, "a")
    await reader.drain()
    await declare(history=None)
    assert await entries(reader) == []
    await publish(database, "a")
    await reader.drain()
    await Completions(database).delete_old(reader.clock.now)
    assert await reader.count("completions") == 0


async def test_the_history_of_a_deleted_consumer_is_removed(database: store.Database, declare: Declare) -> None:
    reader = await declare(history=3600)
    await publish(database, "a")
    await reader.drain()
    await store.delete_consumer(database, reader.id, force=True)
    await Completions(database).delete_old(reader.clock.now)
    assert await reader.count("completions") == 0


async def test_removal_reads_no_dead_rows_again(database: store.Database, declare: Declare, connect: Connect) -> None:
    """An old snapshot keeps the rows that each call removes. The next calls begin behind them."""
    reader = await declare(history=3600)
    await database.fetchval(
        """insert into headrace_internal.completions (consumer_id, at, lower, upper, outcome)
           select $1, $2::timestamptz + n * interval '1 second', 1, 1, 'acked' from generate_series(1, 12000) as n""",
        reader.id,
        reader.clock.now,
    )
    holder = await connect()
    async with holder.transaction(isolation="repeatable_read"):
        await holder.fetchval("select count(*) from headrace_internal.completions")
        reader.clock.now += timedelta(hours=1, seconds=12001)
        floor, removed = None, []
        for _ in range(3):
            done = await store.delete_old_completions(database, reader.id, floor, now=reader.clock.now)
            floor, removed = done.reached, [*removed, done.rows]
        assert removed == [5000, 5000, 2000]
        plan = await database.fetch(
            "explain (analyze, buffers, costs off, timing off, format json) select * from headrace_internal.delete_old_completions($1, $2, $3)",
            reader.id,
            floor,
            reader.clock.now,
        )
        assert '"Shared Hit Blocks"' in plan[0][0]
        assert _blocks(plan[0][0]) < 60


def _blocks(plan: str) -> int:
    import json

    return int(json.loads(plan)[0]["Plan"]["Shared Hit Blocks"])


async def test_a_settle_of_a_released_message_leaves_no_entry(database: store.Database, declare: Declare) -> None:
    reader = await declare(history=DAY)
    await publish(database, "a")
    batch = await reader.lease()
    await reader.fail(batch, RELEASE)
    assert await store.reclaim(database, reader.id, owner("ann"), []) == 0
    assert await outcomes(reader) == []


async def test_durations_are_read_as_they_were_written(database: store.Database) -> None:
    known = [0.0, 2e-38, 5e-8, 0.1, 0.25, 1.0, 86399.97, 3e38]
    for seconds in known:
        read = "select headrace_internal.seconds_at('\\xffffffff'::bytea || float4send($1), 1)"
        assert await database.fetchval(read, seconds) == struct.unpack("f", struct.pack("f", seconds))[0]
    for unknown in ("\\x7fc00000", "\\xbf800000", "\\x7f800000", "\\x", None):
        assert await database.fetchval("select headrace_internal.seconds_at($1::text::bytea, 0)", unknown) is None
