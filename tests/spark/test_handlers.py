"""Spark handlers on a real session: their input, the handling of their results, and their declaration."""

from __future__ import annotations

import logging
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest

from headrace import App, Batch
from headrace.model.errors import ConfigurationError
from headrace_spark import spark_consumer
from headrace_spark.handlers import jobs
from tests.runtime.running import Seen, consumer, dead_letters, eventually, running, work_off
from tests.support.logs import logged
from tests.telemetry.recorded import Recorded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.asyncio


class Order(msgspec.Struct):
    customer: str
    total: Decimal = Decimal(0)


async def published(app: App, stream: str) -> list[tuple[str, Any]]:
    rows = await app.database.fetch(
        f'select key, data::text, headers::text from headrace_streams."{stream}" order by seq'
    )
    return [(row[0], msgspec.json.decode(row[1])) for row in rows]


async def test_a_batch_comes_as_a_typed_dataframe_in_order_and_what_is_returned_is_published(
    spark: SparkSession, dsn: str
) -> None:
    app = App(dsn, streams=["orders"])
    seen: list[Any] = []

    @spark_consumer(app, "orders", schema=Order, publishes="totals", max_wait="0.2s")
    def totals(df: DataFrame, batch: Batch) -> DataFrame:
        from pyspark.sql import functions as sql

        seen.append(
            (df.columns, [(row.key, row.seq, row.created_at, row.data.asDict()) for row in df.collect()], len(batch))
        )
        return (
            df.groupBy("key").agg(sql.sum("data.total").alias("total"), sql.count("*").alias("orders")).orderBy("key")
        )

    async with app:
        await app.publish_many("orders", [(key, {"customer": key, "total": f"{n}.50"}) for n, key in enumerate("baab")])
        await app.publish("orders", "c", {"customer": "c"}, headers={"trace": 1})
    async with running(app):
        await app.idle()
        ((columns, rows, size),) = seen
        assert (columns, size) == (["key", "seq", "headers", "created_at", "data"], 5)
        assert [(key, seq) for key, seq, _, _ in rows] == [("a", 2), ("a", 3), ("b", 1), ("b", 4), ("c", 5)]
        assert all(isinstance(created_at, datetime) for _, _, created_at, _ in rows)
        assert rows[0][3] == {"customer": "a", "total": Decimal("1.5")}
        nice = [(key, (Decimal(data["total"]), data["orders"])) for key, data in await published(app, "totals")]
        assert nice == [("a", (4, 2)), ("b", (4, 2)), ("c", (0, 1))]
        assert (await consumer(app, "totals")).num_ack_pending == 0


async def test_bytes_bound_a_batch_and_rows_second(spark: SparkSession, dsn: str) -> None:
    app = App(dsn, streams=["orders"])
    sizes: list[int] = []

    @spark_consumer(app, "orders", max_bytes="50kB", max_rows=8, max_wait="0.2s")
    def ship(df: DataFrame, batch: Batch) -> None:
        sizes.append(len(batch))

    async with app:
        await app.publish_many("orders", [(f"large.{n}", "x" * 10_000) for n in range(10)])
        await app.publish_many("orders", [(f"small.{n}", n) for n in range(10)])
    async with running(app):
        await app.idle()
    assert sizes == [5, 5, 8, 2]


async def test_without_a_schema_the_payload_is_json_text_and_a_batch_can_be_passed_on(
    spark: SparkSession, dsn: str
) -> None:
    app = App(dsn, streams=["orders"])

    @spark_consumer(app, "orders", publishes="copies", max_wait="0.1s", name="copy")
    def copied(df: DataFrame) -> DataFrame:
        return df.where("get_json_object(data, '$.n') > 1")

    async with app:
        for n in (1, 2):
            await app.publish("orders", "a", {"n": n, "text": "ü"}, headers={"n": n})
    async with running(app):
        await app.idle()
        rows = await app.database.fetch("select key, data::text, headers::text from headrace_streams.copies")
        assert [(row[0], msgspec.json.decode(row[1]), msgspec.json.decode(row[2])) for row in rows] == [
            ("a", {"n": 2, "text": "ü"}, {"n": 2})
        ]


async def test_payloads_that_do_not_fit_are_dead_letters_alone_and_what_is_behind_them_comes_later(
    spark: SparkSession, dsn: str
) -> None:
    app = App(dsn, streams=["orders"])
    calls: list[list[int]] = []

    @spark_consumer(app, "orders", schema="n tinyint NOT NULL", publishes="doubles", max_wait="0.1s", max_rows=10)
    def doubles(df: DataFrame) -> DataFrame:
        calls.append([row.data.n for row in df.collect()])
        return df.selectExpr("key", "data.n * 2 as n")

    async with app:
        await app.publish_many(
            "orders", [("a", {"n": 1}), ("b", {"n": 1000}), ("c", {"n": 3}), ("b", {"n": 4}), ("d", {"n": "x"})]
        )
    async with running(app):
        await app.idle()
        assert sorted(calls) == [[1, 3], [4]]
        assert await published(app, "doubles") == [("a", {"n": 2}), ("c", {"n": 6}), ("b", {"n": 8})]
        letters = await dead_letters(app, "doubles")
        assert [(letter.seq, letter.reason) for letter in letters] == [(2, "invalid"), (5, "invalid")]
        assert letters[0].error == "The payload does not fit: Expected `int` <= 127 - at `$.n`"


