"""The example for Spark Declarative Pipelines: a stream is the source of a table and of views, and another one is a
sink. Each run takes what is new, once.

Each run starts three JVMs, which is why this is part of the torture.

A cluster is reached through a Connect server. Its Python has Headrace installed, since Spark shows a streaming source
nothing that was sent.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from headrace import store
from headrace_spark.session.java import find
from tests.spark.cluster import Cluster
from tests.spark.filling import read
from tests.spark.processes import PATIENCE, QUICK, environment

pytestmark = pytest.mark.asyncio

EXAMPLE = Path(__file__).parents[2] / "examples/spark_declarative"
CATALOG = {"spark.sql.catalogImplementation": "hive"}


@pytest.mark.torture
async def test_each_run_takes_what_is_new_into_tables_and_the_other_stream(
    dsn: str, database: store.Database, tmp_path: Path
) -> None:
    words = [word for pair in CATALOG.items() for word in ("--conf", "=".join(pair))]
    await runs(dsn, database, tmp_path, tmp_path / "spark-warehouse", *words)


@pytest.mark.torture
async def test_it_runs_on_a_cluster(cluster: Cluster, dsn: str, database: store.Database, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    metastore = f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true"
    places = {"spark.sql.warehouse.dir": str(tables), "spark.hadoop.javax.jdo.option.ConnectionURL": metastore}
    remote = cluster.start_connect(sys.executable, CATALOG | places)
    try:
        await runs(dsn, database, tmp_path, tables, "--remote", remote)
    finally:
        cluster.kill("connect")


async def runs(dsn: str, database: store.Database, directory: Path, tables: Path, *words: str) -> None:
    """Publish messages before each of two runs."""
    shutil.copytree(EXAMPLE, directory / "pipeline")
    spec = directory / "pipeline/spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/headrace-orders-pipeline", f"file://{directory}/storage"))
    await store.create_stream(database, "orders")
    await store.create_stream(database, "paid")
    orders: list[dict[str, Any]] = []
    for statuses in (["paid", "new"], ["paid"]):
        for status in statuses:
            number = len(orders)
            text = f'{{"id": {number}, "region": "eu", "status": "{status}", "total": "10.50"}}'
            await store.publish(database, "orders", f"orders.{number}", text)
            order = {"id": number, "region": "eu", "status": status, "total": Decimal("10.50")}
            orders.append({"key": f"orders.{number}", "seq": number + 1} | order)
        ended = run(spec, dsn, *words)
        assert ended.returncode == 0, ended.stdout
        assert rows(tables / "orders", "seq") == orders
        total = sum(order["total"] for order in orders)
        assert rows(tables / "orders_by_region") == [{"region": "eu", "orders": len(orders), "total": total}]
    assert rows(tables / "orders_by_status", "status") == [
        {"status": "new", "count": 1},
        {"status": "paid", "count": 2},
    ]
    paid = [(key, data) for _, key, data in await read(database, "paid")]
    assert paid == [("orders.0", '{"id":0,"total":"10.50"}'), ("orders.2", '{"id":2,"total":"10.50"}')]


def rows(table: Path, *order: str) -> list[dict[str, Any]]:
    """Return the rows of all files of a table, in the order of these columns."""
    found = pyarrow.parquet.read_table(table)
    return found.sort_by([(name, "ascending") for name in order or found.column_names[:1]]).to_pylist()  # type: ignore[no-any-return]


def run(spec: Path, dsn: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "spark-pipelines"
    variables = environment(
        HEADRACE_DATABASE=dsn, PYSPARK_PYTHON=sys.executable, JAVA_HOME=str(find().home), SPARK_SUBMIT_OPTS=QUICK
    )
    return subprocess.run(
        [str(program), "run", *words, "--spec", str(spec)], cwd=spec.parent.parent, env=variables,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
