"""Acks of all messages of a lease at once, at the COMMIT of a transaction: the lease is emptied, and no message has a
row of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
import pytest_asyncio

from headrace import store
from headrace.model.errors import LeaseLost
from headrace.model.outcomes import Failure
from headrace.model.records import Batch, Lost
from headrace.store.database.errors import sqlstate
from tests.conftest import Connect, Declare
from tests.store.test_bounded_cost import touched
from tests.support.readers import Reader, begun, owner, publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio

_ACK = "select headrace_internal.ack_at_commit($1, $2, $3, $4, null, pg_current_xact_id()::text::bigint, 'box:7', 0.5)"


async def ack_at_commit(transaction: Any, reader: Reader, batch: Batch, *seqs: int) -> None:
    """Ack messages of a lease as the last statement before a COMMIT. The default is the whole batch."""
    chosen = list(seqs or batch.seqs)
    try:
        await transaction.fetchval(_ACK, reader.id, [batch.lease_id] * len(chosen), chosen, reader.clock.now)
    except Exception as error:
        if sqlstate(error) == "HR007":
            raise LeaseLost(str(error)) from error
        raise


async def commit_acks(database: store.Database, reader: Reader, batch: Batch, *seqs: int) -> None:
    """Ack messages of a lease in a transaction that does nothing else."""
    async with database.transaction() as connection:
        await ack_at_commit(connection, reader, batch, *seqs)


async def counts(reader: Reader) -> tuple[int, int]:
    """The numbers of leases and of acks."""
    return await reader.count("leases"), await reader.count("acks")


@pytest_asyncio.fixture(params=["in a row", "apart"])
async def two(request: pytest.FixtureRequest, database: store.Database, declare: Declare) -> tuple[Reader, Batch]:
    """A consumer, and a lease of its messages 1 and 2, or 1 and 3."""
    apart = request.param == "apart"
    reader = await declare(ack_wait=30, filters=("a", "b") if apart else (">",))
    await publish(database, *("axb" if apart else "ab"))
    batch = await reader.lease()
    assert batch.seqs == ([1, 3] if apart else [1, 2])
    return reader, batch


async def test_a_lease_that_is_acked_whole_is_emptied_with_the_commit(
    database: store.Database, two: tuple[Reader, Batch]
) -> None:
    reader, batch = two
    async with database.transaction() as connection:
        await publish(connection, "effect", stream="orders")
        await ack_at_commit(connection, reader, batch)
    assert await counts(reader) == (1, 0)
    assert (await reader.info()).in_flight == 0
    assert await reader.extend() == [batch.lease_id]
    assert await reader.ack_all(batch) == []
    assert await counts(reader) == (0, 0)


async def test_an_expired_lease_that_is_empty_puts_nothing_back(
    database: store.Database, two: tuple[Reader, Batch]
) -> None:
    reader, batch = two
    await commit_acks(database, reader, batch)
    reader.clock.advance(30)
    assert await reader.drain("bob") == []
    assert await counts(reader) == (0, 0)
    assert await reader.ack_all(batch) == [Lost(batch.lease_id or 0, None, gone=True)]


async def test_a_rollback_leaves_the_lease_as_it_was(two: tuple[Reader, Batch], connect: Connect) -> None:
    reader, batch = two
    async with begun(connect) as (connection, transaction):
        await ack_at_commit(connection, reader, batch)
        await transaction.rollback()
    assert (await reader.info()).in_flight == 2
    reader.clock.advance(30)
    assert await reader.drain("bob") == batch.seqs


async def test_the_keys_of_a_lease_that_is_empty_are_free(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aba")
    batch = await reader.lease("ann", 2)
    assert (await reader.lease("bob")).seqs == []
    await commit_acks(database, reader, batch)
    assert (await reader.lease("bob")).seqs == [3]


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_it_waits_for_a_transaction_that_has_acked_one_of_the_messages(
    database: store.Database, two: tuple[Reader, Batch], connect: Connect, end: str
) -> None:
    reader, batch = two
    async with begun(connect) as (single, transaction), begun(connect) as (whole, transaction_of_whole):
        await reader.ack_within(single, batch, batch.seqs[1])
        late = await start(ack_at_commit(whole, reader, batch))
        await until_blocked(database, single)
        await getattr(transaction, end)()
        if end == "commit":
            with pytest.raises(LeaseLost, match=f"message {batch.seqs[1]}"):
                await late
        else:
            await late
            await transaction_of_whole.commit()
    reader.clock.advance(30)
    assert await reader.drain("bob") == ([batch.seqs[0]] if end == "commit" else [])


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("count", [1, 2])
async def test_an_ack_that_comes_after_it_waits_and_is_refused(
    database: store.Database, two: tuple[Reader, Batch], connect: Connect, end: str, count: int
) -> None:
    reader, batch = two
    async with begun(connect) as (whole, transaction), begun(connect) as (other, transaction_of_other):
        await ack_at_commit(whole, reader, batch)
        late = await start(reader.ack_within(other, batch, *batch.seqs[:count]))
        await until_blocked(database, whole)
        await getattr(transaction, end)()
        if end == "commit":
            with pytest.raises(LeaseLost, match="message 1 "):
                await late
        else:
            await late
            await transaction_of_other.commit()
    reader.clock.advance(30)
    assert await reader.drain("bob") == ([] if end == "commit" else batch.seqs[count:])


async def test_after_it_no_other_outcome_of_a_message_counts(
    database: store.Database, two: tuple[Reader, Batch]
) -> None:
    reader, batch = two
    assert batch.lease_id
    await commit_acks(database, reader, batch)
    assert await reader.fail(batch, Failure("retry"), 1) == [Lost(batch.lease_id, 1, gone=False)]
    assert {lost.gone for lost in await reader.ack(batch)} == {True}
    assert await reader.drain("bob") == []


async def test_a_message_that_it_has_acked_may_be_acked_again_by_a_settle(
    database: store.Database, two: tuple[Reader, Batch]
) -> None:
    reader, batch = two
    await commit_acks(database, reader, batch)
    assert await reader.ack(batch) == []
    assert await counts(reader) == (0, 0)


async def test_the_rest_of_a_lease_is_not_acked_together_with_a_message_that_went_back(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abc")
    batch = await reader.lease()
    await reader.nack(batch, 1)
    with pytest.raises(LeaseLost, match="message 1 "):
        await commit_acks(database, reader, batch)
    assert (await reader.info()).in_flight == 2
    await commit_acks(database, reader, batch, 2, 3)
    assert await counts(reader) == (1, 0)
    assert await reader.drain("bob") == [1]


async def test_a_message_that_is_named_twice_does_not_stand_for_another_one(
    database: store.Database, two: tuple[Reader, Batch]
) -> None:
    reader, batch = two
    await commit_acks(database, reader, batch, 1, 1)
    assert await counts(reader) == (1, 1)
    reader.clock.advance(30)
    assert await reader.drain("bob") == batch.seqs[1:]


async def test_of_several_leases_those_that_are_acked_in_part_keep_the_rest(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"abcdef")
    one, other = await reader.lease("ann", 3), await reader.lease("ann", 3)
    leases = [one.lease_id] * 3 + [other.lease_id] * 2
    async with database.transaction() as connection:
        await connection.fetchval(_ACK, reader.id, leases, [1, 2, 3, 4, 6], reader.clock.now)
    assert await counts(reader) == (2, 2)
    assert (await reader.info()).in_flight == 3
    reader.clock.advance(30)
    assert await reader.drain("bob") == [5]


async def test_before_the_commit_is_there_a_lease_can_be_extended(
    database: store.Database, two: tuple[Reader, Batch], connect: Connect
) -> None:
    """A handler may ack long before its COMMIT, and the other leases of its process are extended with this one."""
    reader, batch = two
    async with begun(connect) as (connection, transaction):
        await reader.ack_within(connection, batch)
        assert await reader.extend() == [batch.lease_id]
        await transaction.commit()
    assert await counts(reader) == (1, 2)


async def test_a_snapshot_of_the_transactions_beginning_is_no_ground_to_empty_a_lease(
    two: tuple[Reader, Batch], connect: Connect
) -> None:
    reader, batch = two
    async with begun(connect) as (connection, transaction):
        await connection.execute("set transaction isolation level repeatable read")
        await ack_at_commit(connection, reader, batch)
        await transaction.commit()
    assert await counts(reader) == (1, 2)


async def test_a_history_has_each_message_once(database: store.Database, declare: Declare) -> None:
    reader = await declare(history=86_400.0)
    await publish(database, *"ab")
    batch = await reader.lease()
    await commit_acks(database, reader, batch)
    assert await reader.ack_all(batch) == []
    found = await database.fetch(
        "select seq, outcome, process, seconds from headrace_internal.completions_of_messages($1, $2, 9, $3) order by seq",
        reader.id, batch.seqs, reader.clock.now,
    )  # fmt: skip
    assert [tuple(row) for row in found] == [(1, "acked", "box:7", 0.5), (2, "acked", "box:7", 0.5)]


async def test_a_transaction_that_emptied_a_lease_is_known_to_have_committed(
    database: store.Database, two: tuple[Reader, Batch]
) -> None:
    """And one that did not is not taken for it, when its id was assigned again."""
    reader, batch = two
    assert batch.lease_id
    acks = store.Acks(reader.id, [batch.lease_id] * 2, batch.seqs)
    async with database.transaction() as connection:
        xid = await connection.fetchval("select pg_current_xact_id()::text::bigint")
    assert await store.transaction_status(database, xid, acks=acks) == "aborted"
    async with database.transaction() as connection:
        xid = await connection.fetchval("select pg_current_xact_id()::text::bigint")
        await ack_at_commit(connection, reader, batch)
    assert await store.transaction_status(database, xid, acks=acks) == "committed"


async def test_the_owner_of_a_lease_that_is_empty_dies(database: store.Database, two: tuple[Reader, Batch]) -> None:
    reader, batch = two
    await commit_acks(database, reader, batch)
    assert await store.reclaim(database, reader.id, owner("ann"), []) == 0
    assert await counts(reader) == (0, 0)
    assert await reader.drain("bob") == []


async def test_a_lease_that_is_extended_at_that_moment_is_not_emptied_beside_an_ack(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """It had expired when the leases were locked, and another transaction has acked one of its messages."""
    reader = await declare(ack_wait=30)
    await publish(database, *"abcd")
    one, other = await reader.lease("ann", 2), await reader.lease("ann", 2)
    assert one.lease_id is not None
    assert other.lease_id is not None
    async with begun(connect) as (single, ack), begun(connect) as (lock, _), begun(connect) as (whole, _):
        await reader.ack_within(single, other, 3)
        reader.clock.advance(20)
        await store.extend_leases(database, reader.id, [one.lease_id], now=reader.clock.now)
        await lock.execute("select from headrace_internal.leases where lease_id = $1 for key share", one.lease_id)
        reader.clock.advance(15)
        leases = [one.lease_id] * 2 + [other.lease_id] * 2
        late = await start(whole.fetchval(_ACK, reader.id, leases, [1, 2, 3, 4], reader.clock.now))
        await until_blocked(database, lock)
        await store.extend_leases(database, reader.id, [other.lease_id], now=reader.clock.now)
        await lock.execute("rollback")
        await until_blocked(database, single)
        await ack.commit()
        with pytest.raises(Exception, match="lease of the message 3 was lost"):
            await late


async def test_it_reads_no_other_leases_and_none_of_their_acks(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(max_ack_pending=10_000)
    reader.executor = connection = await connect()
    counts = []
    for others in (0, 300):
        await publish(database, *[f"k.{n}" for n in range(2 * others + 2)])
        batches = [await reader.lease("ann", 2) for _ in range(others + 1)]
        async with connection.transaction():
            for batch in batches[:-1]:
                await reader.ack_within(connection, batch, batch.seqs[0])
        counts.append(await touched(connection, lambda batch=batches[-1]: ack_at_commit(connection, reader, batch)))  # type: ignore[misc]
    assert counts[1] <= counts[0] + 10


async def test_looking_up_many_acks_compares_no_message_with_each(declare: Declare, connect: Connect) -> None:
    reader = await declare(max_ack_pending=10_000)
    connection = await connect()
    await connection.execute(
        "insert into headrace_internal.leases (consumer_id, lease_id, owner, expires_at, held, lowest, hashes)"
        " values ($1, 1, $2, $3, 3000, 1, array_fill(0, array[3000]))",
        reader.id, owner("ann"), reader.clock.now,
    )  # fmt: skip
    acks = store.Acks(reader.id, [1] * 3_000, list(range(1, 3_001)))
    async with connection.transaction():
        xid = await connection.fetchval("select pg_current_xact_id()::text::bigint")
        await connection.execute(
            "insert into headrace_internal.acks select $1, * from unnest($2::bigint[], $3::bigint[])", *acks
        )
    plans: list[dict[str, Any]] = []
    await connection.execute(
        """load 'auto_explain'; set auto_explain.log_min_duration = 0; set auto_explain.log_analyze = on;
        set auto_explain.log_nested_statements = on; set auto_explain.log_format = json; set client_min_messages = log"""
    )
    connection.add_log_listener(lambda _, log: plans.append(json.loads(log.message.partition("plan:")[2])["Plan"]))
    assert await store.transaction_status(connection, xid, acks=acks) == "committed"
    assert 3 * 3_000 <= sum(map(_rows, plans)) <= 20 * 3_000


def _rows(plan: dict[str, Any]) -> float:
    """The rows that the nodes of a plan have returned or discarded."""
    counts = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter")
    own = sum(plan.get(count, 0) for count in counts) * plan["Actual Loops"]
    return float(own + sum(map(_rows, plan.get("Plans", ()))))