async def test_a_batch_of_which_nothing_fits_needs_no_call(spark: SparkSession, dsn: str) -> None:
    app = App(dsn, streams=["orders"])
    calls: list[int] = []

    @spark_consumer(app, "orders", schema=Order, max_wait="0.05s")
    def ship(df: DataFrame) -> None:
        calls.append(df.count())

    await work_off(app, ("a", 1))
    assert calls == []
    async with app:
        assert [letter.reason for letter in await dead_letters(app, "ship")] == ["invalid"]


async def test_a_running_job_shows_its_stages_and_tasks_in_the_log_and_in_the_statistics(
    spark: SparkSession, dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PROGRESS_INTERVAL", 0.02)
    caplog.set_level(logging.INFO, "headrace.spark")
    recorded = Recorded(traces=False)
    app = App(dsn, streams=["orders"], telemetry=recorded.telemetry)
    counted, enough = anyio.Event(), anyio.Event()

    @spark_consumer(app, "orders", max_wait="0.05s", log_every="0.02s")
    def ship(df: DataFrame) -> None:
        df.groupBy("key").count().collect()  # a job that is over and still belongs to the batch
        anyio.from_thread.run_sync(counted.set)
        anyio.from_thread.run(enough.wait)

    async with running(app):
        assert app.statistics()["spark"] == {"orders:ship": {"job": None, "started": None, **_ZERO}}
        await app.publish_many("orders", [("a", 1), ("b", 2)])

        async def all_reported() -> bool:
            """Spark reports the end of a task a moment later."""
            at = app.statistics()["spark"]["orders:ship"]
            done = at["tasks"] == at["tasks_done"] and at["stages"] == at["stages_done"] == 2  # without the skipped one
            return done and bool(logged(caplog, "spark job running"))

        await counted.wait()
        await eventually(all_reported)
        found = app.statistics()["spark"]["orders:ship"]
        gauges = {name: recorded.points(f"headrace.spark.{name}") for name in ("tasks", "tasks.done", "rows")}
        enough.set()
        await app.idle()
        assert app.statistics()["spark"]["orders:ship"]["job"] is None
    assert (found["rows"], found["tasks"]) == (2, found["tasks_done"])
    assert {name: [point.value for point in points] for name, points in gauges.items()} == {
        "tasks": [found["tasks"]], "tasks.done": [found["tasks_done"]], "rows": [2],
    }  # fmt: skip
    assert gauges["rows"][0].attributes["messaging.consumer.group.name"] == "ship"
    assert found["job"].startswith("headrace-orders:ship-")
    [record, *_] = logged(caplog, "spark job running", consumer="orders:ship", messages=2)
    assert hasattr(record, "seconds")
    assert hasattr(record, "tasks_done")


_ZERO = {"rows": 0, "stages": 0, "stages_done": 0, "tasks": 0, "tasks_done": 0}


async def test_the_session_is_warm_before_anything_is_leased_and_a_wrong_schema_ends_the_start(
    spark: SparkSession, dsn: str
) -> None:
    app = App(dsn, streams=["orders"])
    seen = Seen()

    @spark_consumer(app, "orders", schema="n bigintt")
    def ship(df: DataFrame) -> None:
        seen.note(df)

    async with app:
        await app.publish("orders", "a", {"n": 1})
    with pytest.raises(ConfigurationError, match="can't be read as a DDL string"):
        async with app.running():
            pass
    assert seen.notes == []
    async with app:
        assert await app.database.fetchval("select count(*) from headrace_internal.leases") == 0


async def declared(function: Any = lambda df: None, **settings: Any) -> None:
    spark_consumer(App("postgres://nowhere"), "orders", name="x", **settings)(function)


@pytest.mark.parametrize(
    ("function", "settings", "reason"),
    [
        (lambda: None, {}, "wrong parameters. It takes a DataFrame"),
        (lambda a, b, c: None, {}, "wrong parameters. It takes a DataFrame"),
        (lambda df, *, other: None, {}, "wrong parameters. It takes a DataFrame"),
        (anyio.sleep, {}, "write a plain function"),
        (lambda df: None, {"max_rows": 0}, "max_rows=0 is invalid"),
        (lambda df: None, {"max_rows": 1_000_000}, "must be from 1 to 500,000"),
        (lambda df: None, {"max_results": -1}, "max_results=-1 is invalid"),
        (lambda df: None, {"max_wait": "2m"}, "must be from 0 to 60 seconds"),
        (lambda df: None, {"schema": int}, "has no fields"),
        (lambda df: None, {"max_ack_pending": 10}, "never fills"),
    ],
)
async def test_what_can_t_be_declared_is_reported_at_once(function: Any, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        await declared(function, **settings)
    with pytest.raises(ConfigurationError, match="must be the app"):
        spark_consumer("orders", "x")  # type: ignore[arg-type]
