"""The stream `orders` as a table and two materialized views, and its paid orders in the stream `paid`.

`HEADRACE_DATABASE` says where the streams are. Both must exist. A run takes what is new into the table and the stream, and
computes the views again. `orders_by_region` reads the table, `orders_by_status` reads the stream itself.

Don't call `headrace_spark.register` here. Spark finds the data source by itself, and `spark-pipelines` of Spark 4.3.0 ends each
run with an error if a definition registers one.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

OPTIONS = {
    "database": os.environ["HEADRACE_DATABASE"],
    "stream": "orders",
    "dataSchema": "id bigint, region string, status string, total decimal(12, 2)",
}

spark = SparkSession.active()

dp.create_sink("paid", "headrace", {"database": OPTIONS["database"], "stream": "paid"})


@dp.temporary_view
def messages() -> DataFrame:
    return spark.readStream.format("headrace").options(**OPTIONS).load()


@dp.append_flow(target="paid")
def paid() -> DataFrame:
    return spark.readStream.table("messages").where("data.status = 'paid'").select("key", "data.id", "data.total")


@dp.table
def orders() -> DataFrame:
    return spark.readStream.table("messages").select("key", "seq", "data.*")


@dp.materialized_view
def orders_by_region() -> DataFrame:
    return (
        spark.read.table("orders")
        .groupBy("region")
        .agg(sql.count("*").alias("orders"), sql.sum("total").alias("total"))
    )


@dp.materialized_view
def orders_by_status() -> DataFrame:
    return spark.read.format("headrace").options(**OPTIONS).load().groupBy("data.status").count()
