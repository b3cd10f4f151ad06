"""filter: a condition on the data that one message in 10,000 meets, over a long history, and its effect on others."""

from __future__ import annotations

import time
from uuid import UUID, uuid4

import anyio

from benchmarks import checks
from benchmarks.checks import CheckFailed
from benchmarks.harness import MESSAGES, STREAM, Bench, Options, bench
from benchmarks.report import Result
from benchmarks.timing import Measured, Stopwatch, milliseconds
from headrace import store
from headrace.flow.demand import ScanLimit
from headrace.model.conditions import parse
from headrace.model.outcomes import Settlement
from headrace.model.specs import ConsumerSpec

ONE_IN = 10_000
WHERE = "data.status = 'disputed' and data.lines.0.cents > 1000"
CALLS = 400
PACE = 0.005
BATCH = 100
TIMEOUT = 5.0


async def filter(options: Options) -> Result:  # noqa: A001 - the word of the field
    """Lease from 5 million messages the one in 10,000 that meets a condition, beside another consumer at a pace."""
    count = options.count(5_000_000, 100_000)
    measured = Measured()
    durations: list[int] = []
    alone: list[int] = []
    beside: list[int] = []
    positions: list[int] = []
    proven: list[str] = []
    for _ in range(options.times(3, 1)):
        async with bench(options) as place:
            await _fill(place, count)
            selective, plain = _Selective(place, count), _Plain(place)
            await plain.prepare()
            await selective.prepare()
            await plain.lease(alone)
            async with anyio.create_task_group() as group:
                group.start_soon(plain.lease, beside)
                measured.samples.append(await selective.drain())
            measured.limit_samples.append(await _judge_all(place, count))
            durations += selective.durations
            positions = selective.positions
            proven = [selective.proven]
    return Result(
        benchmark="filter",
        about=f"messages looked at for a condition that 1 in {ONE_IN:,} meets; latency is that of a lease call",
        measured=measured,
        limit_is="the same condition as a plain query over the whole stream, one process of the server",
        latency=milliseconds(durations),
        variants={
            "another_consumer_alone": milliseconds(alone),
            "another_consumer_beside": milliseconds(beside),
        },
        details={
            "lease_calls": len(durations),
            "calls_over_50_ms": sum(duration > 50e6 for duration in durations),
            "positions_that_consumer_info_showed": positions,
        },
        settings={
            "messages": count,
            "matching": count // ONE_IN,
            "where": WHERE,
            "paced_lease_calls": CALLS,
            "paced_batch": BATCH,
            "repeats": options.times(3, 1),
        },
        checks=proven,
    )


async def _fill(place: Bench, count: int) -> None:
    """Fill the stream on the server. The harness would need longer than the measurement for five million messages."""
    for start in range(1, count + 1, 100_000):
        await place.database.fetchval(
            """select headrace.publish_many($1, array_agg('orders.eu.' || n % 1000),
                   array_agg(json_build_object(
                       'number', n, 'status', case when n % $4 = 0 then 'disputed' else 'paid' end, 'customer', 'customer-' || n % 9973,
                       'lines', json_build_array(json_build_object('sku', 'sku-' || n % 997, 'quantity', 1 + n % 9, 'cents', 1999)),
                       'note', md5(n::text))))
               from generate_series($2::int, $3::int) as n""",
            STREAM, start, min(start + 99_999, count), ONE_IN,
        )  # fmt: skip
    await place.rest(MESSAGES)


class _Selective:
    """Leases the messages that meet the condition, as a worker does."""

    def __init__(self, place: Bench, count: int) -> None:
        self.durations: list[int] = []
        self.positions: list[int] = []
        self.proven = ""
        self._place = place
        self._count = count

    async def prepare(self) -> None:
        spec = ConsumerSpec(stream=STREAM, name="selective", where=parse(WHERE))
        self._consumer = (await store.declare_consumer(self._place.database, spec)).id

    async def drain(self) -> float:
        """Messages examined per second."""
        look, owner, seqs = ScanLimit(), uuid4(), list[int]()
        watch, looked_at = Stopwatch(), 0
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            while True:
                began = time.perf_counter_ns()
                batch = await store.lease(
                    self._place.database, self._consumer, owner, BATCH, look=look.limit, judging=TIMEOUT
                )
                self.durations.append(time.perf_counter_ns() - began)
                look.took(self.durations[-1] / 1e9, batch.looked_at)
                looked_at += batch.looked_at
                seqs += batch.seqs
                if batch.lease_id is not None:
                    await store.settle(self._place.database, self._consumer, Settlement(whole=[batch.lease_id]))
                elif not batch.more:
                    break
            group.cancel_scope.cancel()
        seconds = watch.seconds()
        checks.expect(seqs, list(range(ONE_IN, self._count + 1, ONE_IN)), "seqs that meet the condition")
        if self.positions != sorted(self.positions):
            raise CheckFailed(f"The position that is shown went back: {self.positions}")
        self.proven = f"{len(seqs):,} of {self._count:,} messages met the condition and came, each once and in order"
        return looked_at / seconds

    async def _watch(self) -> None:
        """Record the position that `consumer info` reports, from time to time."""
        while True:
            info = await store.consumer(self._place.database, STREAM, "selective", look=0)
            self.positions.append(info.position)
            await anyio.sleep(1.0)


class _Plain:
    """Another consumer of the stream, which takes every message, at a pace."""

    def __init__(self, place: Bench) -> None:
        self._database = place.database

    async def prepare(self) -> None:
        spec = ConsumerSpec(stream=STREAM, name="plain", max_ack_pending=10_000)
        self._consumer = (await store.declare_consumer(self._database, spec)).id
        self._owner: UUID = uuid4()

    async def lease(self, durations: list[int]) -> None:
        for _ in range(CALLS):
            began = time.perf_counter_ns()
            batch = await store.lease(self._database, self._consumer, self._owner, BATCH)
            durations.append(time.perf_counter_ns() - began)
            if batch.lease_id is not None:
                await store.settle(self._database, self._consumer, Settlement(whole=[batch.lease_id]))
            await anyio.sleep(PACE)


async def _judge_all(place: Bench, count: int) -> float:
    condition = await place.database.fetchval(
        "select condition from headrace_internal.consumers where name = 'selective'"
    )
    async with place.database.transaction() as connection:
        await connection.execute("set local max_parallel_workers_per_gather = 0")
        watch = Stopwatch()
        found = await connection.fetchval(f"select count(*) from {MESSAGES} where {condition}")
        seconds = watch.seconds()
    checks.expect(found, count // ONE_IN, "messages that a plain query finds")
    return count / seconds
