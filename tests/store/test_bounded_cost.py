"""Bounded cost: the rows that a call reads do not grow with the number of messages that wait behind
another message of their key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from headrace import store
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.outcomes import Failure, HandlingReport, Settlement
from headrace.model.records import Batch
from headrace.model.specs import StreamSpec
from headrace.runtime.maintenance.sweeper import Sweeper
from tests.conftest import Connect, Declare
from tests.support import notifications
from tests.support.readers import Reader, owner, publish

pytestmark = pytest.mark.asyncio

FEW, MANY = 20, 3_000

SOON = 20.0

_TOUCHED = """
select coalesce(sum(pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_inserted(c.oid)
                    + pg_stat_get_xact_tuples_updated(c.oid) + pg_stat_get_xact_tuples_deleted(c.oid)), 0)::int
from pg_class as c
where c.relnamespace in ('headrace_internal'::regnamespace, 'headrace_streams'::regnamespace) and c.relkind in ('r', 'i')
"""


async def touched(connection: Any, work: Callable[[], Awaitable[Any]]) -> int:
    """Count the rows and index entries of Headrace's tables that `work` reads or writes on the connection."""
    async with connection.transaction():
        before = await connection.fetchval(_TOUCHED)  # includes the counts that the session has not reported yet
        await work()
        return int(await connection.fetchval(_TOUCHED)) - int(before)


async def hold_up(reader: Reader, database: store.Database, how: str, key: str = "stuck") -> None:
    """Release a message of the key with a delay of an hour, or make it a dead letter that blocks its key."""
    await publish(database, key)
    batch = await reader.lease(limit=1)
    if how == "blocked":
        await reader.nack(batch)
    else:
        await reader.nack(batch, delay=3600)


async def wait_behind(reader: Reader, database: store.Database, count: int, key: str = "stuck") -> None:
    await publish(database, *[key] * count)
    assert await reader.drain(limit=1_000, look=1_000) == []


@pytest.mark.parametrize("how", ["blocked", "in backoff", "in flight"])
async def test_messages_that_wait_behind_a_key_cost_a_lease_call_nothing(
    database: store.Database, declare: Declare, connect: Connect, how: str
) -> None:
    reader = await declare(max_deliver=1 if how == "blocked" else -1, on_exhausted="block", max_ack_pending=10_000)
    if how == "in flight":
        await publish(database, "stuck")
        await reader.lease("bob", 1)
    else:
        await hold_up(reader, database, how)
    reader.executor = connection = await connect()
    counts = []
    for behind in (FEW, MANY):
        await wait_behind(reader, database, behind)
        await publish(database, *[f"k.{n}" for n in range(98)], "stuck", "stuck")
        batches: list[Any] = []

        async def lease(batches: list[Any] = batches) -> None:
            batches.append(await reader.lease(limit=200, look=1_000))

        counts.append(await touched(connection, lease))
        assert len(batches[0].seqs) == 98
        counts.append(await touched(connection, lease))  # an empty lease call
        await reader.ack_all(*batches)
    assert counts[2] <= counts[0] + 20, counts
    assert counts[3] <= counts[1] + 20, counts


async def empty_by_statistics(connection: Any, *, small: str | None = None) -> None:
    """Set the planner statistics of every table as if it were empty, as a vacuum does that finds it
    empty. All indexes then cost the same, and `small` is the name of the index that looks smallest."""
    await connection.execute(
        "vacuum headrace_internal.parked, headrace_internal.tails, headrace_internal.dead_letters, headrace_internal.message_ids"
    )
    await connection.execute(
        """update pg_class set reltuples = 0, relpages = greatest(relpages, 1)
           where relnamespace = 'headrace_internal'::regnamespace and relkind in ('r', 'i')"""
    )
    if small is not None:
        await connection.execute(f"reindex index headrace_internal.{small}")
        await connection.execute("update pg_class set reltuples = 0 where relname = $1", small)


INDEXES = [
    "parked_pkey",
    "parked_by_key",
    "parked_due",
    "tails_pkey",
    "tails_by_key",
    "dead_letters_blocking",
    "dead_letters_that_block",
]


