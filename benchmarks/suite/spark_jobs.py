"""The jobs of the process with the Spark session. Each returns its duration and results to check."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from benchmarks.checks import expect
from benchmarks.harness import STREAM
from benchmarks.payloads import Order
from benchmarks.suite.spark_bare import BARE
from benchmarks.suite.spark_crew import Done, Work
from benchmarks.suite.spark_plain import PLAIN_SOURCE
from benchmarks.suite.spark_rows import drained
from headrace import App, Batch
from headrace_spark import aggregate, archive, replay, spark_consumer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ACK_WAIT = 3600.0
"""Seconds. Leases are not extended, so a lease's deadline shows when it was requested."""
_MANY = 100_000
ORDER = "number bigint, customer string, lines array<struct<sku string, quantity int, cents int>>"


def sums(frame: DataFrame, groups: int) -> DataFrame:
    """The measured transform: parse the JSON and group by its contents. Each group is a result."""
    from pyspark.sql import functions as sql

    orders = frame.select(sql.from_json("data", ORDER).alias("data"))
    return summed(orders, groups)


def summed(orders: DataFrame, groups: int) -> DataFrame:
    """The same transform for payloads that are structs already."""
    from pyspark.sql import functions as sql

    key = sql.concat(sql.lit("groups."), (sql.col("data.number") % groups).cast("string"))
    cents = sql.expr("aggregate(data.lines, 0L, (sum, line) -> sum + line.quantity * line.cents)")
    return orders.groupBy(key.alias("key")).agg(
        sql.count("*").alias("orders"), sql.sum("data.number").alias("numbers"), sql.sum(cents).alias("cents")
    )


def handle(spark: SparkSession, work: Work) -> Done:
    """Run a consumer from its start until everything is settled.

    Given: `name` of the consumer, `max_rows`, `groups`, `typed` (whether the framework decodes the
    payloads), `into` (the stream for the results), and `first` (the seq where it begins).
    """
    given = work.given
    app = App(work.dsn, telemetry=False, streams=[given["into"]])
    typed, groups = given.get("typed", False), given["groups"]
    batches: list[int] = []
    # With few messages the last batch isn't full, so don't wait long for it. With many, all batches
    # are full.
    wait = 10.0 if work.count >= _MANY else 0.2

    @spark_consumer(
        app, STREAM, name=given["name"], max_rows=given["max_rows"], publishes=given["into"], schema=Order if typed else None,
        max_wait=wait, ack_wait=ACK_WAIT, deliver_policy="by_start_seq", start_seq=given.get("first", 1),
    )  # fmt: skip
    def group(frame: DataFrame, batch: Batch) -> DataFrame:
        batches.append(len(batch))
        return summed(frame, groups) if typed else sums(frame, groups)

    seconds = anyio.run(_until_idle, app, backend_options={"use_uvloop": True})
    expect(sum(batches), work.count, "messages that the handler had")
    return Done(seconds, {"batches": len(batches), "largest_batch": max(batches)})


def lease(spark: SparkSession, work: Work) -> Done:
    """Time one batch, from the first lease call until the handler has it as a DataFrame, and until a job has read it.

    Given: `name`, and `first`, the seq where it begins.
    """
    app = App(work.dsn, telemetry=False)
    times: list[tuple[int, float, float, float]] = []

    @spark_consumer(
        app, STREAM, name=work.given["name"], max_rows=work.count, ack_wait=ACK_WAIT, deliver_policy="by_start_seq",
        start_seq=work.given["first"],
    )  # fmt: skip
    def count(frame: DataFrame, batch: Batch) -> None:
        there = time.monotonic()
        asked = [message.lease.deadline - ACK_WAIT for message in batch]
        rows = drained(frame)["rows"]
        times.append((rows, min(asked), there, time.monotonic()))

    anyio.run(_until_idle, app, backend_options={"use_uvloop": True})
    expect([rows for rows, *_ in times], [work.count], "rows of each batch")
    _, asked, there, counted = times[0]
    return Done(there - asked, {"until_read": counted - asked})


