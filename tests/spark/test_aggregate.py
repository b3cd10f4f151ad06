"""The pipeline `aggregate`: windows keep their state between runs, results are published once, and late
events are counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest

from headrace import store
from headrace.model.errors import ConfigurationError, HeadraceError, InvalidInput, UnknownStream
from headrace_spark.pipelines.aggregate import _key, aggregate
from headrace_spark.pipelines.running import Report
from tests.spark.filling import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.asyncio

HOURLY = {
    "window": "1h", "by": ["data.customer"], "time": "data.at", "schema": "customer string, at timestamp, total decimal(12, 2)",
    "aggregates": {"orders": "count(*)", "total": "sum(data.total)"}, "watermark": "30m",
}  # fmt: skip


@pytest.fixture
def one_task(spark: SparkSession) -> Iterator[None]:
    """Keep state in one partition. Two take twice as long and prove no more."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", str(before))


@pytest.fixture
def run(spark: SparkSession, dsn: str, tmp_path: Path, one_task: None) -> Any:
    """Aggregate `orders` into `hourly`, outside of the event loop."""

    async def run(**options: Any) -> Report:
        settings: dict[str, Any] = {**HOURLY, "checkpoint": tmp_path / "aggregate", **options}
        return await anyio.to_thread.run_sync(
            lambda: aggregate(
                "orders", settings.pop("into", "hourly"), spark=spark, database=dsn, partitions=1, **settings
            )
        )

    return run


async def publish(database: store.Database, *orders: tuple[str, str, str]) -> None:
    for customer, at, total in orders:
        text = json.dumps({"customer": customer, "at": f"2030-01-01T{at}:00Z", "total": total})
        await store.publish(database, "orders", f"orders.{customer}", text)


async def results(database: store.Database) -> list[tuple[str, int, str]]:
    found = [(key, json.loads(data)) for _, key, data in await read(database, "hourly")]
    return [(key, data["orders"], data["total"]) for key, data in found]


@pytest.mark.long
async def test_windows_go_on_from_run_to_run_and_what_comes_too_late_is_counted(
    run: Any, database: store.Database
) -> None:
    await store.create_stream(database, "orders")
    await store.create_stream(database, "hourly")
    await publish(database, ("ann", "10:05", "1.50"), ("bob", "10:59", "2.00"), ("ann", "11:01", "4.00"))
    report = await run()
    assert (report.rows, report.late) == (3, 0)
    assert sorted(await results(database)) == [
        ("ann.2030-01-01T10:00:00Z", 1, "1.50"), ("ann.2030-01-01T11:00:00Z", 1, "4.00"), ("bob.2030-01-01T10:00:00Z", 1, "2.00"),
    ]  # fmt: skip
    data = json.loads((await read(database, "hourly"))[0][2])
    assert data.keys() == {"window_start", "window_end", "customer", "orders", "total"}
    assert data["window_start"].startswith("2030-01-01T1")
    assert data["window_start"].endswith("Z")

    await publish(database, ("ann", "10:40", "3.00"), ("ann", "12:10", "1.00"))
    await run()
    assert ("ann.2030-01-01T10:00:00Z", 2, "4.50") in await results(database)

    before = await results(database)
    await publish(database, ("bob", "10:30", "9.00"), ("bob", "12:20", "1.00"))
    report = await run()
    assert report.late == 1, "the watermark, 11:40, has passed the end of that window"
    assert (await results(database))[len(before) :] == [("bob.2030-01-01T12:00:00Z", 1, "1.00")]


