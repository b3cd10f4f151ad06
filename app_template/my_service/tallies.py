"""What is ordered where, counted by Spark. It is off: `pip install -e '.[spark]'` and MY_SERVICE_SPARK=true switch it on.

A Spark handler gets what waits in the stream as one DataFrame, up to 100,000 messages at a time: for work that is too heavy to be
done message by message. It runs on all cores of this machine, or on the cluster that HEADRACE_SPARK_MASTER names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from headrace import App

from .settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Ordered(msgspec.Struct):
    """What is needed here of an order. In the DataFrame it is the column `data`; what doesn't fit goes to the dead letters."""

    items: list[str]


def declare(app: App, settings: Settings) -> None:
    """Add the handler to the app. Raises `SparkUnavailable` where headrace[spark] is not installed."""
    from headrace_spark import spark_consumer

    @spark_consumer(
        app,
        "orders",
        filter=f"orders.{settings.region}.>",
        schema=Ordered,
        publishes="tallies",
        max_wait=settings.tally_every,
    )
    def tally(df: DataFrame) -> DataFrame:
        """How often each item was ordered among these orders. Each row is a message of `tallies`, published together with the acks."""
        items = df.selectExpr("split(key, '[.]')[1] as region", "explode(data.items) as item")
        counted = items.groupBy("region", "item").count()
        return counted.selectExpr("concat('tallies.', region) as key", "item", "count")
