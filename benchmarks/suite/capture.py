"""capture: the tables of a database as a stream, from the WAL, at a pace, in one large transaction, and by backfill."""

from __future__ import annotations

from benchmarks.harness import Options
from benchmarks.report import Result
from benchmarks.suite import capture_drain, capture_paced
from benchmarks.suite.capture_paced import CONSUMER, RATE, WARM_UP


async def capture(options: Options) -> Result:
    """Capture tables: a WAL backlog, 500 changes/s end to end, one transaction of 1,000,000 rows, and a backfill."""
    transactions = options.count(200_000, 4_000) // 2
    rows = options.count(1_000_000, 20_000)
    drained = await capture_drain.drain(options, transactions)
    at_500, in_time = await capture_paced.latency(options)
    big, whole = await capture_paced.big(options, rows)
    backfill, backfill_checks = await capture_paced.backfill(options, rows)
    return Result(
        benchmark="capture",
        about="changes that are in the WAL already, brought into a stream by one process",
        measured=drained.measured,
        limit_is="pg_recvlogical, which reads the same changes from the WAL and throws them away",
        unit="changes/s",
        variants={"at_500": at_500, "one_transaction": big, "backfill": backfill},
        details=drained.details(),
        settings={
            "changes": 2 * transactions,
            "transactions": "of an update, replica identity full, and an insert, each of 4 columns",
            "mode": "changes",
            "captured_database": "the one that the stream is in",
            "rows": rows,
            "pace": f"{RATE}/s, an update in a transaction of its own each",
            "seconds": options.duration(20, 2),
            "warm_up_seconds": WARM_UP,
            "consumer_of_at_500": "in the process that captures",
            **CONSUMER,
            "repeats": f"{options.times(3, 1)}, of the variants 1",
        },
        checks=[*drained.checks, *in_time, *whole, *backfill_checks],
    )