async def _until_idle(app: App) -> float:
    start = time.monotonic()
    async with app.running():
        await app.idle()
        return time.monotonic() - start


def read(spark: SparkSession, work: Work) -> Done:
    """Read the stream as a DataFrame, every column of every row, and discard it."""
    start = time.monotonic()
    frame = spark.read.format("headrace").option("database", work.dsn).option("stream", STREAM).load()
    found = drained(frame)
    return Done(time.monotonic() - start, found)


def archived(spark: SparkSession, work: Work) -> Done:
    """Archive the stream to Parquet files in the directory `path`."""
    start = time.monotonic()
    report = archive(STREAM, work.given["path"], spark=spark, database=work.dsn)
    seconds = time.monotonic() - start
    expect(report.rows, work.count, "rows in the archive's manifests")
    return Done(seconds, {"files": report.files, "batches": report.batches})


def replayed(spark: SparkSession, work: Work) -> Done:
    """Replay the stream into the stream `into`, and change each payload with a function. `path` keeps the progress."""
    start = time.monotonic()
    report = replay(
        _marked, work.given["into"], stream=STREAM, checkpoint=work.given["path"], spark=spark, database=work.dsn
    )
    return Done(time.monotonic() - start, {"batches": report.batches})


def _marked(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sql

    text = sql.concat(sql.lit('{"replayed":true,'), sql.substring("data", 2, 2_000_000_000))
    return rows.select("key", "seq", text.alias("data"))


def aggregated(spark: SparkSession, work: Work) -> Done:
    """Aggregate each customer's orders in windows of a minute, into the stream `into`. `path` keeps the state."""
    start = time.monotonic()
    report = aggregate(
        STREAM, work.given["into"], window="1m", by=["data.customer"], schema=ORDER,
        aggregates={"orders": "count(*)", "numbers": "sum(data.number)"}, checkpoint=work.given["path"], spark=spark,
        database=work.dsn,
    )  # fmt: skip
    return Done(time.monotonic() - start, {"batches": report.batches})


def written(spark: SparkSession, work: Work) -> Done:
    """Write the Parquet files of the directory `path` into the stream `into`."""
    start = time.monotonic()
    rows = spark.read.parquet(work.given["path"]).select("key", "data")
    rows.write.format("headrace").option("database", work.dsn).option("stream", work.given["into"]).mode(
        "append"
    ).save()
    return Done(time.monotonic() - start)


def copied(spark: SparkSession, work: Work) -> Done:
    """Read the stream and write it into the stream `into`."""
    start = time.monotonic()
    rows = spark.read.format("headrace").option("database", work.dsn).option("stream", STREAM).load()
    options = {"database": work.dsn, "stream": work.given["into"]}
    rows.select("key", "data").write.format("headrace").options(**options).mode("append").save()
    return Done(time.monotonic() - start)


def heap(spark: SparkSession, work: Work) -> Done:
    """The size of the live objects of this process's Java in MiB, after a collection."""
    jvm: Any = spark.sparkContext._jvm
    jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    return Done(0.0, {"mib": (runtime.totalMemory() - runtime.freeMemory()) / 2**20})


def check_archive(spark: SparkSession, work: Work) -> Done:
    """The contents of the archive `path` for any reader: the number of rows, the number of seqs, and their sum."""
    import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]
    import pyarrow.dataset as ds  # type: ignore[import-untyped, unused-ignore]

    start = time.monotonic()
    files = ds.dataset(Path(work.given["path"]), partitioning="hive", format="parquet")
    seqs = files.to_table(columns=["seq"]).column("seq")
    return Done(
        time.monotonic() - start,
        {"rows": len(seqs), "different": pc.count_distinct(seqs).as_py(), "seqs": pc.sum(seqs).as_py()},
    )


JOBS: dict[str, Callable[[SparkSession, Work], Done]] = {
    "handle": handle,
    "lease": lease,
    "read": read,
    "archive": archived,
    "check_archive": check_archive,
    "write": written,
    "replay": replayed,
    "aggregate": aggregated,
    "copy": copied,
    "heap": heap,
    **BARE,
    **PLAIN_SOURCE,
}
