"""Spark on a standalone cluster: executors have nothing of Headrace, nor of the user, but what is shipped to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import store
from tests.spark.cluster import Cluster
from tests.spark.filling import read
from tests.spark.on_cluster import drive, write_service

pytestmark = pytest.mark.asyncio


async def test_handlers_sources_and_writers_work_with_what_is_shipped_and_lose_nothing_when_executors_are_killed(
    cluster: Cluster, database: store.Database, dsn: str, tmp_path: Path
) -> None:
    """A task of the writer kills its executor after its last row, and one of the handler its Python."""
    write_service(tmp_path)
    await store.create_stream(database, "orders")
    await store.create_stream(database, "copies")
    await database.fetch(
        """select headrace.publish('orders', 'orders.' || g % 7, json_build_object('n', g, 'mark', $1::text))
           from generate_series(1, 20) as g""",
        f"{tmp_path}/python",
    )
    found = drive(cluster, "everyday", tmp_path, dsn, str(tmp_path), HEADRACE_SPARK_SHIP=".", HEADRACE_DATABASE=dsn)
    report = found["report"]
    assert report["problem"] is None
    assert {worker["executable"] for worker in report["workers"]} == {str(cluster.python)}
    assert {worker["headrace"] for worker in report["workers"]} == {report["packages"]["headrace"]}
    assert {"service", "prices", "headrace", "headrace_spark", "msgspec"} <= set(report["shipped"])
    assert found["seqs"] == list(range(1, 21))
    assert (tmp_path / "executor").exists()
    assert (tmp_path / "python").exists()
    orders, copies = await read(database, "orders"), await read(database, "copies")
    assert sorted((key, data) for _, key, data in copies) == sorted((key, data) for _, key, data in orders)
    sums = await read(database, "sums")
    assert len(sums) == len(orders)
    totals = {key: json.loads(data)["total"] for _, key, data in sums}
    assert totals == {f"orders.{r}": 100 * sum(n for n in range(1, 21) if n % 7 == r) for r in range(7)}
