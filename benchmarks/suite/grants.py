"""grants: publish single messages as a role with a grant, against the owner of the schema."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg

from benchmarks import checks
from benchmarks.harness import STREAM, Bench, Options, bench
from benchmarks.report import Result, figures
from benchmarks.timing import Measured, Stopwatch
from headrace import store
from headrace.model.outcomes import Settlement
from headrace.model.specs import ConsumerSpec

_LOOP = """do $$ begin
    for i in 1..{count} loop perform headrace.publish('{stream}', 'k' || i, '{{"total": 12}}'); end loop;
end $$"""

_CALL = "select headrace.publish($1, 'k', '{\"total\": 12}')"

_CONSUMER = "granted"


async def grants(options: Options) -> Result:
    """Publish single messages in SQL as a role with a grant, and as the owner. Also by calls, and leases."""
    count = options.count(50_000, 5_000)
    in_server, by_calls, leased = Measured(), Measured(), Measured()
    for _ in range(options.times()):
        async with bench(options) as place:
            role = f"bench_{uuid4().hex[:12]}"
            await place.database.fetch(f"create role {role} login password 'benchmark'")
            try:
                await _compare(place, role, count, in_server, by_calls, leased)
            finally:
                await place.database.fetch(f"drop owned by {role}")
                await place.database.fetch(f"drop role {role}")
    return Result(
        benchmark="grants",
        about="single messages published in one transaction of the server, as a role with a grant",
        measured=in_server,
        limit_is="the same as the owner of the schema",
        variants={"a_call_and_a_commit_each": figures(by_calls), "batches_of_100_leased_and_acked": figures(leased)},
        settings={"messages": count, "connections": 1, "repeats": options.times()},
        checks=[f"{count:,} messages published in each way, and leased once each"],
    )


async def _compare(
    place: Bench, role: str, count: int, in_server: Measured, by_calls: Measured, leased: Measured
) -> None:
    await store.grant(place.database, "publish", role, [STREAM])
    await store.grant(place.database, "consume", role, [STREAM])
    url = urlsplit(place.dsn)
    granted = store.Database(url._replace(netloc=f"{role}:benchmark@{url.netloc.rpartition('@')[2]}").geturl())
    await granted.open()
    try:
        ids = []
        for name in ("owner", _CONSUMER):
            spec = ConsumerSpec(stream=STREAM, name=name, max_ack_pending=1000)
            ids.append((await store.declare_consumer(place.database, spec)).id)
        sides = [(place.database, "limit_samples"), (granted, "samples")]
        for database, samples in sides:
            connection = await database.connect()
            try:
                await _in_server(connection, 1000)  # warm
                getattr(in_server, samples).append(await _in_server(connection, count))
                getattr(by_calls, samples).append(await _by_calls(connection, count // 10))
            finally:
                await connection.close()
        total = 2 * (1000 + count + count // 10)
        for (database, samples), consumer in zip(sides, ids, strict=True):
            getattr(leased, samples).append(await _leased(database, consumer, total))
    finally:
        await granted.close()


async def _in_server(connection: asyncpg.Connection[Any], count: int) -> float:
    watch = Stopwatch()
    await connection.execute(_LOOP.format(count=count, stream=STREAM), timeout=600)
    return count / watch.seconds()


async def _by_calls(connection: asyncpg.Connection[Any], count: int) -> float:
    watch = Stopwatch()
    for _ in range(count):
        await connection.fetchval(_CALL, STREAM)
    return count / watch.seconds()


async def _leased(database: store.Database, consumer: int, total: int) -> float:
    owner, seqs = uuid4(), 0
    watch = Stopwatch()
    while (batch := await store.lease(database, consumer, owner, 100)).lease_id is not None:
        lost = await store.settle(database, consumer, Settlement(whole=[batch.lease_id]))
        checks.expect(len(lost), 0, "leases lost")
        seqs += len(batch.seqs)
    rate = seqs / watch.seconds()
    checks.expect(seqs, total, "messages leased")
    return rate
