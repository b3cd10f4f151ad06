"""Publish the running total of each key, message by message, with the state of a key in the checkpoint (transformWithState).

    headrace spark run running_totals.py:publish -- /var/lib/shop/checkpoints/running

`orders` is read, and the stream `running` is written. Both exist.
"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

ORDER = "id bigint, region string, status string, total decimal(12, 2)"
STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class RunningTotal(StatefulProcessor):
    """Adds up the orders of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sum = handle.getValueState("sum", "orders bigint, total decimal(12, 2)")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        orders, total = self._sum.get() or (0, Decimal(0))
        for row in sorted(rows, key=lambda row: row.seq):  # Spark keeps no order through its shuffle
            orders, total = orders + 1, total + row.total
            yield Row(key=key[0], orders=orders, total=total)
        self._sum.update((orders, total))

    def close(self) -> None:
        pass


def publish(spark: SparkSession, checkpoint: str, max_rows: str = "10000", *, database: str) -> StreamingQuery:
    """Start the query. It ends when it has read what is there.

    Args:
        checkpoint: where the query keeps its position and the state of all keys.
        max_rows: the maximum number of messages in a micro-batch.
    """
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STORE)
    options = {"database": database, "stream": "orders", "dataSchema": ORDER, "maxRows": max_rows}
    orders = spark.readStream.format("headrace").options(**options).load().select("key", "seq", "data.total")
    totals = orders.groupBy("key").transformWithState(
        RunningTotal(), "key string, orders bigint, total decimal(12, 2)", outputMode="Append", timeMode="None"
    )
    query = totals.writeStream.format("headrace").options(database=database, stream="running")
    return query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
