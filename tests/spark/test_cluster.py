"""Spark on a standalone cluster: executors have nothing of Headrace, nor of the user, but what is shipped to them."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from headrace import store
from headrace_spark.session.probe import PACKAGES
from tests.spark.cluster import (
    ON_NODES,
    REGISTERED,
    Cluster,
    LocalCluster,
    another_python,
    python_of_nodes,
    write_program,
)
from tests.spark.filling import archived, fill, read
from tests.spark.on_cluster import drive, fails, write_replaying, write_service

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    "kind",
    [pytest.param("local-cluster", marks=pytest.mark.long), pytest.param("standalone", marks=pytest.mark.torture)],
)
async def test_handlers_sources_and_writers_work_with_what_is_shipped_and_lose_nothing_when_executors_are_killed(
    kind: str, request: pytest.FixtureRequest, database: store.Database, dsn: str, tmp_path: Path
) -> None:
    """A task of the writer kills its executor after its last row, and one of the handler its Python."""
    cluster: Cluster | LocalCluster = (
        request.getfixturevalue("cluster") if kind == "standalone" else LocalCluster(tmp_path / "nodes")
    )
    drive_from = tmp_path / "driver"
    drive_from.mkdir()
    write_service(drive_from)
    await store.create_stream(database, "orders")
    await store.create_stream(database, "copies")
    await database.fetch(
        """select headrace.publish('orders', 'orders.' || g % 7, json_build_object('n', g, 'mark', $1::text))
           from generate_series(1, 20) as g""",
        f"{tmp_path}/python",
    )
    found = drive(cluster, "everyday", drive_from, dsn, str(tmp_path), HEADRACE_SPARK_SHIP=".", HEADRACE_DATABASE=dsn)
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


@pytest.mark.torture
async def test_tasks_that_speculation_runs_twice_publish_each_row_once(
    cluster: Cluster, database: store.Database, dsn: str, tmp_path: Path
) -> None:
    """Spark starts the second attempt on another host than the first."""
    await store.create_stream(database, "orders")
    cluster.start_worker("elsewhere", host="127.0.0.2")
    try:
        cluster.wait("elsewhere", REGISTERED)
        drive(
            cluster, "speculating", tmp_path, dsn, str(tmp_path), "4", HEADRACE_SPARK_SHIP="headrace",
            **{"spark.speculation": "true", "spark.speculation.interval": "50ms", "spark.speculation.quantile": "0.5",
               "spark.speculation.multiplier": "1.1", "spark.speculation.minTaskRuntime": "50ms",
               "spark.task.maxFailures": "1"},
        )  # fmt: skip
    finally:
        cluster.kill("elsewhere")
    assert set(map(str, range(4))) <= set(os.listdir(tmp_path)), "each time a task ran twice"
    assert sorted(int(data) for _, _, data in await read(database, "orders")) == list(range(400))


@pytest.mark.long
async def test_every_pipeline_works_with_what_is_shipped(
    cluster: Cluster, database: store.Database, dsn: str, tmp_path: Path
) -> None:
    write_replaying(tmp_path)
    await fill(database, "orders", 40, days=2)
    for stream in ("replayed", "filled", "counted"):
        await store.create_stream(database, stream)
    reports = drive(cluster, "pipelines", tmp_path, dsn, str(tmp_path), HEADRACE_SPARK_SHIP="replaying,names.py")
    assert reports == [
        ["archive", 40],
        ["archive", 0],
        ["replay", 40],
        ["replay", 40],
        ["backfill", 40],
        ["aggregate", 40],
    ]
    assert archived(tmp_path / "archive")["seq"].to_pylist() == list(range(1, 41))
    orders = await read(database, "orders")
    renamed = [(key.replace("orders", "renamed"), data) for _, key, data in orders]
    assert sorted((key, data) for _, key, data in await read(database, "replayed")) == sorted(renamed * 2)
    assert len({key for _, key, _ in await read(database, "filled")}) == 40
    counted = [json.loads(data)["n"] for _, _, data in await read(database, "counted")]
    assert (len(counted), sum(counted)) == (14, 40), "seven keys on two days"


@pytest.mark.torture
async def test_what_does_not_fit_is_one_sentence_of_the_check(cluster: Cluster, tmp_path: Path) -> None:
    """Nothing is installed there, and its Python is not on this machine."""
    code, said = fails(cluster, tmp_path)
    assert (code, said.count("\n")) == (69, 0), said
    assert f"The Python on an executor, {cluster.python}, lacks headrace." in said
    assert "Ship it (--ship headrace, or HEADRACE_SPARK_SHIP=headrace), install headrace[spark]" in said

    code, said = fails(cluster, tmp_path, HEADRACE_SPARK_PYTHON="/no/such/python")
    assert (code, said.count("\n")) == (69, 0), said
    assert "The executors' Python can't be run: /no/such/python. Set python to another one." in said


@pytest.mark.torture
async def test_another_headrace_on_the_executors_is_one_sentence_of_the_check(cluster: Cluster, tmp_path: Path) -> None:
    python = python_of_nodes(tmp_path / "python", (*ON_NODES, *PACKAGES))
    (place,) = (tmp_path / "python").glob("lib/python*/site-packages")
    (place / "headrace").mkdir()
    (place / "headrace/__init__.py").write_text("raise ImportError('the wrong version was imported')\n")
    (place / "headrace-0.0.1.dist-info").mkdir()
    (place / "headrace-0.0.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: headrace\nVersion: 0.0.1\n")
    code, said = fails(cluster, tmp_path, HEADRACE_SPARK_PYTHON=str(python))
    own = version("headrace")
    assert (code, said) == (
        69,
        f"headrace: The Python on an executor, {python}, has headrace 0.0.1, and this process {own}. Ship it (--ship headrace, or"
        f" HEADRACE_SPARK_SHIP=headrace), or install headrace[spark]=={own} there.",
    )
    code, said = fails(cluster, tmp_path, HEADRACE_SPARK_PYTHON=str(python), HEADRACE_SPARK_SHIP="headrace")
    assert (code, said) == (0, ""), "what is shipped comes before what is installed"


@pytest.mark.torture
async def test_another_python_on_the_executors_is_one_sentence_of_the_check(cluster: Cluster, tmp_path: Path) -> None:
    """The command `nodes-python` is one Python on this machine, and another one on the nodes."""
    (tmp_path / "bin").mkdir()
    write_program(tmp_path / "bin/nodes-python", f'exec {cluster.python} "$@"')
    write_program(cluster.programs / "nodes-python", f'exec {another_python(tmp_path / "other")} "$@"')
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    code, said = fails(
        cluster, tmp_path, HEADRACE_SPARK_PYTHON="nodes-python", HEADRACE_SPARK_SHIP="headrace", PATH=path
    )
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert (code, said) == (
        69, f"headrace: The executors' Python is not {own}, the version of this process. Set python to one that is."
    )  # fmt: skip


@pytest.mark.torture
async def test_code_is_shipped_to_a_connect_server_too(
    cluster: Cluster, database: store.Database, dsn: str, tmp_path: Path
) -> None:
    write_replaying(tmp_path)
    await fill(database, "orders", 20)
    await store.create_stream(database, "replayed")
    remote = cluster.start_connect()
    try:
        where = {"HEADRACE_SPARK_MASTER": "", "HEADRACE_SPARK_REMOTE": remote, "HEADRACE_SPARK_SHIP": "."}
        report = drive(cluster, "over_connect", tmp_path, dsn, **where)
    finally:
        cluster.kill("connect")
    assert report["problem"] is None
    assert {"replaying", "names", "headrace", "msgspec"} <= set(report["shipped"])
    assert {worker["executable"] for worker in report["workers"]} == {str(cluster.python)}
    renamed = [(key.replace("orders", "renamed"), data) for _, key, data in await read(database, "orders")]
    assert sorted((key, data) for _, key, data in await read(database, "replayed")) == sorted(renamed)
