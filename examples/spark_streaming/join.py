"""Join two streams: publish each order with its payment, which comes within an hour.

    headrace spark run join.py:publish -- /var/lib/shop/checkpoints/settled

`orders` and `payments` are read, and the stream `settled` is written. All three exist.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

ORDER = "id bigint, region string, status string, total decimal(12, 2)"
PAYMENT = "order bigint, amount decimal(12, 2)"


def publish(spark: SparkSession, checkpoint: str, max_rows: str = "10000", *, database: str) -> StreamingQuery:
    """Start the query. It ends when it has read what is there.

    Args:
        checkpoint: where the query keeps its positions and the rows that may still have a partner.
        max_rows: the maximum number of messages of each stream in a micro-batch.
    """

    def read(stream: str, schema: str, time: str) -> DataFrame:
        options = {"database": database, "stream": stream, "dataSchema": schema, "maxRows": max_rows}
        messages = spark.readStream.format("headrace").options(**options).load()
        # Rows that are older than the newest one by more than this are dropped from the state.
        return (
            messages.withColumnRenamed("created_at", time).withWatermark(time, "1 hour").select("key", time, "data.*")
        )

    orders = read("orders", ORDER, "ordered_at")
    payments = read("payments", PAYMENT, "paid_at").drop("key")
    partners = "id = order and paid_at between ordered_at and ordered_at + interval 1 hour"
    settled = orders.join(payments, sql.expr(partners)).select("key", "id", "total", "amount")
    query = settled.writeStream.format("headrace").options(database=database, stream="settled")
    return query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
