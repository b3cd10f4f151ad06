"""A service whose Spark handler uses what modules of data engineers have: functions of `udf` and `pandas_udf` in the
module, a broadcast variable and a broadcast table that are made once, and windows. Another handler writes its results
into a table.

The test copies this file beside its driver, which ships it to the executors.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import AsyncIterator, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql
from pyspark.sql.types import LongType

from headrace import App, Batch, Message, Transaction
from headrace_spark import spark_consumer
from headrace_spark.handlers import results

KEYS = 20
SETTINGS: dict[str, Any] = {
    "max_deliver": int(os.environ.get("MAX_DELIVER", "1")),
    "ack_wait": "10s",
    "backoff": 0.0,
}

# With few, executors stage the results.
results.COLLECTED_ROWS = int(os.environ.get("COLLECTED_ROWS", results.COLLECTED_ROWS))
app = App(streams=["orders"])


def doubled(number):  # without hints, since `udf` warns of those that are not of pandas or Arrow
    """Takes a moment, so that something may happen meanwhile."""
    time.sleep(0.005)
    return 2 * number


def negative(numbers: pd.Series) -> pd.Series:
    return -numbers


twice = sql.udf(doubled, LongType())  # it keeps an object of the session that was there at its first use
minus = sql.pandas_udf(negative, LongType())


def price_of(key: str) -> int:
    return 7 * int(key[1:])


def name_of(key: str) -> str:
    return f"the name of {key}"


@cache
def priced(spark: SparkSession) -> Any:
    """A function with a broadcast variable."""
    prices = spark.sparkContext.broadcast({key: price_of(key) for key in map("k{}".format, range(KEYS))})
    return sql.udf(lambda key: prices.value[key], LongType())


@cache
def names(spark: SparkSession) -> DataFrame:
    """A small table that executors hold."""
    rows = [(key, name_of(key)) for key in map("k{}".format, range(KEYS))]
    return spark.createDataFrame(rows, "key string, name string").cache()


@spark_consumer(app, "orders", schema="n bigint", publishes="copies", max_rows=2 * KEYS, max_wait="0.2s", **SETTINGS)
def copied(df: DataFrame, batch: Batch) -> DataFrame:
    """One row for each message. Its place and total are those in its batch."""
    report_counted(batch)
    spark, number = df.sparkSession, sql.col("data.n")
    earlier = Window.partitionBy("key").orderBy("seq")
    columns: dict[str, Column] = {
        "n": number,
        "twice": twice(number),
        "minus": minus(number),
        "price": priced(spark)("key"),
        "place": sql.row_number().over(earlier),
        "total": sql.sum(number).over(earlier),
    }
    rows = df.select("key", "seq", *(column.alias(name) for name, column in columns.items()))
    return rows.join(sql.broadcast(names(spark)), "key").orderBy("key", "seq")


@app.consumer("copies", transactional=True, **SETTINGS)
async def entered(row: dict[str, Any], message: Message, tx: Transaction) -> None:
    report_counted([message])
    await tx.execute("insert into results values ($1, $2)", message.key, row["n"])


@app.lifespan
async def stacks_on_request() -> AsyncIterator[None]:
    """A driver that does not end says where it waits."""
    faulthandler.register(signal.SIGUSR1)
    yield


def report_counted(messages: Iterable[Message]) -> None:
    """Note the messages of which an attempt was counted although no process had died with them."""
    for message in messages:
        if message.attempt - 1 > message.crashes:
            with Path("counted").open("a") as file:
                print(message, message.crashes, file=file)
