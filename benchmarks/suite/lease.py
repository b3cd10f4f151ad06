"""lease: lease and ack batches without a worker, against the bare cursor read of the same rows."""

from __future__ import annotations

from uuid import uuid4

from benchmarks import checks
from benchmarks.harness import STREAM, Bench, Options, bench
from benchmarks.payloads import SMALL_NOTE, Keys, bytes_of
from benchmarks.report import Result
from benchmarks.suite.filling import fill
from benchmarks.timing import Measured, Stopwatch
from headrace import store
from headrace.model.outcomes import Settlement
from headrace.model.specs import ConsumerSpec

KEYS = Keys(100_000)


async def lease(options: Options) -> Result:
    """Lease batches of 100 and ack each before the next, over one connection, without a worker or decoding."""
    count, size = options.count(200_000, 20_000), options.batch or 100
    measured = Measured()
    for _ in range(options.times()):
        async with bench(options) as place:
            await fill(place, KEYS, count)
            rate, proven = await _lease_rate(place, count, size)
            measured.samples.append(rate)
            measured.limit_samples.append(await place.plain.read_rate(size, decode=False))
    return Result(
        benchmark="lease",
        about=f"batches of {size} leased and acked over one connection",
        measured=measured,
        limit_is=f"a bare cursor read of {size} rows at a time",
        settings={
            "messages": count,
            "batch": size,
            "connections": 1,
            "payload_bytes": bytes_of(SMALL_NOTE),
            "keys": KEYS.count,
            "max_ack_pending": 1000,
            "repeats": options.times(),
        },
        checks=proven,
    )


async def _lease_rate(place: Bench, count: int, size: int) -> tuple[float, list[str]]:
    database = place.database
    declared = await store.declare_consumer(database, ConsumerSpec(stream=STREAM, name="lease", max_ack_pending=1000))
    owner = uuid4()
    seqs: list[int] = []
    lost = []
    watch = Stopwatch()
    while (batch := await store.lease(database, declared.id, owner, size)).lease_id is not None:
        lost += await store.settle(database, declared.id, Settlement(whole=[batch.lease_id]))
        seqs += batch.seqs
    rate = len(seqs) / watch.seconds()
    checks.expect(len(lost), 0, "leases lost")
    checks.expect(seqs, list(range(1, count + 1)), "seqs leased")
    return rate, [f"{count:,} seqs leased, each once and in order", await checks.settled(database, STREAM, "lease")]
