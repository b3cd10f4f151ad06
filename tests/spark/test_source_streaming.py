"""`spark.readStream.format("headrace")` reads every committed message in one micro-batch, exactly once,
whatever happens.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace import store, sweep
from headrace.model.specs import ConsumerSpec, StreamSpec
from tests.conftest import Connect
from tests.runtime.running import eventually
from tests.support.late import LatePublishers
from tests.support.readers import publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.asyncio


class Query:
    """A query from the stream `orders` into files, with a checkpoint to continue from."""

    def __init__(self, spark: SparkSession, dsn: str, directory: Path, **options: Any) -> None:
        self._spark = spark
        self._options = {"database": dsn, "stream": "orders", "partitions": 1} | options
        self._directory = directory

    def start(self, **trigger: Any) -> StreamingQuery:
        options = {name: str(value) for name, value in self._options.items()}
        stream = self._spark.readStream.format("headrace").schema("seq bigint, key string").options(**options).load()
        writer = stream.writeStream.option("checkpointLocation", str(self._directory / "checkpoint"))
        return writer.trigger(**trigger).start(str(self._directory / "rows"), format="parquet")

    async def run(self) -> list[int]:
        """Read the available messages. Returns how many rows each micro-batch had."""
        query = self.start(availableNow=True)
        try:
            await asyncio.to_thread(query.awaitTermination)
            return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
        finally:
            await asyncio.to_thread(query.stop)

    def offset(self) -> Any:
        """The last offset in the checkpoint."""
        offsets = self._directory / "checkpoint" / "offsets"
        newest = max((int(file.name), file) for file in offsets.iterdir() if file.name.isdigit())[1]
        return json.loads(newest.read_text(encoding="utf-8").splitlines()[-1])

    def seqs(self) -> Counter[int]:
        rows = self._spark.read.schema("seq bigint").parquet(str(self._directory / "rows"))
        return Counter(row.seq for row in rows.collect())


async def test_micro_batches_hold_what_late_publishers_committed_once(
    spark: SparkSession, dsn: str, database: store.Database, connect: Connect, tmp_path: Path
) -> None:
    await store.create_stream(database, "orders")
    publishers = LatePublishers(dsn, messages=500, seed=7, slowest=0.2)
    publishers.keep_on = True
    query = Query(spark, dsn, tmp_path)
    work = asyncio.create_task(publishers.run())
    running = await asyncio.to_thread(query.start, processingTime="0 seconds")
    wanted = set()
    try:
        await eventually(lambda: batches_of(running, 1))
        for commits in (True, False, True):
            late = await connect()
            transaction = late.transaction()
            await transaction.start()
            seq = await store.publish(late, "orders", "very_late", "1")
            for _ in range(3):  # micro-batches are planned and read while it is open
                await eventually(partial(has_looked, database, await database.fetchval("select clock_timestamp()")))
            if commits:
                await transaction.commit()
                wanted.add(seq)
            else:
                await transaction.rollback()
        publishers.keep_on = False
        await work
    finally:
        await asyncio.to_thread(running.stop)  # possibly during a micro-batch
    await query.run()
    found = query.seqs()
    assert set(found) == publishers.committed | wanted
    assert max(found.values()) == 1


async def has_looked(database: store.Database, since: Any) -> bool:
    """Return whether the reader has found an open publisher since then, and has read as far as it may."""
    found: bool = await database.fetchval(
        "select exists (select from pg_stat_activity where datname = current_database()"
        " and application_name = 'headrace spark' and query like '%headrace_internal.resolved%' and query_start > $1)",
        since,
    )
    return found


async def batches_of(running: StreamingQuery, count: int) -> bool:
    """Return whether there were so many micro-batches with messages."""
    return len([progress for progress in running.recentProgress if progress["numInputRows"]]) >= count


async def test_a_query_goes_on_from_its_checkpoint_in_batches_of_max_rows(
    spark: SparkSession, dsn: str, database: store.Database, connect: Connect, tmp_path: Path
) -> None:
    await store.create_stream(database, "orders")
    await store.declare_consumer(database, ConsumerSpec(stream="orders", name="archive"))
    query = Query(spark, dsn, tmp_path, maxRows=40, settleTimeout="0s", consumer="archive")
    await publish(database, *(f"k.{n}" for n in range(100)))
    connection = await connect()
    late = connection.transaction()
    await late.start()
    await publish(connection, "late", "late")
    await publish(database, "a", "b", "c")
    assert await query.run() == [40, 40, 20]  # up to the first that is still missing
    await late.commit()
    await publish(database, "d")
    assert await query.run() == [6]
    assert await query.run() == []
    assert query.seqs() == Counter(range(1, 107))
    # The form in which offsets were written before a query could have several streams, which continues in both ways.
    # The versions of that time ignore `last`.
    uid = await database.fetchval("select uid::text from headrace_internal.streams where name = 'orders'")
    assert query.offset().items() >= {"stream": uid, "position": 106}.items()
    await store.create_stream(database, "others")
    await publish(database, "a", "b", stream="others")
    assert await Query(spark, dsn, tmp_path, stream="orders,others").run() == [2]
    assert (await store.consumer(database, "orders", "archive")).position == 106


async def test_a_checkpoint_of_another_stream_and_lost_messages_are_reported(
    spark: SparkSession, dsn: str, database: store.Database, tmp_path: Path
) -> None:
    await store.create_stream(database, StreamSpec(name="orders", retain_up_to=3600, max_storage=1_000_000))
    query = Query(spark, dsn, tmp_path)
    await publish(database, *(f"k.{n}" for n in range(10)))
    assert await query.run() == [10]
    await publish(database, *(f"k.{n}" for n in range(1000)))
    await database.fetch(
        "update headrace_streams.orders set created_at = created_at - interval '2 hours' where seq <= 1000"
    )
    assert (await sweep(database)).segments_dropped == 1
    with pytest.raises(Exception, match="the seqs from 11 to 1000 were removed by retention before they were read"):
        await query.run()
    assert await Query(spark, dsn, tmp_path, failOnDataLoss="false").run() == [10]
    await store.delete_stream(database, "orders")
    await store.create_stream(database, "orders")
    with pytest.raises(Exception, match=r"deleted and created again\. The checkpoint belongs to the deleted one"):
        await query.run()