@pytest.mark.parametrize("small", INDEXES)
async def test_wrong_planner_statistics_do_not_change_the_index_of_a_lookup(
    database: store.Database, declare: Declare, connect: Connect, small: str
) -> None:
    """Five hundred keys wait for their retries and three hundred are blocked. Each has a tail, and
    an old snapshot keeps many dead rows beside them."""
    reader = await declare(max_deliver=1, on_exhausted="block", max_ack_pending=10_000)
    old = await connect()
    async with old.transaction(isolation="repeatable_read", readonly=True):
        await old.fetchval("select count(*) from headrace_internal.streams")
        for _ in range(3):
            await publish(database, *[f"gone.{n}" for n in range(1_000)])
            await reader.nack(await reader.lease(limit=1_000))
            await reader.discard()
            await publish(database, *[f"gone.{n}" for n in range(1_000)])
            await reader.release(await reader.lease(limit=1_000))
            await reader.drain(limit=1_000)
        await publish(database, *[f"blocked.{n}" for n in range(300)])
        await reader.nack(await reader.lease(limit=300))
        await publish(database, *[f"later.{n}" for n in range(500)])
        await reader.fail(await reader.lease(limit=500), Failure("release", 3600.0, "later"))
        await wait_behind(reader, database, 300, "later.7")
        await publish(database, *[f"{kind}.{n}" for n in range(300) for kind in ("later", "blocked")])
        await reader.drain(limit=1_000)
        reader.executor = connection = await connect()
        await empty_by_statistics(connection, small=small)
        await publish(database, *[f"k.{n}" for n in range(100)], "later.1", "blocked.1")
        batches: list[Any] = []

        async def lease() -> None:
            batches.append(await reader.lease(limit=200, look=1_000))

        cost = await touched(connection, lease)
        assert [len(batch.seqs) for batch in batches] == [100]
        assert cost <= 400, cost
        assert await touched(connection, lease) <= 200

        reader.clock.advance(7200)
        await reader.extend()
        await reader.ack(await reader.lease(limit=1))
        await empty_by_statistics(connection, small=small)
        cost = await touched(connection, lease)
        assert len(batches[-1].seqs) == 200
        assert cost <= 10_000, cost
        taken = batches[-1]

        async def settle() -> None:
            await reader.fail(taken, Failure("release", 3600.0, "later"))

        cost = await touched(connection, settle)
        assert cost <= 1_000, cost


async def _settle_acked(reader: Reader, batch: Batch) -> None:
    await reader.ack_within(reader.executor, batch, batch.seqs[0])
    await reader.ack(batch, batch.seqs[0])


CALLS_BY_LEASE: dict[str, Callable[[Reader, Batch], Awaitable[Any]]] = {
    "ack all": lambda reader, batch: reader.ack_all(batch),
    "ack": lambda reader, batch: reader.ack(batch, *batch.seqs),
    "ack one": lambda reader, batch: reader.ack(batch, batch.seqs[0]),
    "ack within": lambda reader, batch: reader.ack_within(reader.executor, batch),
    "settle acked": _settle_acked,
    "nack": lambda reader, batch: reader.nack(batch, delay=3600),
    "nack one": lambda reader, batch: reader.nack(batch, batch.seqs[0], delay=3600),
    "reject": lambda reader, batch: reader.reject(batch),
    "extend": lambda reader, batch: store.extend_leases(reader.executor, reader.id, [batch.lease_id or 0]),
    "mark started": lambda reader, batch: reader.mark_started(batch, *batch.seqs),
}


