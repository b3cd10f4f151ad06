"""Spark Connect: the same session, job and data source work in a process that has no Java."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import grpc
import pytest
from pyspark.sql.connect.session import SparkSession as RemoteSession

from headrace_spark.session import SparkSettings, SparkUnavailable, configuration, reach, sessions
from headrace_spark.session.settings import read
from tests.spark.processes import PATIENCE, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def server(spark: SparkSession) -> Iterator[str]:
    """The URL of a Connect server. It runs in the Java of the run's session until the test ends."""
    jvm: Any = spark.sparkContext._jvm
    service = getattr(getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    service.start(spark.sparkContext._jsc.sc())
    try:
        yield f"sc://127.0.0.1:{service.server().getPort()}"
    finally:
        service.stop(jvm.scala.Option.empty(), jvm.scala.Option.empty())


def _program(remote: str, dsn: str) -> None:
    """The program of the client's process. It prints its results."""
    import faulthandler

    import msgspec

    from headrace_spark import report_lag, tables
    from headrace_spark.session import SparkSettings, is_connect, session, sessions, stop
    from headrace_spark.session.check import check

    faulthandler.dump_traceback_later(PATIENCE, exit=True)  # a call without a timeout may wait forever
    settings = SparkSettings(remote=remote, conf={"spark.sql.shuffle.partitions": "1"})
    report = check(settings)
    spark = session(settings)
    read = spark.read.format("headrace").option("database", dsn).option("stream", "orders").option("partitions", 1)
    rows = read.load().select("seq", "key", "data").sort("seq").collect()
    found = {
        "report": msgspec.to_builtins(report),
        "connect": is_connect(spark),
        "zone": spark.conf.get("spark.sql.session.timeZone"),
        "rows": [[row.seq, row.key, json.loads(row.data)] for row in rows],
        "tables": tables(spark, "connect_tests", database=dsn),
        "counted": spark.sql("select count(*) from connect_tests.orders").collect()[0][0],
    }
    report = report_lag(spark)
    stream = spark.readStream.option("partitions", 1).table("connect_tests.orders")
    query = stream.writeStream.format("noop").option("checkpointLocation", str(Path.cwd() / "checkpoint")).start()
    deadline = time.monotonic() + PATIENCE / 3
    while not (reported := list(report.statistics()["queries"].values())):
        assert time.monotonic() < deadline, query.exception()
        time.sleep(0.05)
    query.stop()
    report.stop()
    report_lag(spark)  # the process ends although this report is not stopped
    found["reported"] = [[one["stream"], one["position"], one["lag"]] for one in reported[0]["streams"]]
    spark.sql("drop database connect_tests cascade")
    stop()
    print(json.dumps({**found, "stopped": sessions._current is None}))


def _drive(server: str, dsn: str, directory: Path, **variables: str) -> Any:
    """Run the program in a process without Java. Returns its results."""
    ended = subprocess.run(
        [sys.executable, "-c", "import sys; from tests.spark.test_connect import _program; _program(*sys.argv[1:])", server, dsn],
        # Longer than the program runs, so that it says for what it waits.
        cwd=directory, capture_output=True, text=True, timeout=PATIENCE + 60, check=False,
        env=environment(PYTHONPATH=os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]), JAVA_HOME="/nowhere", PATH="/nowhere", **variables),
    )  # fmt: skip
    said = [line for line in ended.stderr.splitlines() if "waiting for executors" not in line]  # as on a slow machine
    assert (ended.returncode, said) == (0, [])
    return json.loads(ended.stdout)


@pytest.mark.asyncio
async def test_a_client_without_java_runs_a_job_and_reads_a_stream(server: str, dsn: str, tmp_path: Path) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("select headrace.create_stream('orders')")
        await connection.execute(
            """select headrace.publish('orders', 'orders.' || n, json_build_object('n', n)) from generate_series(1, 3) n"""
        )
    finally:
        await connection.close()
    answers = _drive(server, dsn, tmp_path)
    assert (answers["report"]["problem"], answers["report"]["java"]) == (None, None)
    assert [worker["executable"] for worker in answers["report"]["workers"]] == [sys.executable]
    assert (answers["connect"], answers["zone"], answers["stopped"]) == (True, "UTC", True)
    assert (answers["tables"], answers["counted"]) == (["connect_tests.orders"], 3)
    assert answers["reported"] == [["orders", 3, 0]]
    assert [row[1:] for row in answers["rows"]] == [[f"orders.{n}", {"n": n}] for n in (1, 2, 3)]


def test_a_server_that_does_not_run_is_reported_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without a server
        port = taken.getsockname()[1]
        with pytest.raises(
            SparkUnavailable, match=f"sc://127.0.0.1:{port}/;… can't be reached: 127.0.0.1:{port}: connection refused"
        ):
            reach.check_server(f"sc://127.0.0.1:{port}/;token=hunter2")
        with pytest.raises(SparkUnavailable, match=f"The Spark master spark://127.0.0.1:{port} can't be reached"):
            reach.check_cluster(f"spark://127.0.0.1:{port}")
        with pytest.raises(SparkUnavailable, match="The Spark master k8s:"):
            reach.check_cluster(f"k8s://http://127.0.0.1:{port}")


def test_a_server_that_is_no_connect_server_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(SparkUnavailable, match="does not answer as a Spark Connect server"):
            reach.check_server(f"sc://127.0.0.1:{silent.getsockname()[1]}", timeout=0.5)
        reach.check_cluster(f"spark://nohost.invalid:1,127.0.0.1:{silent.getsockname()[1]}")  # one of them is enough


class Silent(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server that accepts all calls, and answers none until it ends."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def service(self, _: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, *_: Any) -> bytes:
        self.over.wait(PATIENCE)
        return b""


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that never answers."""
    handler = Silent()
    server = grpc.server(ThreadPoolExecutor(1), [handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"sc://127.0.0.1:{port}"
    handler.over.set()
    server.stop(None).wait()


def test_a_server_that_accepts_calls_and_never_answers_is_given_up(silent: str) -> None:
    with pytest.raises(SparkUnavailable, match=r"has not answered within 0\.5 s.*start_timeout"):
        reach.check_server(silent, answer_timeout=0.5)


def test_the_start_of_a_session_waits_for_the_server_as_long_as_start_timeout_says(silent: str) -> None:
    with pytest.raises(SparkUnavailable, match=r"has not answered within 0\.4 s"):
        sessions._connect_session(read(SparkSettings(remote=silent, start_timeout=0.4)), silent)


@pytest.mark.parametrize("state", ["silent", "gone"])
def test_a_session_is_stopped_although_its_server_does_not_answer(
    state: str, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark itself tries for ten minutes to release it."""
    monkeypatch.setattr(sessions, "_STOP_TIMEOUT", 0.2)
    monkeypatch.setattr(configuration, "remove_scratch", lambda: None)  # it is that of this run's session
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without a server
        gone = f"sc://127.0.0.1:{taken.getsockname()[1]}"
        spark: Any = RemoteSession(silent if state == "silent" else gone)
        ending = threading.Thread(target=sessions._end, args=(sessions._Current(spark),), daemon=True)
        ending.start()
        ending.join(10)
        assert not ending.is_alive()
    assert spark.is_stopped


def test_an_invalid_url_is_reported() -> None:
    with pytest.raises(SparkUnavailable, match="is invalid") as raised:
        reach.check_server("sc://host:1/path")
    assert raised.value.exit_code == 78
