"""`spark.read.format("headrace")` reads committed messages once, in parallel, and only what was asked for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from headrace import store, sweep
from headrace.model.specs import StreamSpec
from tests.conftest import Connect
from tests.runtime.running import eventually
from tests.support.readers import publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.asyncio


def frame(spark: SparkSession, dsn: str, **options: Any) -> DataFrame:
    reader = spark.read.format("headrace").option("database", dsn).option("stream", "orders")
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def seqs(found: DataFrame) -> list[int]:
    return [row.seq for row in found.select("seq").collect()]


async def fill(database: store.Database) -> None:
    """Publish ten orders, from two countries in turn."""
    await store.create_stream(database, "orders")
    await store.publish_many(
        database, "orders", [f"orders.{'us' if n % 2 else 'eu'}.{n}" for n in range(1, 11)],
        [f'{{"total": {n}}}' for n in range(1, 11)], ['{"trace": "abc"}', *[None] * 9],
    )  # fmt: skip


async def test_a_row_is_a_message(spark: SparkSession, dsn: str, database: store.Database) -> None:
    await fill(database)
    before = await database.fetchval("select created_at from headrace_streams.orders where seq = 1")
    found = frame(spark, dsn, partitions=2)
    assert found.dtypes == [
        ("key", "string"), ("seq", "bigint"), ("headers", "string"), ("created_at", "timestamp"), ("data", "string"),
    ]  # fmt: skip
    rows = found.collect()
    assert [row.seq for row in rows] == list(range(1, 11))
    assert (rows[0].key, rows[0].headers, rows[0].data) == ("orders.us.1", '{"trace": "abc"}', '{"total": 1}')
    assert rows[0].created_at.astimezone(UTC) == before
    assert rows[1].headers is None
    assert found.rdd.getNumPartitions() == 2


async def test_only_the_columns_that_are_named_are_read(
    spark: SparkSession, dsn: str, database: store.Database
) -> None:
    await fill(database)
    reader = spark.read.format("headrace").option("database", dsn).schema("seq bigint, key string")
    assert [tuple(row) for row in reader.load("orders").limit(1).collect()] == [(1, "orders.us.1")]
    with pytest.raises(Exception, match=r"A stream has no column total int\. The columns are key string, seq bigint"):
        spark.read.format("headrace").option("database", dsn).schema("total int").load("orders").collect()


async def test_filters_conditions_and_ends_choose_messages(
    spark: SparkSession, dsn: str, database: store.Database
) -> None:
    await fill(database)
    assert seqs(frame(spark, dsn, filter="orders.eu.>", where="data.total > 4")) == [6, 8, 10]
    assert seqs(frame(spark, dsn, start=3, end=5)) == [3, 4, 5]
    assert seqs(frame(spark, dsn, start="latest")) == []
    with pytest.raises(Exception, match="The seq 11 lies past the end of the stream 'orders', whose last one is 10"):
        frame(spark, dsn, end=11).collect()


@pytest.mark.parametrize("pushed", ["true", "false"])
async def test_filters_of_spark_find_the_same_wherever_they_are_evaluated(
    spark: SparkSession, dsn: str, database: store.Database, pushed: str
) -> None:
    await fill(database)
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, pushed)
    try:
        found = frame(spark, dsn).where(
            "seq > 2 and seq in (2, 4, 6, 8) and key like 'orders.eu%' and key < 'orders.eu.8'"
            " and created_at > timestamp'2020-01-01' and headers is null and data like '%6%'"
        )
        assert seqs(found) == [6]
        plan = found._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.set(setting, before or "false")
    filters = [line for line in plan.splitlines() if "Filter" in line and "RuntimeFilters" not in line]
    assert ("key" in "".join(filters)) == (pushed == "false")
    assert "data" in "".join(filters)  # Spark's own business


async def test_a_read_waits_for_publishers_and_ends_before_the_first_that_stays(
    spark: SparkSession, dsn: str, database: store.Database, connect: Connect
) -> None:
    await fill(database)
    connection = await connect()
    late = connection.transaction()
    await late.start()
    await publish(connection, "late")
    await publish(database, "early")
    assert seqs(frame(spark, dsn, settleTimeout="0s"))[-1] == 10
    with pytest.raises(
        Exception,
        match=r"complete up to seq 10, and not up to 12, since a transaction still publishes after .* \(process",
    ):
        frame(spark, dsn, settleTimeout="0s", end=12).collect()
    reading = asyncio.create_task(asyncio.to_thread(lambda: seqs(frame(spark, dsn, start=10))))
    await until_watched(database, late)
    assert await reading == [10, 11, 12]


async def until_watched(database: store.Database, late: Any) -> None:
    """Commit once the reader has checked whether this transaction has ended."""
    await eventually(
        lambda: database.fetchval(
            "select exists (select from pg_stat_activity where datname = current_database()"
            " and application_name = 'headrace spark' and query like '%still_open%')"
        )
    )
    await late.commit()


async def test_what_retention_removed_is_reported(spark: SparkSession, dsn: str, database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="orders", retain_up_to=3600, max_storage=1_000_000))
    for _ in range(4):
        await publish(database, *(f"k.{n}" for n in range(300)))
    await database.fetch(
        "update headrace_streams.orders set created_at = created_at - interval '2 hours' where seq <= 1000"
    )
    assert (await sweep(database)).segments_dropped == 1
    with pytest.raises(Exception, match="the seqs from 5 to 1000 were removed by retention before they were read"):
        frame(spark, dsn, start=5).collect()
    assert seqs(frame(spark, dsn, start=5, failOnDataLoss="false")) == list(range(1001, 1201))
    assert frame(spark, dsn).count() == 200


async def test_a_stream_of_last_values_is_read_as_it_is(
    spark: SparkSession, dsn: str, database: store.Database
) -> None:
    await store.create_stream(database, StreamSpec(name="orders", one_message_per_key=True))
    await publish(database, "a", "b", "c")
    await publish(database, "a")
    assert [(row.key, row.seq) for row in frame(spark, dsn, partitions=2).collect()] == [("b", 2), ("c", 3), ("a", 4)]


async def test_errors_are_one_sentence(spark: SparkSession, dsn: str, database: store.Database) -> None:
    for options, expected_error in (
        ({}, "There is no stream 'orders': create it, or mend the name"),
        ({"strem": "x"}, "has no option 'strem'. Did you mean stream"),
        (
            {"database": "postgresql://ann:secret@127.0.0.1:1/x"},
            "The database at postgresql://ann:…@127.0.0.1:1/x can't be reached",
        ),
    ):
        with pytest.raises(Exception, match="headrace") as raised:
            frame(spark, dsn, **options).collect()
        assert expected_error in str(raised.value)
        assert "secret" not in str(raised.value).split("Traceback")[0]


async def test_a_time_bounds_a_range(spark: SparkSession, dsn: str, database: store.Database) -> None:
    await fill(database)
    await database.fetch(
        "update headrace_streams.orders set created_at = created_at - interval '2 days' where seq <= 4"
    )
    yesterday = datetime.fromtimestamp(datetime.now(UTC).timestamp() - 86400, UTC).isoformat()
    assert seqs(frame(spark, dsn, start=yesterday)) == [5, 6, 7, 8, 9, 10]
    assert seqs(frame(spark, dsn, end=yesterday)) == [1, 2, 3, 4]
