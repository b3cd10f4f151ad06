"""The example for Spark Declarative Pipelines: each run reads what is new in one stream and publishes it to another.

The client of PySpark 4.3.0 can't read what the server reports about a Python data source after a run.
So `spark-pipelines` ends with an error although its run is completed, and the test checks what the run
did. Each run starts three JVMs, which is why this isn't in the usual run of the tests.

A cluster is reached through a Connect server. Its Python has Headrace installed, since Spark shows a streaming source nothing
that was sent.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import store
from headrace_spark.session.java import find
from tests.spark.cluster import Cluster
from tests.spark.filling import read
from tests.spark.processes import PATIENCE, environment

pytestmark = [pytest.mark.asyncio, pytest.mark.torture]

EXAMPLE = Path(__file__).parents[2] / "examples/spark_declarative"


async def test_each_run_takes_what_is_new_into_the_other_stream(
    dsn: str, database: store.Database, tmp_path: Path
) -> None:
    await runs(dsn, database, tmp_path)


async def test_it_runs_on_a_cluster(cluster: Cluster, dsn: str, database: store.Database, tmp_path: Path) -> None:
    remote = cluster.start_connect(sys.executable)
    try:
        await runs(dsn, database, tmp_path, "--remote", remote)
    finally:
        cluster.kill("connect")


async def runs(dsn: str, database: store.Database, directory: Path, *words: str) -> None:
    """Publish three messages, each followed by a run."""
    shutil.copytree(EXAMPLE, directory / "pipeline")
    spec = directory / "pipeline/spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/headrace-orders-pipeline", f"file://{directory}/storage"))
    await store.create_stream(database, "orders")
    await store.create_stream(database, "paid")
    for number, status in enumerate(["paid", "new", "paid"]):
        text = f'{{"id": {number}, "region": "eu", "status": "{status}", "total": "10.50"}}'
        await store.publish(database, "orders", f"orders.{number}", text)
        text = run(spec, dsn, *words)
        assert "Run is COMPLETED" in text, text
    paid = [(key, data) for _, key, data in await read(database, "paid")]
    assert paid == [("orders.0", '{"id":0,"total":"10.50"}'), ("orders.2", '{"id":2,"total":"10.50"}')]


def run(spec: Path, dsn: str, *words: str) -> str:
    program = Path(sys.executable).parent / "spark-pipelines"
    variables = environment(HEADRACE_DATABASE=dsn, PYSPARK_PYTHON=sys.executable, JAVA_HOME=str(find().home))
    done = subprocess.run(
        [str(program), "run", *words, "--spec", str(spec)], cwd=spec.parent.parent, env=variables,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    return done.stdout
