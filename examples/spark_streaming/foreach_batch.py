"""Publish the rows of each micro-batch to one stream and their sums to another, each once through any restarts.

    headrace spark run foreach_batch.py:publish -- /var/lib/shop/checkpoints/regions

`orders` is read, and the streams `paid` and `regions` are written. All three exist.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

ORDER = "id bigint, region string, status string, total decimal(12, 2)"


def publish(spark: SparkSession, checkpoint: str, max_rows: str = "10000", *, database: str) -> StreamingQuery:
    """Start the query. It ends when it has read what is there.

    Args:
        checkpoint: where the query keeps its position.
        max_rows: the maximum number of messages in a micro-batch.
    """
    options = {"database": database, "stream": "orders", "dataSchema": ORDER, "maxRows": max_rows}
    orders = spark.readStream.format("headrace").options(**options).load()

    def publish_batch(batch: DataFrame, number: int) -> None:
        """Both writes have an id, so a batch that is repeated after a crash publishes what is missing only."""
        paid = batch.where("data.status = 'paid'")
        sums = paid.groupBy("data.region").agg(sql.count("*").alias("orders"), sql.sum("data.total").alias("total"))
        results = {
            "paid": paid.orderBy("seq").select("key", "data"),
            "regions": sums.withColumn("key", sql.concat(sql.lit("regions."), "region")),
        }
        for stream, rows in results.items():
            write = rows.write.format("headrace").mode("append")
            write.options(database=database, stream=stream, writeId=f"{stream}-{number}").save()

    query = orders.writeStream.foreachBatch(publish_batch).option("checkpointLocation", checkpoint)
    return query.trigger(availableNow=True).start()