@pytest.mark.parametrize("call", CALLS_BY_LEASE)
async def test_leases_that_have_ended_cost_a_call_nothing_beside_an_old_snapshot(
    database: store.Database, declare: Declare, connect: Connect, call: str
) -> None:
    """Up to PostgreSQL 16, an index may be read without the ids that are asked for, see headrace_internal.is_one_of."""
    reader = await declare(max_deliver=5)
    old = await connect()
    reader.executor = connection = await connect()
    counts = []
    async with old.transaction(isolation="repeatable_read", readonly=True):
        await old.fetchval("select count(*) from headrace_internal.leases")
        for ended in (3, 200):
            await publish(database, *[f"{ended}.{n}" for n in range(ended + 2)])
            for _ in range(ended):
                await reader.ack_all(await reader.lease(limit=1))
            batch = await reader.lease(limit=2)
            counts.append(await touched(connection, lambda batch=batch: CALLS_BY_LEASE[call](reader, batch)))  # type: ignore[misc]
            await store.reclaim(connection, reader.id, owner("ann"), [])
    assert counts[1] <= counts[0] + 10, counts


_BOUNDS = (
    "select coalesce(sum(calls), 0)::int from pg_stat_xact_user_functions where funcname in ('lowest_of', 'highest_of')"
)


@pytest.mark.parametrize("history", [None, 60.0])
async def test_a_call_looks_for_the_bounds_of_its_ids_as_often_for_many_messages_as_for_few(
    database: store.Database, declare: Declare, connect: Connect, history: float | None
) -> None:
    """A join would look for them again with each row, in an array that has an id for each message."""
    reader = await declare(max_ack_pending=10_000, history=history)
    reader.executor = connection = await connect()
    await connection.execute("set track_functions = 'pl'")
    found: list[list[int]] = []

    async def count(work: Awaitable[Any]) -> Any:
        async with connection.transaction():
            before = await connection.fetchval(_BOUNDS)
            result = await work
            found[-1].append(await connection.fetchval(_BOUNDS) - before)
        return result

    for leases, messages in ((2, 4), (20, 12)):
        found.append([])
        await publish(database, *[f"{leases}.{n}" for n in range(leases * messages)])
        batches = [await reader.lease(limit=messages) for _ in range(leases)]

        def some(*places: int, failure: Failure | None = None, batches: list[Batch] = batches) -> Settlement:
            """The outcome of the messages at these places of each lease."""
            chosen = [(batch.lease_id or 0, batch.seqs[place]) for batch in batches for place in places]
            ids, seqs = map(list, zip(*chosen, strict=True))
            return Settlement(leases=ids, seqs=seqs, failures=[failure] * len(ids))

        await count(store.ack(connection, reader.id, some(0).leases, some(0).seqs, now=reader.clock.now))
        await count(store.settle(connection, reader.id, some(0)))
        await count(store.mark_started(connection, reader.id, some(1).leases, some(1).seqs))
        await count(store.extend_leases(connection, reader.id, some(1).leases))
        await count(store.settle(connection, reader.id, some(*range(1, messages - 2))))
        await count(store.settle(connection, reader.id, some(messages - 2, failure=Failure("release"))))
        durations = bytes(4 * leases)  # of 0 seconds each
        report = HandlingReport("host:7", [1] * leases, some(messages - 1).seqs, durations)
        await count(store.settle(connection, reader.id, Settlement(whole=some(0).leases, report=report)))
    few, many = found
    assert min(few) > 0
    assert many == few


@pytest.mark.parametrize("small", ["message_ids_pkey", "message_ids_by_age"])
async def test_wrong_planner_statistics_do_not_make_message_ids_cost_more(
    database: store.Database, connect: Connect, small: str
) -> None:
    await store.create_stream(database, StreamSpec(name="orders", dedupe_window=3600))
    sweeper = Sweeper(database)
    connection = await connect()

    async def publish_with(*ids: str) -> None:
        await store.publish_many(
            connection,
            "orders",
            ["a"] * len(ids),
            ["1"] * len(ids),
            options=PublishOptions.of_many(len(["1"] * len(ids)), message_ids=list(ids)),
        )

    async def publish_one(message_id: str) -> None:
        await store.publish(connection, "orders", "a", "1", options=PublishOptions(message_id=message_id))

    await publish_with("first")
    await empty_by_statistics(connection, small=small)
    counts = []
    for count in (20, 5_000):
        await publish_with(*[f"{count}-{number}" for number in range(count)])
        counts.append(
            await touched(connection, partial(publish_with, *[f"{count}-new-{number}" for number in range(50)]))
        )
        counts.append(await touched(connection, partial(publish_with, "first", "first")))
        counts.append(await touched(connection, partial(publish_one, "first")))
        await sweeper.sweep()
    assert counts[3] <= counts[0] + 20, counts
    assert counts[4:] == counts[1:3], counts


