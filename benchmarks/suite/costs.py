"""costs: what single calls take: processor time in Postgres's process and in the client's, WAL, commits, and dead rows."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any
from uuid import uuid4

import msgspec

from benchmarks.checks import CheckFailed
from benchmarks.harness import MESSAGES, STREAM, Bench, Options, bench, opened
from benchmarks.limits import INSERT, READ
from benchmarks.payloads import SMALL_NOTE, Batch, Keys, batches, bytes_of
from benchmarks.processor_time import used
from benchmarks.report import Result
from benchmarks.suite.filling import fill
from benchmarks.timing import Measured
from benchmarks.written import Written
from headrace import store
from headrace.model.outcomes import Settlement
from headrace.model.specs import ConsumerSpec
from headrace.store import Database

KEYS = Keys(100_000)
BATCH = 100

_TABLE = f"insert into {MESSAGES} (key, data) select * from unnest($1::text[], $2::json[])"
_PUBLIC = "select headrace.publish_many($1::text, $2::text[], $3::text[]::json[])"

Call = Callable[[Database, int], Awaitable[Any]]
"""Makes a call, given its number."""


class Cost(msgspec.Struct):
    """The cost of one call: times in microseconds, WAL in bytes, transactions, and dead rows."""

    postgres: list[float] = msgspec.field(default_factory=list)
    client: list[float] = msgspec.field(default_factory=list)
    elapsed: list[float] = msgspec.field(default_factory=list)
    written: list[dict[str, float]] = msgspec.field(default_factory=list)

    def figures(self) -> dict[str, float]:
        return {
            "postgres_us": median(self.postgres),
            "client_us": median(self.client),
            "elapsed_us": median(self.elapsed),
            **{name: median(one[name] for one in self.written) for name in Written.__struct_fields__},
        }


async def costs(options: Options) -> Result:
    """Make each call of the store over one connection, and read the processor time that it takes on both sides, and what it
    writes."""
    rounds, repeats = options.count(300, 20), options.times(5, 2)
    found: dict[str, Cost] = {}
    for _ in range(repeats):
        async with bench(options) as place, opened(place.dsn, 1) as database:
            await fill(place, KEYS, _backlog(rounds))
            for name, call in (await _calls(place, database, rounds)).items():
                await _measure(database, call, rounds, found.setdefault(name, Cost()))
    published, bare = found["publish 100"].postgres, found["bare insert of 100"].postgres
    return Result(
        benchmark="costs",
        about=f"batches of {BATCH} published for each second of Postgres's processor time",
        measured=Measured([BATCH / us * 1e6 for us in published], [BATCH / us * 1e6 for us in bare]),
        limit_is=f"bare multi-row inserts of {BATCH}",
        unit="messages per second of processor time",
        variants={name: dict(cost.figures()) for name, cost in found.items()},
        settings={
            "calls": rounds, "connections": 1, "payload_bytes": bytes_of(SMALL_NOTE), "keys": KEYS.count,
            "repeats": repeats,
        },
        checks=["each call did what it says"],
    )  # fmt: skip


def _backlog(rounds: int) -> int:
    """The number of messages that are there before the first call."""
    return rounds * BATCH * 3


async def _measure(database: Database, call: Call, rounds: int, cost: Cost) -> None:
    server = await database.fetchval("select pg_backend_pid()")
    for number in range(10):
        await call(database, number)
    before = await Written.read(database)
    used_before, own, start = _used(server), time.process_time(), time.perf_counter()
    for number in range(10, rounds):
        await call(database, number)
    elapsed, mine, theirs = time.perf_counter() - start, time.process_time() - own, _used(server) - used_before
    after = await Written.read(database)
    if await database.fetchval("select pg_backend_pid()") != server:
        raise CheckFailed("The connection was replaced during the measurement.")
    made = rounds - 10
    cost.postgres.append(theirs / made * 1e6)
    cost.client.append(mine / made * 1e6)
    cost.elapsed.append(elapsed / made * 1e6)
    cost.written.append(after.each(before, made))


def _used(process: int) -> float:
    """Seconds of processor time of a process on this machine, to the nanosecond."""
    try:
        return used(process)
    except OSError:
        raise CheckFailed("costs needs a server on this machine, and Linux.") from None


async def _calls(place: Bench, database: Database, rounds: int) -> dict[str, Call]:
    """The calls by name, in the order in which they are made."""
    many, one = list(batches(KEYS, rounds * BATCH, BATCH)), list(batches(KEYS, rounds, 1))
    calls: dict[str, Call] = {"select 1": lambda database, _: database.fetchval("select 1")}
    for size, texts in ((1, one), (BATCH, many)):
        calls[f"bare insert of {size}"] = _insert(INSERT, texts)
        calls[f"insert of {size} into the stream's table"] = _insert(_TABLE, texts)
        calls[f"headrace.publish_many of {size} in SQL"] = _insert(_PUBLIC, texts, STREAM)
        calls[f"publish {size}"] = _publish(texts) if size > 1 else _publish_one(texts)
    calls[f"bare read of {BATCH}"] = lambda database, number: database.fetch(READ, number * BATCH, BATCH)
    for size in (1, BATCH):
        consumer = await _consumer(place, f"each_{size}")
        leases: list[int] = []
        calls[f"lease of {size}"] = _lease(consumer, size, leases)
        calls[f"settle a lease of {size}"] = _settle(consumer, leases)
    calls[f"lease of {BATCH}, the first to read them since a checkpoint"] = _lease_after_checkpoint(place, rounds)
    calls["lease of nothing"] = _lease_nothing(place)
    return calls


async def _consumer(place: Bench, name: str, **settings: Any) -> int:
    spec = ConsumerSpec(stream=STREAM, name=name, max_ack_pending=1_000_000, **settings)
    return (await store.declare_consumer(place.database, spec)).id


def _insert(query: str, texts: list[Batch], *before: Any) -> Call:
    return lambda database, number: database.fetch(query, *before, texts[number].keys, texts[number].texts)


def _publish(texts: list[Batch]) -> Call:
    return lambda database, number: store.publish_many(database, STREAM, texts[number].keys, texts[number].texts)


def _publish_one(texts: list[Batch]) -> Call:
    return lambda database, number: store.publish(database, STREAM, texts[number].keys[0], texts[number].texts[0])


def _lease(consumer: int, size: int, leases: list[int]) -> Call:
    owner = uuid4()

    async def lease(database: Database, _: int) -> None:
        batch = await store.lease(database, consumer, owner, size)
        if batch.lease_id is None or len(batch.seqs) != size:
            raise CheckFailed(f"A lease call returned {len(batch.seqs)} messages of {size}.")
        leases.append(batch.lease_id)

    return lease


def _settle(consumer: int, leases: list[int]) -> Call:
    async def settle(database: Database, number: int) -> None:
        if await store.settle(database, consumer, Settlement(whole=[leases[number]])):
            raise CheckFailed("A lease was lost.")

    return settle


def _lease_after_checkpoint(place: Bench, rounds: int) -> Call:
    """Lease the messages that the other calls have published. The first reads of a page note there what has committed, and
    with checksums the whole page is written to the WAL then."""
    leasing: list[Call] = []

    async def lease(database: Database, number: int) -> None:
        if not leasing:
            start = await database.fetchval(f"select min(seq) + {_backlog(rounds)} from {MESSAGES}")
            await database.fetch("checkpoint")
            leasing.append(
                _lease(await _consumer(place, "late", deliver_policy="by_start_seq", start_seq=start), BATCH, [])
            )
        await leasing[0](database, number)

    return lease


def _lease_nothing(place: Bench) -> Call:
    consumers: list[int] = []

    async def lease(database: Database, _: int) -> None:
        if not consumers:  # made when all messages have been published
            consumers.append(await _consumer(place, "idle", deliver_policy="new"))
        if (await store.lease(database, consumers[0], uuid4(), BATCH)).lease_id is not None:
            raise CheckFailed("There was a message.")

    return lease
