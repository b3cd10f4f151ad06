"""From change capture to Parquet to a query: what was sold in each region, by the changes of a table.

    headrace source postgres add --table public.orders      # as docs/capture.md has it
    headrace serve                                          # captures, until it is stopped
    headrace spark run examples/spark_archive.py:sales -- archive/orders

Each run archives what is new, and then asks all of the archive. DuckDB, pyarrow or pandas can ask it as well: the files are plain Parquet.
"""

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from headrace_spark import archive

CHANGE = "action string, record struct<id: bigint, region: string, status: string, total: decimal(12, 2)>"


def sales(spark: SparkSession, path: str, *, database: str) -> None:
    """Archive the stream `orders`, and print what was paid in each region."""
    report = archive("orders", path, spark=spark, database=database)
    print(f"{report.rows} changes were new")
    by_region(latest(spark.read.parquet(path))).show()


def latest(changes: DataFrame) -> DataFrame:
    """Each row of the table as its last change has left it."""
    change = sql.from_json("data", CHANGE)
    numbered = sql.row_number().over(Window.partitionBy("key").orderBy(sql.desc("seq")))
    rows = changes.select("key", "seq", change.alias("change")).withColumn("age", numbered)
    return rows.where("age = 1 and change.action in ('insert', 'update', 'read')").select("change.record.*")


def by_region(orders: DataFrame) -> DataFrame:
    """What was paid in each region."""
    paid = orders.where("status != 'new'")
    return paid.groupBy("region").agg(sql.count("*").alias("orders"), sql.sum("total").alias("total")).orderBy("region")
