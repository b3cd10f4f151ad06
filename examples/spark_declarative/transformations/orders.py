"""What was paid, of the stream `orders`, goes to the stream `paid`.

`HEADRACE_DATABASE` says where the streams are; both exist. Each run takes what is new. Tables and materialized views may be fed from a stream in the
same way; they need a catalog that lasts, such as a Hive metastore, and so they are left out here.
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


@dp.temporary_view
def orders() -> DataFrame:
    messages = spark.readStream.format("headrace").options(database=DATABASE, stream="orders").load()
    return messages.select("key", sql.from_json("data", ORDER).alias("data")).select("key", "data.*")


@dp.append_flow(target="paid")
def paid() -> DataFrame:
    return spark.readStream.table("orders").where("status = 'paid'").select("key", "id", "total")