@pytest.mark.long
async def test_with_append_a_window_is_published_once_when_it_is_closed(run: Any, database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await store.create_stream(database, "hourly")
    await publish(database, ("a.b", "10:05", "1.50"), ("a.b", "10:50", "1.00"), ("a.b", "13:00", "4.00"))
    await run(mode="append", slide="30m", key="by.{window_end}.{customer}")
    await publish(
        database, ("a.b", "13:01", "1.00")
    )  # what the watermark has closed is published with the next batch, at the latest
    await run(mode="append", slide="30m", key="by.{window_end}.{customer}")
    assert sorted(await results(database)) == [
        ("by.2030-01-01T10:30:00Z.a_b", 1, "1.50"), ("by.2030-01-01T11:00:00Z.a_b", 2, "2.50"), ("by.2030-01-01T11:30:00Z.a_b", 1, "1.00"),
    ]  # fmt: skip


@pytest.mark.long
async def test_what_cannot_be_aggregated_is_reported_in_a_sentence(
    run: Any, database: store.Database, tmp_path: Path
) -> None:
    with pytest.raises(UnknownStream, match="orders"):
        await run()
    await store.create_stream(database, "orders")
    with pytest.raises(UnknownStream, match="hourly"):
        await run()
    await store.create_stream(database, "hourly")
    await publish(database, ("ann", "10:05", "1.50"))
    wrong: list[tuple[dict[str, Any], type[HeadraceError], str]] = [
        ({"aggregates": {}}, ConfigurationError, "aggregates is empty"),
        ({"aggregates": {"a": "sum(data.nothing)"}}, HeadraceError, "nothing"),
        ({"aggregates": {"customer": "count(*)"}}, ConfigurationError, "named 'customer'"),
        ({"schema": "customer strink"}, HeadraceError, "(?i)strink"),
        ({"key": "{total}"}, ConfigurationError, r"the unknown field \{total\}\. The fields are \{window_start\}"),
        ({"mode": "complete"}, ConfigurationError, "It must be 'update' or 'append'"),
        ({"window": "0s"}, ConfigurationError, "greater than zero"),
        ({"slide": "2h"}, ConfigurationError, "is longer than window"),
        ({"into": "orders"}, ConfigurationError, "into itself"),
    ]
    for options, error, sentence in wrong:
        with pytest.raises(error, match=sentence):
            await run(**options)
    assert not (tmp_path / "aggregate").exists()
    await run()
    with pytest.raises(InvalidInput, match="is of another aggregate"):
        await run(window="2h")


async def test_a_value_is_one_token_of_a_result_s_key_and_a_message_s_key_stays_as_it_is(spark: SparkSession) -> None:
    moments = "struct(timestamp'2030-01-01 10:00:00Z' as start, timestamp'2030-01-01 11:00:00Z' as end) as window"
    rows = spark.range(1).selectExpr(moments, "'a.b' as key", "'x y..z*' as customer", "cast(null as int) as size")
    types = {field.name: field.dataType for field in rows.schema if field.name != "window"}
    made = [
        _key("{key}.{customer}.{size}.{window_end}", types, {"key"}),
        _key("{key}", types, set()),  # a field of the data with that name
    ]
    assert list(rows.select(*made).first() or ()) == ["a.b.x_y__z_._.2030-01-01T11:00:00Z", "a_b"]


async def test_instants_in_keys_do_not_go_through_local_time(spark: SparkSession) -> None:
    """In the last hour of summer time and the first of winter time, clocks in Berlin show the same."""
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        rows = spark.sql(
            "select struct(at as start, at + interval 1 hour as end) as window, at, named_struct('at', at) as nested"
            " from values (timestamp'2026-10-25 00:30:00Z'), (timestamp'2026-10-25 01:30:00Z') as instants (at)"
        )
        types = {field.name: field.dataType for field in rows.schema if field.name != "window"}
        made = rows.select(*(_key(f"{{{name}}}", types, set()) for name in ("window_start", "at", "nested"))).collect()
        assert [list(row) for row in made] == [
            [f"2026-10-25T{time}Z", f"2026-10-25T{time}_000000Z", f'{{"at":"2026-10-25T{time}_000000Z"}}']
            for time in ("00:30:00", "01:30:00")
        ]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
