"""No slowdown from dead rows: hot tables are read by index from a floor, so a call does not visit
the dead rows that an old snapshot keeps."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import pytest

from headrace import store
from headrace.model.outcomes import Failure, Settlement
from tests.conftest import Connect, Declare
from tests.support.readers import Reader, owner, publish

pytestmark = pytest.mark.asyncio

HOT = ("cursors", "leases", "acks", "parked", "tails", "dead_letters", "orders")


async def read_in_sequence(connection: Any, work: Callable[[], Awaitable[Any]]) -> dict[str, int]:
    """Count the sequential scans of each hot table that `work` causes on the connection."""
    transaction = connection.transaction()
    await transaction.start()
    await work()
    rows = await connection.fetch(
        "select relname, seq_scan from pg_stat_xact_user_tables where relname = any ($1) and seq_scan > 0", HOT
    )
    await transaction.commit()
    return {row["relname"]: row["seq_scan"] for row in rows}


async def test_every_call_reads_hot_tables_only_by_index(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """The tables are tiny here, so Postgres uses a sequential scan wherever the function leaves it the choice."""
    reader = await declare(filters=("*", "x.>"), max_deliver=2, on_exhausted="block", ack_wait=30)
    reader.executor = connection = await connect()
    await publish(database, *"aabbccddee")
    batches: list[Any] = []

    async def lease() -> None:
        batches.append(await reader.lease(f"owner {len(batches)}", 2))

    async def settle_in_every_way() -> None:
        batch = batches[1]
        await reader.nack(batch, batch.seqs[0])
        await reader.reject(batch, batch.seqs[1])
        await reader.ack_all(batches[0])

    async def start_and_ack_in_a_transaction() -> None:
        await reader.mark_started(batches[-1], *batches[-1].seqs)
        await reader.ack_within(connection, batches[-1], batches[-1].seqs[0])

    async def redrive_and_discard() -> None:
        await reader.redrive(3)
        await reader.discard()

    steps: list[Callable[[], Awaitable[Any]]] = [
        lease,
        lease,
        settle_in_every_way,
        lease,
        start_and_ack_in_a_transaction,
        reader.extend,
        redrive_and_discard,
    ]
    for step in steps:
        assert await read_in_sequence(connection, step) == {}, step.__name__
    reader.clock.advance(40)
    for step in [lease, lambda: reader.seek(0), lease, reader.info]:
        assert await read_in_sequence(connection, step) == {}
    # Holes, late messages, parked and blocked messages, all at the same time.
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, *"ab")
    await publish(database, *"ab")
    for _ in range(3):
        assert await read_in_sequence(connection, lease) == {}
    await transaction.commit()
    for _ in range(3):
        assert await read_in_sequence(connection, lease) == {}


@pytest.mark.parametrize("failing", [False, pytest.param(True, marks=pytest.mark.long)], ids=["acks", "retries"])
async def test_a_lease_reads_no_more_after_thousands_of_others_while_xmin_is_pinned(
    database: store.Database, declare: Declare, connect: Connect, failing: bool
) -> None:
    reader = await declare(max_ack_pending=10_000)
    await publish(database, *[f"k.{n % 50}" for n in range(7_000)])
    reader.executor = connection = await connect()
    pin = await connect()
    pinned = pin.transaction(isolation="repeatable_read")
    await pinned.start()
    await pin.fetchval("select pg_current_xact_id()")

    await rounds(reader, 50, failing)
    before = await pages_of_a_lease(reader)
    await rounds(reader, 2_000, failing)
    after = await pages_of_a_lease(reader)
    dead = await connection.fetchval("select pg_relation_size('headrace_internal.leases') / 8192")
    await pinned.rollback()
    assert dead > 10, "nothing was dead, so nothing was proven"
    assert after <= 1.5 * before + 10, f"a lease touched {before} pages at first and {after} after 2,000 others"


async def rounds(reader: Reader, count: int, failing: bool) -> None:
    for n in range(count):
        batch = await reader.lease(limit=3)
        assert batch.lease_id is not None
        settlement = Settlement(whole=[batch.lease_id])
        if failing and n % 3 == 0:
            settlement = Settlement(
                leases=[batch.lease_id] * len(batch.seqs),
                seqs=batch.seqs,
                failures=[Failure("retry", 5 if n % 2 else None)] * len(batch.seqs),
            )
        assert await store.settle(reader.executor, reader.id, settlement, now=reader.clock.now) == []
        reader.clock.advance(1)


async def pages_of_a_lease(reader: Reader) -> float:
    """Count the pages that a lease call reads. Pages are exact, times are not."""
    found = []
    for _ in range(5):
        plan = json.loads(
            await reader.executor.fetchval(
                f"explain (analyze, buffers, format json)"
                f" select headrace_internal.lease({reader.id}, '{owner('ann')}', row(3, 2000, 16000000, false), '{reader.clock.now.isoformat()}')"
            )
        )[0]["Plan"]
        found.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
        reader.clock.advance(1)
        (lease,) = await reader.executor.fetch(
            "select lease_id from headrace_internal.leases where consumer_id = $1", reader.id
        )
        await store.settle(reader.executor, reader.id, Settlement(whole=[lease[0]]), now=reader.clock.now)
    return float(median(found))
