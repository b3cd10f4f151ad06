"""Calls that are made for each batch or message plan nothing, or only the call of the function that reads a segment.

PL/pgSQL keeps the plan of a statement. But with statistics of the tables it may find that a plan for the values of each call
would cost less, and then it plans at each call, which can take longer than all the rest. So these calls demand the general plan.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace import store
from headrace.model.outcomes import Settlement
from headrace.store.database.direct_statements import FEW, DirectStatements
from tests.conftest import Connect, Declare
from tests.support.readers import Reader, publish

pytestmark = pytest.mark.asyncio

STATEMENTS = DirectStatements.of("orders")

WARM_UP = 8
"""Calls after which Postgres has decided between the two kinds of plans."""


class Plans:
    """The statements that Postgres plans on a connection."""

    def __init__(self) -> None:
        self._made: list[str] = []
        self._scans = 0

    async def start(self, connection: Any) -> None:
        """Have Postgres report them."""
        connection.add_log_listener(self._log)
        await connection.execute("set debug_print_plan = on; set client_min_messages = log")

    @property
    def scans(self) -> int:
        """The number of tables and indexes that the last call has planned to read."""
        return self._scans

    async def during(self, call: Awaitable[Any]) -> list[str]:
        """Make a call. Returns the statements that it planned."""
        self._made = []
        self._scans = 0
        await call
        await asyncio.sleep(0)  # listeners are called by the event loop
        return self._made

    def _log(self, _: Any, message: Any) -> None:
        if message.message == "plan:":
            self._made.append(message.context or "")
            self._scans += len(_SCAN.findall(message.detail or ""))


async def fill(reader: Reader) -> None:
    """Have many leases and acks, and statistics about them, as in any database that has been in use for a while."""
    database = reader.executor
    await publish(database, *[f"k.{number % 1000}" for number in range(5_000)])
    for number in range(100):
        batch = await reader.lease(f"worker {number}", 20)
        async with database.transaction() as transaction:
            for seq in batch.seqs:
                await reader.ack_within(transaction, batch, seq)
    tables = await database.fetch(
        "select format('%I.%I', schemaname, tablename) as name from pg_tables where schemaname like 'headrace%'"
    )
    for table in tables:
        await database.fetch(f"analyze {table['name']}")


_SCAN = re.compile(r"\{(?:SEQ|INDEX|INDEXONLY|BITMAPHEAP)SCAN")
"""A node of a plan that reads a table."""


Call = Callable[[Reader, Any], Awaitable[Awaitable[Any]]]
"""Makes ready what the call needs, and returns the call. It is given the connection."""


async def _ack(reader: Reader, connection: Any, count: int) -> Awaitable[Any]:
    batch = await reader.lease(limit=count)

    async def ack() -> None:
        async with connection.transaction():
            await reader.ack_within(connection, batch)

    return ack()


async def ack_one(reader: Reader, connection: Any) -> Awaitable[Any]:
    return await _ack(reader, connection, 1)


async def ack_many(reader: Reader, connection: Any) -> Awaitable[Any]:
    return await _ack(reader, connection, 10)


async def settle_leases(reader: Reader, _: Any) -> Awaitable[Any]:
    return reader.ack_all(await reader.lease(limit=3), await reader.lease(limit=3))


async def settle_messages(reader: Reader, _: Any) -> Awaitable[Any]:
    batch = await reader.lease(limit=10)
    return reader.ack(batch, *batch.seqs[:5])


async def extend(reader: Reader, _: Any) -> Awaitable[Any]:
    batch = await reader.lease(limit=1)
    return store.extend_leases(reader.executor, reader.id, [batch.lease_id or 0], now=reader.clock.now)


async def mark_started(reader: Reader, _: Any) -> Awaitable[Any]:
    batch = await reader.lease(limit=3)
    return reader.mark_started(batch, *batch.seqs[:2])


async def publish_one(_: Reader, connection: Any) -> Awaitable[Any]:
    call: Awaitable[Any] = connection.fetchval(STATEMENTS.one, "k.1", "1", None)
    return call


async def publish_many(_: Reader, connection: Any) -> Awaitable[Any]:
    statement, values = STATEMENTS.for_many([f"k.{number}" for number in range(FEW)], ["1"] * FEW, None)
    assert statement == STATEMENTS.joined
    call: Awaitable[Any] = connection.fetchval(statement, *values)
    return call


async def lease(reader: Reader, _: Any) -> Awaitable[Any]:
    return reader.lease(limit=40)


async def lease_one(reader: Reader, _: Any) -> Awaitable[Any]:
    return reader.lease(limit=1)


async def lease_large(reader: Reader, _: Any) -> Awaitable[Any]:
    count = 40
    await reader.seek(await reader.executor.fetchval("select max(seq) from headrace_streams.orders"))
    await publish(reader.executor, *map(str, range(count)), filler=random.Random(1).randbytes(10_000).hex())
    return reader.lease(limit=count)


@pytest.mark.parametrize(
    ("ready", "most"),
    [
        (ack_one, 0), (ack_many, 0), (settle_leases, 0), (settle_messages, 0), (extend, 0), (mark_started, 0), (publish_one, 0),
        (publish_many, 0), (lease, 1), (lease_one, 1), (lease_large, 1),
    ],
)  # fmt: skip
async def test_a_call_keeps_its_plans_in_a_database_with_statistics(
    declare: Declare, connect: Connect, ready: Call, most: int
) -> None:
    reader = await declare(max_ack_pending=100_000, ordered=False)
    await fill(reader)
    reader.executor = connection = await connect()
    plans = Plans()
    await plans.start(connection)
    counts = []
    for _ in range(WARM_UP + 4):
        call = await ready(reader, connection)
        made = await plans.during(call)
        counts.append(len(made))
    assert counts[0] > 0  # they are counted
    # When autovacuum has just analyzed a table again, the next call makes its plans again. The others do not.
    assert min(counts[WARM_UP:]) <= most, made


async def test_of_a_thousand_lease_calls_few_plan_to_read_a_table(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """The others plan the call of the function that reads the stream, and nothing else."""
    reader = await declare(max_ack_pending=100_000)
    reader.executor = connection = await connect()
    for _ in range(11):
        await publish(database, *(f"k.{number}" for number in range(1_000)))
    plans = Plans()
    await plans.start(connection)
    counts, reading = [], []
    for _ in range(WARM_UP + 1_000):
        call = asyncio.ensure_future(reader.lease(limit=10, shares=[5, 5]))
        counts.append(len(await plans.during(call)))
        reading.append(plans.scans > 0)
        await store.settle(connection, reader.id, Settlement(whole=call.result().lease_ids or []))
    assert reading[0], "they are counted"
    # A call that notes a mark, each thousand messages, takes the long way.
    assert sum(reading[WARM_UP:]) < 50
    assert sorted(counts[WARM_UP:])[500] == 1
