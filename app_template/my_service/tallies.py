"""Ordered items by region, counted by Spark. Off by default.

`pip install -e '.[spark]'` and MY_SERVICE_SPARK=true enable it. A Spark handler gets the waiting
messages of the stream as one DataFrame, up to 100,000 at a time. It is for work that is too heavy
for one message at a time. It runs on all cores of this machine, or on the cluster that
HEADRACE_SPARK_MASTER names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from headrace import App

from .settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Ordered(msgspec.Struct):
    """The needed fields of an order, in the column `data` of the DataFrame. Invalid messages become dead letters."""

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
        """Count how often each item was ordered, per region. Each row is published to `tallies` with the acks."""
        items = df.selectExpr("split(key, '[.]')[1] as region", "explode(data.items) as item")
        counted = items.groupBy("region", "item").count()
        return counted.selectExpr("concat('tallies.', region) as key", "item", "count")