@pytest.mark.parametrize("verb", ["redrive", "discard"])
async def test_a_key_is_unblocked_at_the_same_cost_whatever_the_length_of_its_tail(
    database: store.Database, declare: Declare, connect: Connect, verb: str
) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block", max_ack_pending=10_000)
    reader.executor = connection = await connect()
    counts = []
    for behind in (FEW, MANY):
        await hold_up(reader, database, "blocked", f"k.{behind}")
        await wait_behind(reader, database, behind, f"k.{behind}")
        counts.append(await touched(connection, getattr(reader, verb)))
        freed = await reader.drain(limit=1_000)
        assert len(freed) == behind + (verb == "redrive")
        assert freed == sorted(freed)
    assert counts[1] <= counts[0] + 10, counts


async def test_the_cost_of_leasing_a_tail_is_proportional_to_its_length(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Leasing ten thousand waiting messages of one key does not search the whole tail for each batch."""
    reader = await declare(max_ack_pending=10_000)
    await publish(database, "stuck")
    ann = await reader.lease("ann", 1)
    reader.executor = connection = await connect()
    await publish(database, *["stuck"] * 10_000)
    while (await reader.lease("bob", 1_000, look=1_000)).more:
        pass
    await reader.ack_all(ann)
    counts: list[int] = []
    taken: list[int] = []

    async def take() -> None:
        batch = await reader.lease("bob", 1_000)
        taken.extend(batch.seqs)
        counts.append(len(batch.seqs))

    cost = [await touched(connection, take) for _ in range(10)]
    assert counts == [1_000] * 10
    assert taken == list(range(2, 10_002))
    assert max(cost) <= 12 * 1_000, cost


# --- holes


async def interleave(database: store.Database, late: Any, count: int) -> None:
    """Commit messages alternately with messages of a transaction that stays open."""
    for _ in range(count):
        await publish(late, "late")
        await publish(database, "early")


@pytest.mark.long
async def test_the_holes_of_a_long_publisher_cost_a_lease_call_nothing(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(max_ack_pending=10_000)
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    counts = []
    connection = await connect()
    for behind in (FEW, MANY):
        reader.executor = database
        await interleave(database, late, behind)
        assert len(await reader.drain(limit=100)) == behind
        await publish(database, *[f"k.{n}" for n in range(100)])
        reader.executor = connection
        batches: list[Any] = []

        async def lease(batches: list[Any] = batches) -> None:
            batches.append(await reader.lease(limit=200, look=1_000))

        cost = await touched(connection, lease)
        while (
            batches[0].more and batches[0].lease_id is None
        ):  # a transaction of another test was among the holders and ended in between
            batches.clear()
            cost = await touched(connection, lease)
        counts.append(cost)
        assert len(batches[0].seqs) == 100
        counts.append(await touched(connection, lease))  # an empty lease call
        await reader.ack_all(*(batch for batch in batches if batch.lease_id is not None))
    assert await reader.count("frozen_holes") > 0
    assert counts[2] <= counts[0] + 20, counts
    assert counts[3] <= counts[1] + 20, counts
    await transaction.commit()
    assert len(await reader.drain(limit=1_000)) == FEW + MANY
    assert await reader.count("frozen_holes") == 0
    assert (await reader.info()).holes == 0


@pytest.mark.parametrize("look", [50, 5_000])
async def test_when_a_long_publisher_commits_its_messages_come_in_order_and_before_anything_fresh(
    database: store.Database, declare: Declare, connect: Connect, look: int
) -> None:
    reader = await declare(max_ack_pending=10_000)
    late = await connect()
    async with late.transaction():
        await interleave(database, late, 1_000)
        early = await reader.drain(limit=100)
        assert (await reader.info()).holes == 1_000
    await publish(database, "late", "early")
    found = await reader.drain(limit=30, look=look)
    assert found == sorted(found)
    assert len(found) == 1_002
    assert sorted(early + found) == list(range(1, 2_003))


async def test_holes_of_a_rollback_are_forgotten_at_once_whatever_other_transactions_are_open(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(max_ack_pending=10_000)
    late, other = await connect(), await connect()
    async with other.transaction():
        await other.fetchval("select pg_current_xact_id()")  # it publishes nothing, but it could
        transaction = late.transaction()
        await transaction.start()
        await interleave(database, late, 300)
        await reader.drain(limit=100)
        await transaction.rollback()
        await publish(database, "early")
        for _ in range(5):
            await reader.drain()
            reader.clock.advance(2)
        assert (await reader.info()).holes == 0
        assert await reader.count("frozen_holes") == 0


async def test_a_hole_that_is_filled_while_a_lease_is_under_way_is_not_overtaken(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """A lease call sees that the publisher's transaction is open. Then the publisher commits, and
    publishes the next message of the key."""
    reader = await declare(max_ack_pending=10_000)
    late, gate = await connect(), await connect()
    transaction = late.transaction()
    await transaction.start()
    await interleave(database, late, 300)
    await reader.drain(limit=100)
    closed = gate.transaction()
    await closed.start()
    await gate.execute(
        "lock table headrace_internal.dead_letters in access exclusive mode"
    )  # a lease call reads it after that
    leasing = asyncio.create_task(reader.lease(limit=1_000))
    async with asyncio.timeout(SOON):
        while not await late.fetchval(
            """select exists (select from pg_locks where not granted and relation = 'headrace_internal.dead_letters'::regclass
               and database = (select oid from pg_database where datname = current_database()))"""
        ):
            pass
    await transaction.commit()
    await publish(late, "late")
    await closed.rollback()
    batch = await leasing
    assert batch.seqs == []
    assert batch.more
    found = await reader.drain(limit=1_000)
    assert found == [*range(1, 600, 2), 601]


async def test_a_seek_removes_all_old_holes(database: store.Database, declare: Declare, connect: Connect) -> None:
    reader = await declare(max_ack_pending=10_000)
    late = await connect()
    async with late.transaction():
        await interleave(database, late, 300)
        await reader.drain(limit=100)
        await reader.seek(0)
        assert await reader.count("frozen_holes") == 0
        assert len(await reader.drain(limit=100)) == 300
    assert len(await reader.drain(limit=100)) == 300


# --- notifying


async def test_an_open_publishing_transaction_does_not_keep_others_from_notifying(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    heard = asyncio.Event()
    listener, slow = await connect(), await connect()
    await notifications.listen(listener, lambda *_: heard.set())
    await store.wait(database, reader.id, 60)
    async with slow.transaction(), asyncio.timeout(SOON):
        await publish(slow, "a")
        while not heard.is_set():
            await publish(database, "b")


async def test_a_transaction_takes_one_lock_to_notify_however_often_it_publishes(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await store.wait(database, reader.id, 60)
    slow = await connect()
    async with slow.transaction():
        for _ in range(100):
            await publish(slow, "a")
            await slow.execute("select pg_sleep(0.001)")
        locks = await slow.fetchval(
            "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory' and classid = 1212498509"
        )
        assert locks == 1


async def test_no_function_that_disables_a_scan_method_is_compiled(database: store.Database) -> None:
    """Such a plan seems so expensive that a server with stock settings, which compiles expensive
    statements with JIT, compiles it each time."""
    settings = "select proconfig from pg_proc where pronamespace in ('headrace'::regnamespace, 'headrace_internal'::regnamespace) and proconfig && '{enable_seqscan=off,enable_sort=off}'"
    found = [row["proconfig"] for row in await database.fetch(settings)]
    assert len(found) > 30
    assert all("jit=off" in config for config in found)


async def test_a_look_for_an_idle_owner_does_not_compare_each_owner_with_each_lease(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Each of 1,000 busy processes looks once a second."""
    reader = await declare(max_ack_pending=10_000)
    owners = 300
    await publish(database, *[f"k.{n}" for n in range(owners)])
    for number in range(owners):
        await store.check_in(database, store.Owner(reader.id, UUID(int=number), "orders", "ship"), [])
        await store.lease(database, reader.id, UUID(int=number), 1)
    connection = await connect()
    await connection.execute("load 'auto_explain'; set auto_explain.log_min_duration = 0")
    await connection.execute("set auto_explain.log_nested_statements = on; set client_min_messages = log")
    plans: list[str] = []
    connection.add_log_listener(lambda _, message: plans.append(str(message)))
    assert not await store.has_idle_owner(connection, reader.id, UUID(int=owners))
    (plan,) = [plan for plan in plans if "Scan using leases_pkey" in plan]
    assert "Nested Loop" not in plan
    assert "hashed SubPlan" in plan


# --- many processes at one lease lock


async def test_a_lease_call_that_finds_others_waiting_for_the_lock_returns_busy(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, "a")
    others = [await connect() for _ in range(5)]
    holding = others[0].transaction()
    await holding.start()
    await others[0].execute("select pg_advisory_xact_lock(1212498508, $1)", reader.id)
    waiting = [asyncio.create_task(store.lease(one, reader.id, OWNER, 1, patient=False)) for one in others[1:]]
    async with asyncio.timeout(SOON):
        while await database.fetchval(WAITING) < len(waiting):
            pass
    batch = await reader.lease(patient=False)
    assert batch.busy
    assert (batch.lease_id, batch.more) == (None, False)
    assert 0 < (batch.due_in or 0) < 0.1
    await holding.rollback()
    found = await asyncio.gather(*waiting)
    assert sum(len(one.seqs) for one in found) == 1
    assert not any(one.busy for one in found)


OWNER = UUID(int=7)
WAITING = "select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())"


_CALLED = """
select p.proname, f.calls from pg_stat_xact_user_functions as f join pg_proc as p on p.oid = f.funcid
where p.prolang = (select oid from pg_language where lanname = 'sql')
"""


async def planned_anew(connection: Any, work: Awaitable[Any], found: set[str]) -> Any:
    """Do the work in a transaction of the connection. Adds the functions in SQL that were called, which were not inlined."""
    async with connection.transaction():
        before = set(await connection.fetch(_CALLED))  # includes the counts that the session has not reported yet
        result = await work
        found.update(name for name, _ in set(await connection.fetch(_CALLED)) - before)
    return result


async def test_no_call_plans_a_function_anew(database: store.Database, declare: Declare, connect: Connect) -> None:
    """Up to PostgreSQL 17, a function in SQL that is not inlined is planned at each of its calls, which costs more than
    what it does."""
    reader = await declare(max_ack_pending=1_000, max_deliver=2)
    reader.executor = connection = await connect()
    await connection.execute("set track_functions = 'all'")
    found = set[str]()
    call = partial(planned_anew, connection, found=found)
    for _ in range(20):  # until the session has its plans, which an analyze of autovacuum has replaced
        found.clear()
        await call(publish(connection, "k.1", "k.2", *[f"k.{n}" for n in range(40)], "late"))
        shares = await call(reader.lease(limit=43, shares=[20, 23]))  # the second messages of two keys wait
        assert len(shares.seqs) == 41
        await call(store.settle(connection, reader.id, Settlement(whole=shares.lease_ids or [])))
        rest = await call(reader.lease(limit=40))
        assert len(rest.seqs) == 2
        await call(reader.nack(rest))
        again = await call(reader.lease(limit=40))
        await call(reader.ack_within(connection, again, again.seqs[0]))
        await call(reader.reject(again, again.seqs[1]))
        await call(publish(connection, "k.1"))
        await call(reader.lease())
        reader.clock.advance(600)  # its lease expires
        await call(reader.ack_all(await call(reader.lease())))
        if not found:
            break
    assert found == set()
