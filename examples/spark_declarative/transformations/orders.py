"""The stream `orders`, typed and kept as a table; what was paid goes to the stream `paid`, and is summed up by region.

`HEADRACE_DATABASE` says where the streams are; both exist. Each run takes what is new.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from headrace_spark import register

DATABASE = os.environ["HEADRACE_DATABASE"]
ORDER = "id bigint, region string, status string, total decimal(12, 2)"

spark = SparkSession.active()
register(spark)

dp.create_sink("paid", "headrace", {"database": DATABASE, "stream": "paid"})


@dp.table(comment="Every order, as its message has it.")
def orders() -> DataFrame:
    messages = spark.readStream.format("headrace").options(database=DATABASE, stream="orders").load()
    return messages.select("key", "seq", "created_at", sql.from_json("data", ORDER).alias("data")).select(
        "key", "seq", "created_at", "data.*"
    )


@dp.append_flow(target="paid")
def paid() -> DataFrame:
    return spark.readStream.table("orders").where("status = 'paid'").select("key", "id", "total")


@dp.materialized_view(comment="What was sold in each region.")
def sales() -> DataFrame:
    return spark.read.table("orders").groupBy("region").agg(sql.sum("total").alias("total"))
