"""Several streams in one read or query: by name or by a pattern, with a position each."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from headrace import store
from headrace.model.errors import ConfigurationError, InvalidInput, UnknownConsumer, UnknownStream
from headrace.model.specs import ConsumerSpec
from headrace_spark import report_lag, session
from headrace_spark.frames.pieces import STREAM
from headrace_spark.positions.offsets import parse
from headrace_spark.progress import LagReport
from headrace_spark.session import sessions
from headrace_spark.source.options import Options
from headrace_spark.source.reader import HeadraceReader
from headrace_spark.source.rows import SCHEMA
from headrace_spark.source.streaming import HeadraceStreamReader
from tests.runtime.running import eventually
from tests.support.logs import logged
from tests.support.readers import Clock, publish
from tests.telemetry.recorded import Recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.asyncio

ROWS = StructType([*SCHEMA, StructField(STREAM, StringType(), False)])


async def fill(database: store.Database, **counts: int) -> None:
    """Make streams with so many messages each."""
    for stream, count in counts.items():
        await store.create_stream(database, stream)
        await more(database, stream, count)


async def more(database: store.Database, stream: str, count: int) -> None:
    await publish(database, *(f"k.{n}" for n in range(count)), stream=stream)


def options(dsn: str, **given: Any) -> Options:
    return Options.of({"database": dsn, **{name: str(value) for name, value in given.items()}})


def rows(reader: Any, parts: list[Any]) -> list[tuple[str, int]]:
    """Return the stream and seq of all rows, sorted."""
    batches = [batch for part in parts for batch in reader.read(part)]
    return sorted((row["stream"], row["seq"]) for batch in batches for row in batch.to_pylist())


def found(dsn: str, **given: Any) -> list[tuple[str, int]]:
    reader = HeadraceReader(options(dsn, **given), ROWS)
    return rows(reader, reader.partitions())


class Query:
    """A streaming query without Spark. It keeps its offset, as a checkpoint does."""

    def __init__(self, dsn: str, offset: dict[str, Any] | None = None, **given: Any) -> None:
        self.clock = Clock()
        self.reader = HeadraceStreamReader(options(dsn, **given), ROWS, clock=lambda: self.clock.now.timestamp())
        self.offset = offset or self.reader.initialOffset()

    def batch(self) -> list[tuple[str, int]]:
        end = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        if end == self.offset:
            return []
        found = rows(self.reader, self.reader.partitions(self.offset, end))
        self.offset = end
        return found

    def stop(self) -> dict[str, Any]:
        self.reader.stop()
        return self.offset


def of(stream: str, first: int, last: int) -> list[tuple[str, int]]:
    return [(stream, seq) for seq in range(first, last + 1)]


async def test_a_read_takes_several_streams_each_from_its_own_start(dsn: str, database: store.Database) -> None:
    await fill(database, orders=5, payments=3, orders_old=2, other=1)
    assert found(dsn, stream="orders, payments") == of("orders", 1, 5) + of("payments", 1, 3)
    assert found(dsn, streamPattern="orders.*") == of("orders", 1, 5) + of("orders_old", 1, 2)
    start = '{"orders": 4, "*": "latest"}'
    assert found(dsn, stream="orders,payments", start=start) == of("orders", 4, 5)
    assert found(dsn, stream="orders,payments", end='{"payments": "2"}', start='{"orders": 5}') == [
        ("orders", 5), ("payments", 1), ("payments", 2),
    ]  # fmt: skip
    assert found(dsn, streamPattern="nothing") == []
    for given, error in (
        ({"stream": "orders,nobody"}, "There is no stream 'nobody'"),
        (
            {"streamPattern": "orders", "start": '{"payments": 1}'},
            "start names 'payments', which streamPattern='orders'",
        ),
        ({"streamPattern": "("}, "streamPattern is not a regular expression"),
    ):
        with pytest.raises((InvalidInput, UnknownStream, ConfigurationError), match=error):
            found(dsn, **given)


async def test_small_ranges_of_several_streams_share_a_task(dsn: str, database: store.Database) -> None:
    await fill(database, **{f"s{n}": 3 for n in range(7)})
    reader = HeadraceReader(options(dsn, streamPattern="s.", partitions=2), ROWS)
    parts = reader.partitions()
    assert [len(part.pieces) for part in parts] == [4, 3]  # type: ignore[attr-defined]
    assert len(rows(reader, parts)) == 21


async def test_a_stream_that_joins_is_read_from_its_first_message(dsn: str, database: store.Database) -> None:
    await fill(database, orders_eu=3)
    query = Query(dsn, streamPattern="orders_.*")
    assert query.batch() == of("orders_eu", 1, 3)
    await fill(database, orders_us=2, payments=1)
    assert query.batch() == of("orders_us", 1, 2)
    await more(database, "orders_us", 1)
    await fill(database, orders_asia=0)
    again = Query(dsn, query.stop(), streamPattern="orders_.*")
    assert again.batch() == of("orders_us", 3, 3)
    assert again.batch() == []
    await more(database, "orders_asia", 1)
    assert again.batch() == of("orders_asia", 1, 1)
    again.stop()
    none = Query(dsn, streamPattern="later")
    assert (none.offset, none.batch()) == ({"streams": {}}, [])
    await fill(database, later=1)
    assert none.batch() == of("later", 1, 1)
    none.stop()


async def test_a_stream_that_was_deleted_ends_a_query_unless_it_may_lose_data(
    dsn: str, database: store.Database
) -> None:
    await fill(database, orders_eu=3, orders_us=2)
    query = Query(dsn, streamPattern="orders_.*")
    before, _ = query.offset, query.batch()
    after = query.stop()
    await store.delete_stream(database, "orders_us")
    await store.create_stream(database, "orders_us")
    await more(database, "orders_us", 1)
    strict, tolerant = (Query(dsn, after, streamPattern="orders_.*", failOnDataLoss=fail) for fail in ("true", "false"))
    with pytest.raises(UnknownStream, match=r"'orders_us' was deleted and created again.*failOnDataLoss=false"):
        strict.batch()
    assert tolerant.batch() == of("orders_us", 1, 1)
    # Spark plans the last micro-batch again if it was not committed.
    assert rows(tolerant.reader, tolerant.reader.partitions(before, after)) == of("orders_eu", 1, 3)
    strict.stop()
    tolerant.stop()


async def test_a_checkpoint_of_one_stream_goes_on_with_one_or_more(dsn: str, database: store.Database) -> None:
    """The offset is written as the versions before several streams wrote it."""
    await fill(database, orders=5, payments=2)
    uid = await database.fetchval("select uid::text from headrace_internal.streams where name = 'orders'")
    old = {"stream": uid, "position": 3}
    single = Query(dsn, old, stream="orders")
    assert single.batch() == of("orders", 4, 5)
    assert single.stop().items() >= {"stream": uid, "position": 5}.items()
    several = Query(dsn, old, stream="orders,payments")
    assert several.batch() == of("orders", 4, 5) + of("payments", 1, 2)
    fewer = Query(dsn, several.stop(), stream="payments")
    await more(database, "payments", 1)
    assert fewer.batch() == of("payments", 3, 3)
    # The last batch of the old query is planned again by the new one.
    wide = Query(dsn, old, streamPattern="(orders|payments)")
    assert rows(wide.reader, wide.reader.partitions(old, {"stream": uid, "position": 5})) == of("orders", 4, 5)
    for one in (fewer, wide):
        one.stop()


async def test_a_checkpoint_of_another_stream_names_it(dsn: str, database: store.Database) -> None:
    """The options name another stream than before. That one was not deleted."""
    await fill(database, orders=5, payments=2)
    before = Query(dsn, stream="orders")
    before.batch()
    offset = before.stop()
    named = r"The checkpoint has read the stream 'orders', which is not among the query's streams\. Name it, too\. Otherwise"
    for options in ({"stream": "payments"}, {"streamPattern": "pay.*"}):
        other = Query(dsn, offset, **options)
        with pytest.raises(UnknownStream, match=named):
            other.batch()
        other.stop()
    both = Query(dsn, offset, stream="payments,orders")
    assert both.batch() == of("payments", 1, 2)
    both.stop()


async def test_a_batch_has_a_share_of_each_stream(dsn: str, database: store.Database) -> None:
    await fill(database, large=100, small=4)
    query = Query(dsn, stream="large,small", maxRows=20)
    first = query.batch()
    assert 18 <= len(first) <= 20
    assert {stream for stream, _ in first} == {"large", "small"}
    every = list(first)
    while rest := query.batch():
        assert len(rest) <= 20
        every += rest
    assert sorted(every) == of("large", 1, 100) + of("small", 1, 4)
    query.stop()


async def test_bytes_bound_a_batch(dsn: str, database: store.Database) -> None:
    await fill(database, large=20, small=2)
    sql = "select max(octet_length(key) + pg_column_size(data)) from headrace_streams.large"
    each = await database.fetchval(sql)
    query = Query(dsn, stream="large,small", maxBytes=8 * each)
    batches = []
    while rest := query.batch():
        batches.append(rest)
    assert sorted(row for batch in batches for row in batch) == of("large", 1, 20) + of("small", 1, 2)
    assert batches[0] == of("large", 1, 4) + of("small", 1, 2), "each stream with news has half of the bytes"
    assert batches[1] == of("large", 5, 12)
    query.stop()


async def test_a_small_batch_waits_for_more_or_for_the_delay(dsn: str, database: store.Database) -> None:
    await fill(database, orders=1, payments=0)
    query = Query(dsn, stream="orders,payments", minRows=4, maxTriggerDelay="1m")
    assert query.batch() == of("orders", 1, 1)  # the first one does not wait
    await more(database, "payments", 3)
    assert query.batch() == []
    await more(database, "orders", 1)
    assert query.batch() == of("orders", 2, 2) + of("payments", 1, 3)
    await more(database, "orders", 1)
    query.clock.advance(59)
    assert query.batch() == []
    query.clock.advance(1)
    assert query.batch() == of("orders", 3, 3)
    await more(database, "orders", 1)
    assert query.reader.latestOffset(query.offset, ReadAllAvailable()) != query.offset  # a trigger that reads all
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == of("orders", 4, 4)
    query.stop()


async def test_the_last_seqs_are_reported(dsn: str, database: store.Database) -> None:
    await fill(database, orders=5, payments=2)
    query = Query(dsn, stream="orders", maxRows=2)
    assert query.reader.reportLatestOffset() is None
    query.batch()
    assert query.reader.reportLatestOffset() == {"stream": query.offset["stream"], "position": 5, "name": "orders"}
    query.stop()
    several = Query(dsn, stream="orders,payments")
    several.batch()
    latest, read = several.reader.reportLatestOffset(), several.stop()
    assert latest is not None
    assert [(one.name, one.seq) for one in parse(latest).values()] == [
        (one.name, one.seq) for one in parse(read).values()
    ]


async def test_the_consumer_of_each_stream_follows(dsn: str, database: store.Database) -> None:
    await fill(database, orders=2, payments=1)
    await store.declare_consumer(database, ConsumerSpec(stream="orders", name="copy"))
    query = Query(dsn, stream="orders,payments", consumer="copy")
    with pytest.raises(UnknownConsumer, match="no consumer 'copy' on the stream 'payments'"):
        query.batch()
    await store.declare_consumer(database, ConsumerSpec(stream="payments", name="copy"))
    query.batch()
    query.reader.commit(query.offset)
    assert [(await store.consumer(database, name, "copy")).position for name in ("orders", "payments")] == [2, 1]
    query.stop()


async def test_spark_reads_streams_that_match_a_pattern_and_shows_what_it_lags_behind(
    spark: SparkSession, dsn: str, database: store.Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(database, orders_eu=3)

    def start(**trigger: Any) -> Any:
        given = {"database": dsn, "streamPattern": "orders_.*", "maxRows": "2", "partitions": "1"}
        frame = spark.readStream.format("headrace").options(**given).load().select("stream", "seq")
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(**trigger).start(str(tmp_path / "rows"), format="parquet")

    recorded = Recorded()
    report = report_lag(spark, telemetry=recorded.telemetry)
    query = start(processingTime="0 seconds")
    try:
        await eventually(partial(has_read, query, "orders_eu", 3))
        [first] = [one for one in query.recentProgress if one["batchId"] == 0]
        assert position(first, "endOffset", "orders_eu") == 2
        assert position(first, "latestOffset", "orders_eu") == 3
        await fill(database, orders_us=1)
        await eventually(partial(has_read, query, "orders_us", 1))
        await eventually(partial(is_reported, report, "orders_us"))
        assert recorded.value("headrace.spark.query.lag", name="orders_us") == 0
    finally:
        await asyncio.to_thread(query.stop)
        await asyncio.to_thread(report.stop)
    await more(database, "orders_us", 1)
    assert sessions._current is not None
    sessions._current.lag = None  # that report has taken its place
    assert session() is spark
    caplog.set_level("INFO", logger="headrace.spark")
    query = start(availableNow=True)
    await asyncio.to_thread(query.awaitTermination)
    await eventually(partial(is_logged, caplog, "orders_us"))  # by default
    stored = spark.read.schema("stream string, seq bigint").parquet(str(tmp_path / "rows")).collect()
    assert sorted(tuple(row) for row in stored) == of("orders_eu", 1, 3) + of("orders_us", 1, 2)


async def has_read(query: Any, stream: str, seq: int) -> bool:
    progress = await asyncio.to_thread(lambda: query.lastProgress)
    return bool(progress) and position(progress, "endOffset", stream) == seq


async def is_logged(caplog: pytest.LogCaptureFixture, stream: str) -> bool:
    return bool(logged(caplog, "streaming query", stream=stream, seq=2, lag=0))


async def is_reported(report: LagReport, stream: str) -> bool:
    queries = report.statistics()["queries"].values()
    return any(one["stream"] == stream and one["position"] == 1 for query in queries for one in query["streams"])


def position(progress: Any, offset: str, stream: str) -> int | None:
    found: dict[str, Any] = json.loads(progress["sources"][0][offset] or "{}")
    return found.get("streams", {}).get(stream, {}).get("position")
