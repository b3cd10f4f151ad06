"""The git history of a real repository through a Spark handler: lines per file and month, compared with
plain Python.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest

from headrace import App, Batch
from headrace_spark import spark_consumer
from tests.runtime.running import running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.asyncio

RIVER = Path(__file__).parents[1] / "data" / "git-history" / "river.ndjson.gz"
ROWS = 2_000


class Change(msgspec.Struct):
    path: str
    time: int
    change: Literal["insert", "update", "delete"]
    added: int | None
    deleted: int | None


def history() -> list[tuple[str, Any]]:
    with gzip.open(RIVER, "rt") as lines:
        return [(one["key"], one["data"]) for one in map(json.loads, lines)]


def month(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m")


def by_plain_python(messages: list[tuple[str, Any]]) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Lines added, lines deleted and changes, of each file in each month."""
    added, deleted, changes = Counter[Any](), Counter[Any](), Counter[Any]()
    for _, data in messages:
        place = (data["path"], month(data["time"]))
        added[place] += data["added"] or 0
        deleted[place] += data["deleted"] or 0
        changes[place] += 1
    return {place: (added[place], deleted[place], changes[place]) for place in changes}


async def test_the_lines_of_each_file_in_each_month_are_what_plain_python_counts(spark: SparkSession, dsn: str) -> None:
    """Each batch publishes what it adds to a file and month. The sums are exact only if no batch was
    lost or published twice.
    """
    app = App(dsn, streams=["history"])
    batches: list[int] = []
    out_of_order: list[str] = []

    @spark_consumer(app, "history", schema=Change, publishes="lines", max_rows=ROWS, max_wait="1s")
    def lines(df: DataFrame, batch: Batch) -> DataFrame:
        from pyspark.sql import functions as sql

        batches.append(len(batch))
        places = [(row.key, row.seq) for row in df.select("key", "seq").collect()]
        out_of_order.extend(key for (key, seq), after in itertools.pairwise(places) if (key, seq) >= after)
        month = sql.date_format(sql.timestamp_seconds("data.time"), "yyyy-MM")
        return df.groupBy("key", "data.path", month.alias("month")).agg(
            sql.coalesce(sql.sum("data.added"), sql.lit(0)).alias("added"),
            sql.coalesce(sql.sum("data.deleted"), sql.lit(0)).alias("deleted"),
            sql.count("*").alias("changes"),
        )

    messages = history()
    async with app:
        await app.publish_many("history", messages)
    async with running(app):
        await app.idle()
        rows = await app.database.fetch("select key, data::text from headrace_streams.lines")
    assert sum(batches) == len(messages)
    assert len(batches) >= len(messages) // ROWS
    assert out_of_order == []
    sums: dict[tuple[str, str], tuple[int, int, int]] = {}
    keys = {}
    for row in rows:
        change = json.loads(row[1])
        keys[change["path"]] = row[0]
        before = sums.get((change["path"], change["month"]), (0, 0, 0))
        sums[change["path"], change["month"]] = (
            before[0] + change["added"],
            before[1] + change["deleted"],
            before[2] + change["changes"],
        )
    assert sums == by_plain_python(messages)
    assert keys == {data["path"]: key for key, data in messages}
