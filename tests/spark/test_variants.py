"""Payloads of unknown shape are read and written as variants, and payloads that grow fields are read by a wider
schema."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType, VariantType, VariantVal

from headrace import App, store
from headrace.model.errors import InvalidData
from headrace_spark import spark_consumer
from headrace_spark.frames.columns import arrow_type
from headrace_spark.frames.encoding import encode
from headrace_spark.frames.incoming import decode
from headrace_spark.frames.schema import of_struct
from tests.runtime.running import Seen, running
from tests.spark.test_schema import Sent
from tests.support.readers import publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.asyncio

ODD = [
    '{"b": [1, 2.50, 1e300, true, null, {}], "a": {"z": "x\\u00e9\\ud83d\\ude00", "": []}}',
    '{"n": -128, "m": 32768, "o": 9223372036854775807, "p": 9223372036854775808, "q": 0.000000000000000000001}',
    '"text"', "7", "null", "false", "[]", json.dumps({f"f{number}": "x" * number for number in range(300)}),
]  # fmt: skip
"""JSON texts of all kinds of values."""


def reading(spark: SparkSession, dsn: str, **options: str) -> Any:
    return spark.read.format("headrace").options(database=dsn, stream="orders", **options)


async def fill(database: store.Database, *texts: str) -> None:
    await store.create_stream(database, "orders")
    for text in texts:
        await store.publish(database, "orders", "a", text)


async def test_a_payload_is_read_as_the_variant_that_spark_makes_of_it(
    spark: SparkSession, database: store.Database, dsn: str
) -> None:
    await fill(database, *ODD)
    variants = reading(spark, dsn).schema("seq bigint, data variant").load().withColumnRenamed("data", "ours")
    texts = reading(spark, dsn).schema("seq bigint, data string").load().withColumn("theirs", sql.parse_json("data"))
    rows = variants.join(texts, "seq").selectExpr("to_json(ours) as ours", "to_json(theirs) as theirs").collect()
    assert len(rows) == len(ODD)
    assert [row.ours for row in rows] == [row.theirs for row in rows]


async def test_fields_of_unknown_shape_stand_beside_typed_ones(
    spark: SparkSession, database: store.Database, dsn: str
) -> None:
    await fill(
        database,
        '{"id": 1, "more": {"color": "red"}, "tags": [1, "b"]}', '{"id": 2, "more": null}', '{"id": 3}', '{"id": "x", "more": 1}',
    )  # fmt: skip
    schema = "id bigint, more variant, tags array<variant>"
    found = reading(spark, dsn, dataSchema=schema, columnNameOfCorruptRecord="bad").load().sort("seq")
    rows = found.selectExpr(
        "variant_get(data.more, '$.color', 'string') as color", "data.more is null as missing", "is_variant_null(data.more) as empty",
        "to_json(data.tags) as tags", "bad",
    ).collect()  # fmt: skip
    assert [tuple(row) for row in rows] == [
        ("red", False, False, '[1,"b"]', None),
        (None, False, True, None, None),
        (None, True, False, None, None),
        (None, True, False, None, '{"id": "x", "more": 1}'),
    ]
    theirs = spark.sql(f"select from_json('{{\"id\": 2, \"more\": null}}', '{schema}') as data")
    assert theirs.selectExpr("is_variant_null(data.more)").collect()[0][0], "as Spark's own reader"


async def test_of_a_name_that_occurs_twice_the_last_value_counts(
    spark: SparkSession, database: store.Database, dsn: str
) -> None:
    await fill(database, '{"a": 1, "a": 2}')
    [row] = reading(spark, dsn).schema("data variant").load().selectExpr("to_json(data)").collect()
    assert row[0] == '{"a":2}'
    with pytest.raises(Exception, match="VARIANT_DUPLICATE_KEY"):
        reading(spark, dsn).load().select(sql.parse_json("data")).collect()


@pytest.mark.parametrize("by", ["the driver", "tasks"])
async def test_a_handler_gets_and_publishes_variants(spark: SparkSession, dsn: str, by: str) -> None:
    """Spark turns a small batch of Arrow into rows while it plans, and a large one in tasks."""
    app = App(dsn, streams=["orders"])
    seen = Seen()

    @spark_consumer(app, "orders", schema="id bigint, more variant", publishes="copies", max_wait="0.1s")
    def copied(df: DataFrame) -> DataFrame:
        seen.note(df.where("key = 'a'").collect()[0].data.more)
        return df.select("key", "data.id", "data.more", sql.array("data.more").alias("list"))

    payload = {"id": 1, "more": {"a": [1.50, None], "b": "x"}}
    threshold = "spark.sql.execution.arrow.localRelationThreshold"
    before = spark.conf.get(threshold)
    spark.conf.set(threshold, "0" if by == "tasks" else "48MB")
    try:
        async with app:
            await app.publish_many("orders", [("a", payload), ("b", {"id": 2})])
        async with running(app):
            await app.idle()
            rows = await app.database.fetch("select key, data::text from headrace_streams.copies order by key")
    finally:
        spark.conf.set(threshold, before or "0")
    assert isinstance(seen.notes[0], VariantVal)
    assert seen.notes[0].toPython() == payload["more"]
    more = payload["more"]
    assert [(row[0], json.loads(row[1])) for row in rows] == [
        ("a", {"id": 1, "more": more, "list": [more]}), ("b", {"id": 2, "more": None, "list": [None]}),
    ]  # fmt: skip


async def test_a_variant_is_written_as_the_json_that_it_holds(
    spark: SparkSession, database: store.Database, dsn: str
) -> None:
    await fill(database, *ODD)
    await store.create_stream(database, "copies")
    rows = reading(spark, dsn).schema("key string, seq bigint, data variant").load()
    rows.coalesce(1).sortWithinPartitions("seq").write.format("headrace").mode("append").options(
        database=dsn, stream="copies"
    ).save()
    copies = await database.fetch("select data::text from headrace_streams.copies order by seq")
    assert [json.loads(row[0]) for row in copies] == [json.loads(text) for text in ODD]


async def test_numbers_that_json_does_not_have_are_written_as_spark_writes_them(
    spark: SparkSession, database: store.Database, dsn: str
) -> None:
    await fill(database, '{"a": [1e400, -1e400], "inf": "nan \\" inf"}', "7")
    await store.create_stream(database, "copies")
    rows = reading(spark, dsn).schema("key string, seq bigint, data variant").load()
    rows = rows.withColumn("data", sql.expr("if(seq = 2, cast(double('NaN') as variant), data)")).drop("seq")
    rows.coalesce(1).write.format("headrace").mode("append").options(database=dsn, stream="copies").save()
    copies = await database.fetch("select data::text from headrace_streams.copies order by seq")
    theirs = [row[0] for row in rows.select(sql.to_json("data")).collect()]
    assert [json.loads(row[0]) for row in copies] == [json.loads(text) for text in theirs]
    assert json.loads(theirs[0]) == {"a": ["Infinity", "-Infinity"], "inf": 'nan " inf'}


async def test_a_payload_that_is_nested_too_deeply_for_a_variant_does_not_fit() -> None:
    made = of_struct(StructType([StructField("more", VariantType())]))
    fit: list[int] = []
    for depth in range(sys.getrecursionlimit() - 300, sys.getrecursionlimit()):
        misfits: list[Exception] = []
        decode([Sent(f'{{"more": {"[" * depth}{"]" * depth}}}')], made, lambda _, error, to=misfits: to.append(error))
        fit += [] if misfits else [depth]
    assert 0 < len(fit) < 300


async def test_a_variant_that_is_nested_too_deeply_for_json_is_reported() -> None:
    depth = 400
    variant = VariantVal.parseJson("[" * depth + "]" * depth)
    schema = to_arrow_schema(StructType([StructField("key", StringType()), StructField("data", VariantType())]))
    data = pa.array([VariantType().toInternal(variant)], arrow_type(VariantType()))
    batch = pa.record_batch([pa.array(["a"]), data], schema)
    with pytest.raises(InvalidData, match="nested too deeply"):
        encode(batch)


class Query:
    """A query that copies typed payloads into the stream `copies`, with a checkpoint."""

    def __init__(self, spark: SparkSession, dsn: str, directory: Path) -> None:
        self._spark = spark
        self._dsn = dsn
        self._directory = directory

    async def run(self, schema: str) -> None:
        """Read what there is, by this schema."""
        options = {"database": self._dsn, "stream": "orders", "partitions": "1", "dataSchema": schema}
        rows = self._spark.readStream.format("headrace").options(**options).load()
        writer = rows.select("key", "data").writeStream.format("headrace").options(database=self._dsn, stream="copies")
        query = writer.option("checkpointLocation", str(self._directory)).trigger(availableNow=True).start()
        await asyncio.to_thread(query.awaitTermination)


@pytest.mark.long
async def test_a_query_reads_fields_that_producers_have_added_once_its_schema_names_them(
    spark: SparkSession, database: store.Database, dsn: str, tmp_path: Path
) -> None:
    query = Query(spark, dsn, tmp_path / "checkpoint")
    await fill(database)
    await store.create_stream(database, "copies")
    await publish(database, "a", id=1)
    await publish(database, "a", id=2, color="red")
    await query.run("id bigint")
    await publish(database, "a", id=3, color="red")
    await publish(database, "a", id=4)
    await query.run("id bigint, color string")
    rows = await database.fetch("select data::text from headrace_streams.copies order by seq")
    assert [json.loads(row[0]) for row in rows] == [
        {"id": 1}, {"id": 2}, {"id": 3, "color": "red"}, {"id": 4, "color": None},
    ]  # fmt: skip


async def test_a_query_with_a_variant_reads_fields_that_producers_add_as_they_come(
    spark: SparkSession, database: store.Database, dsn: str, tmp_path: Path
) -> None:
    await fill(database, '{"id": 1}')
    rows = spark.readStream.format("headrace").schema("seq bigint, data variant")
    colors = rows.options(database=dsn, stream="orders", partitions="1").load()
    found: list[tuple[int, str | None]] = []

    def keep(batch: DataFrame, _: int) -> None:
        found.extend(tuple(row) for row in batch.selectExpr("seq", "variant_get(data, '$.color', 'string')").collect())

    query = colors.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path)).start()
    try:
        await asyncio.to_thread(query.processAllAvailable)
        await publish(database, "a", id=2, color="red")
        await asyncio.to_thread(query.processAllAvailable)
    finally:
        await asyncio.to_thread(query.stop)
    assert found == [(1, None), (2, "red")]
