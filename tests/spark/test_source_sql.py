"""Streams in SQL: tables of Spark's catalog, typed payloads, and registration without a line of code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace import store
from headrace.model.errors import ConfigurationError
from headrace_spark import tables
from headrace_spark.source.format import HeadraceSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.asyncio

PAYLOADS = (
    '{"region": "eu", "total": "20.90", "tags": ["a", null]}',
    '{"region": 5, "total": "3", "more": {}}',
    '{"region": "us", "total": "a lot"}',
    "[1, 2]",
)
DDL = "region string, total decimal(12, 2), tags array<string>"


@pytest.fixture
def namespace(spark: SparkSession) -> Iterator[str]:
    """A database of Spark's catalog, which is gone with all of its tables after the test."""
    spark.sql("create database sql_tests")
    yield "sql_tests"
    spark.sql("drop database sql_tests cascade")


async def fill(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await store.publish_many(
        database, "orders", [f"k.{n}" for n in range(1, 5)], PAYLOADS, ['{"trace": "t", "n": 1}', None, None, None]
    )


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


async def test_a_table_is_read_written_and_streamed(
    spark: SparkSession, dsn: str, database: store.Database, namespace: str, tmp_path: Path
) -> None:
    await fill(database)
    spark.sql(
        f"create table sql_tests.orders using headrace options (stream 'orders', database '{dsn}', dataSchema '{DDL}', filter 'k.>')"
    )
    assert rows(spark.sql("select seq, data.region, cast(data.total as string) from sql_tests.orders order by seq")) == [
        (1, "eu", "20.90"), (2, "5", "3.00"), (3, None, None), (4, None, None),
    ]  # fmt: skip
    spark.sql(
        "insert into sql_tests.orders (key, data) values ('k.5', named_struct('region', 'asia', 'total', 1.5BD, 'tags', null))"
    )
    stored = await database.fetchval("select data::text from headrace_streams.orders where seq = 5")
    assert stored == '{"region":"asia","total":"1.50","tags":null}'
    # Messages published since the first query are there.
    assert rows(spark.sql("select count(*), max(data.region) from sql_tests.orders")) == [(5, "eu")]
    with pytest.raises(Exception, match="A stream can only be appended to"):
        spark.sql("insert overwrite sql_tests.orders select * from sql_tests.orders")
    stream = spark.readStream.option("maxRows", "3").table("sql_tests.orders").select("seq")
    query = stream.writeStream.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    started = query.start(str(tmp_path / "rows"), format="parquet")
    await asyncio.to_thread(started.awaitTermination)
    assert [progress["numInputRows"] for progress in started.recentProgress] == [3, 2]
    # A copy names its stream: the table's is for `insert into`.
    with pytest.raises(Exception, match="The stream is not set"):
        spark.table("sql_tests.orders").select("key", "data").write.format("headrace").mode("append").save()


async def test_a_row_that_is_inserted_into_a_table_of_several_streams_names_its_own(
    spark: SparkSession, dsn: str, database: store.Database, namespace: str
) -> None:
    for stream in ("orders", "payments"):
        await store.create_stream(database, stream)
    for name, streams in (("listed", "stream 'orders,payments'"), ("matched", "streamPattern 'orders|payments'")):
        spark.sql(f"create table sql_tests.{name} using headrace options ({streams}, database '{dsn}')")
        values = ", ".join(f"('{stream}', '{name}.{stream}', '1')" for stream in ("orders", "payments"))
        spark.sql(f"insert into sql_tests.{name} (stream, key, data) values {values}")
        assert rows(spark.sql(f"select stream, key from sql_tests.{name} where key like '{name}.%' order by key")) == [
            (stream, f"{name}.{stream}") for stream in ("orders", "payments")
        ]


async def test_streams_get_tables_by_their_names(
    spark: SparkSession, dsn: str, database: store.Database, namespace: str
) -> None:
    await fill(database)
    await store.create_stream(database, "orders-old")
    assert tables(spark, namespace, database=dsn, pattern="orders.*") == ["sql_tests.orders", "sql_tests.orders_old"]
    await store.create_stream(database, "other")
    assert tables(spark, namespace, database=dsn) == ["sql_tests.orders", "sql_tests.orders_old", "sql_tests.other"]
    assert rows(spark.sql("select count(*) from sql_tests.orders")) == [(4,)]
    assert rows(spark.sql("select count(*) from sql_tests.orders_old")) == [(0,)]
    await store.create_stream(database, "orders_old")
    with pytest.raises(ConfigurationError, match="'orders-old' and 'orders_old' would have the same table"):
        tables(spark, namespace, database=dsn)
    with pytest.raises(ConfigurationError, match="has a password"):
        tables(spark, namespace, database="postgresql://ann:secret@db/x")


async def test_what_a_table_can_not_be_is_said(
    spark: SparkSession, dsn: str, database: store.Database, namespace: str
) -> None:
    await fill(database)
    with pytest.raises(Exception, match="The database URL of the table has a password"):
        spark.sql(f"create table sql_tests.o using headrace options (stream 'orders', database '{with_password(dsn)}')")
    spark.sql("create table sql_tests.o (key string, data string) using headrace options (stream 'orders')")
    with pytest.raises(Exception, match=r"In SQL write create table orders using headrace .* and no columns"):
        spark.sql("select * from sql_tests.o").collect()


def with_password(dsn: str) -> str:
    return dsn.replace("@", ":secret@", 1)


async def test_a_payload_that_does_not_fit_is_null_dropped_or_ends_the_read(
    spark: SparkSession, dsn: str, database: store.Database
) -> None:
    await fill(database)

    def read(**given: str) -> DataFrame:
        return spark.read.format("headrace").options(database=dsn, stream="orders", dataSchema=DDL, **given).load()

    found = read(columnNameOfCorruptRecord="_corrupt_record").orderBy("seq")
    assert rows(found.select("data.tags", "_corrupt_record")) == [
        (["a", None], None), (None, None), (None, PAYLOADS[2]), (None, PAYLOADS[3]),
    ]  # fmt: skip
    assert rows(found.where("data is null").select("seq")) == [(3,), (4,)]  # not by the database, which has data there
    assert rows(read(mode="dropmalformed").select("seq")) == [(1,), (2,)]
    with pytest.raises(
        Exception, match=r"The data of the message 3 of the stream 'orders' does not fit .* at `\$\.total`"
    ):
        read(mode="failfast").collect()


async def test_columns_are_typed_by_a_schema_or_by_a_sample(
    spark: SparkSession, dsn: str, database: store.Database
) -> None:
    await fill(database)
    reader = spark.read.format("headrace").options(database=dsn, stream="orders")
    given = reader.schema("headers map<string, string>, data struct<region: string>, seq bigint, stream string").load()
    assert rows(given.orderBy("seq"))[:2] == [
        ({"trace": "t", "n": "1"}, ("eu",), 1, "orders"), (None, ("5",), 2, "orders"),
    ]  # fmt: skip
    sampled = spark.read.format("headrace").options(database=dsn, stream="orders", inferSchema="true", filter="k.1,k.2")
    frame = sampled.load()
    assert dict(frame.dtypes)["data"] == "struct<more:string,region:string,tags:array<string>,total:string>"
    assert rows(frame.select("data.region", "data.more").orderBy("seq")) == [("eu", None), ("5", "{}")]
    with pytest.raises(Exception, match="there is no schema to infer"):
        spark.read.format("headrace").options(database=dsn, stream="orders", inferSchema="true", filter="x").load()


async def test_spark_finds_the_source_by_itself(spark: SparkSession, dsn: str, database: store.Database) -> None:
    """A session in which nothing is registered knows it by the package `pyspark_headrace`."""
    import pyspark_headrace

    assert pyspark_headrace.DefaultSource is HeadraceSource
    await fill(database)
    fresh = spark.newSession()
    found = fresh.read.format("headrace").options(database=dsn).load("orders")
    assert found.count() == 4
