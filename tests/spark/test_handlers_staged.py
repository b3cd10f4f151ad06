"""Results of handlers that executors stage, because they are many: once, in order, with the acks, or not at all."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio
import pytest

from headrace import App, store
from headrace.model.errors import StoreUnavailable
from headrace.runtime.messages.staged import StagedMessages
from headrace_spark import spark_consumer
from headrace_spark.handlers import results
from tests.runtime.running import consumer, dead_letters, running, work_off
from tests.spark.cluster import Cluster
from tests.spark.filling import read
from tests.spark.on_cluster import drive
from tests.spark.processes import PATIENCE, environment
from tests.support.logs import logged
from tests.support.roles import as_role

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.asyncio

QUICK: dict[str, Any] = {"max_wait": "0.2s", "backoff": 0.0}


@pytest.fixture(autouse=True)
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let more than three rows count as many. Returns the way that each batch's results have taken."""
    monkeypatch.setattr(results, "COLLECTED_ROWS", 3)
    taken: list[str] = []

    def noting(name: str) -> Any:
        real = getattr(results.Results, name)

        def noted(self: Any, *arguments: Any) -> Any:
            found = real(self, *arguments)
            taken.append(name[1:])
            return found

        return noted

    for name in ("_collected", "_staged"):
        monkeypatch.setattr(results.Results, name, noting(name))
    return taken


async def nothing_staged(app: App) -> bool:
    tables = await app.database.fetchval(
        "select count(*) from pg_class where relnamespace = 'headrace_staging'::regnamespace and relkind = 'r'"
    )
    return (tables, await app.database.fetchval("select count(*) from headrace_internal.writes")) == (0, 0)


async def test_many_results_are_staged_and_published_in_order_and_few_go_through_the_worker_again(
    spark: SparkSession, dsn: str, ways: list[str]
) -> None:
    app = App(dsn, streams=["orders"])

    @spark_consumer(app, "orders", publishes="copies", max_rows=10, **QUICK)
    def copied(df: DataFrame) -> DataFrame:
        return df.selectExpr("key", "seq", "data", "map('n', get_json_object(data, '$.n')) as headers").orderBy("seq")

    async with running(app):
        for first, count in ((0, 10), (10, 10), (20, 1), (21, 2)):
            await app.publish_many("orders", [(f"k{n % 3}", {"n": n}) for n in range(first, first + count)])
            await app.idle()
        rows = await app.database.fetch("select key, data, headers from headrace_streams.copies order by seq")
        assert [(row[0], json.loads(row[1])["n"], json.loads(row[2])) for row in rows] == [
            (f"k{n % 3}", n, {"n": str(n)}) for n in range(23)
        ]
        assert ways == ["staged", "staged", "staged", "collected"]
        assert (await consumer(app, "copied")).num_ack_pending == 0
        assert await nothing_staged(app)


async def test_a_row_that_can_not_be_published_fails_alone_and_nothing_of_it_stays(
    spark: SparkSession, dsn: str, ways: list[str]
) -> None:
    app = App(dsn, streams=["orders"])

    @spark_consumer(app, "orders", publishes="copies", max_deliver=1, **QUICK)
    def copied(df: DataFrame) -> DataFrame:
        return df.selectExpr("if(key = 'k7', 'a..b', key) as key", "seq", "data")

    async with running(app):
        await app.publish_many("orders", [(f"k{n}", n) for n in range(16)])
        await app.idle()
        keys = {key for _, key, _ in await read(app.database, "copies")}
        assert keys == {f"k{n}" for n in range(16)} - {"k7"}
        (letter,) = await dead_letters(app, "copied")
        assert letter.key == "k7"
        assert await nothing_staged(app)
    assert "staged" in ways


async def test_what_is_not_committed_is_deleted_and_comes_again(
    spark: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(dsn, streams=["orders"])
    left: list[bool] = []
    publish = StagedMessages.publish

    async def failing(self: StagedMessages, transaction: Any) -> None:
        await publish(self, transaction)
        if not left:
            left.append(False)
            raise StoreUnavailable("The connection broke.")
        left.append(await app.database.fetchval("select count(*) = 1 from headrace_internal.writes"))

    monkeypatch.setattr(StagedMessages, "publish", failing)

    @spark_consumer(app, "orders", publishes="copies", **QUICK)
    def copied(df: DataFrame) -> DataFrame:
        return df.select("key", "data")

    async with running(app):
        await app.publish_many("orders", [(f"k{n}", n) for n in range(8)])
        await app.idle()
        assert sorted(key for _, key, _ in await read(app.database, "copies")) == [f"k{n}" for n in range(8)]
        assert left[0] is False
        assert all(left[1:]), "only the write of the second attempt was there"
        assert await nothing_staged(app)


async def test_more_results_than_max_results_are_refused_on_this_way_too(
    spark: SparkSession, dsn: str, ways: list[str]
) -> None:
    app = App(dsn, streams=["orders"])

    @spark_consumer(app, "orders", publishes="copies", max_results=6, max_deliver=1, **QUICK)
    def copied(df: DataFrame) -> DataFrame:
        return df.repartition(2).select("key", "data")

    await work_off(app, *[(f"k{n}", n) for n in range(10)])
    async with app:
        letters = await dead_letters(app, "copied")
        assert {letter.key for letter in letters} == {f"k{n}" for n in range(10)}
        assert "returned more than max_results=6 rows" in str(letters[0].error)
        assert await nothing_staged(app)


async def test_executors_that_can_not_reach_the_database_leave_the_results_to_the_worker(
    spark: SparkSession, dsn: str, ways: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(dsn, streams=["orders"])

    @spark_consumer(app, "orders", publishes="copies", **QUICK)
    def copied(df: DataFrame) -> DataFrame:
        return df.select("key", "data")

    monkeypatch.setattr(results, "Place", lambda url: results.staging.Place("postgresql://127.0.0.1:1/none"))
    with caplog.at_level(logging.WARNING):
        await work_off(app, *[(f"k{n}", n) for n in range(8)])
    async with app:
        assert len(await read(app.database, "copies")) == 8
        assert await nothing_staged(app)
    assert ways == ["collected"]
    assert "can't be reached" in str(logged(caplog, "results not staged")[0])


SERVICE = '''
import os
import signal
import subprocess

from headrace import App
from headrace_spark import spark_consumer

app = App(streams=["orders"])


class Deadly:
    """After the last row of a task this kills the executor, unless that was done before."""

    def __init__(self, mark):
        self.mark = mark

    def __call__(self, batches):
        yield from batches
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        executor = int(subprocess.check_output(["ps", "-o", "ppid=", "-p", str(os.getppid())]))
        os.kill(executor, signal.SIGKILL)


@spark_consumer(app, "orders", publishes="copies", max_wait="0.2s")
def copied(df):
    mark = os.environ["MARK"]
    large = df.selectExpr("key", "concat('{\\"n\\":', data, ',\\"text\\":\\"', repeat('x', 1000000), '\\"}') as data")
    return large.mapInArrow(Deadly(mark), large.schema)
'''


@pytest.mark.long
async def test_an_executor_that_is_killed_after_it_has_staged_rows_publishes_none_of_them_twice(
    cluster: Cluster, database: store.Database, dsn: str, tmp_path: Path
) -> None:
    """Twenty rows of a megabyte are sent in several pieces, and the executor ends before the last one."""
    (tmp_path / "service.py").write_text(SERVICE)
    await store.create_stream(database, "orders")
    await database.fetch("select headrace.publish('orders', 'k' || g, g::text::json) from generate_series(1, 20) as g")
    mark = tmp_path / "killed"
    found = drive(cluster, "staging", tmp_path, dsn, HEADRACE_SPARK_SHIP=".", MARK=str(mark))
    assert mark.exists()
    assert "staged" in found["ways"]
    rows = await database.fetch("select key, (data ->> 'n')::int, length(data ->> 'text') from headrace_streams.copies")
    assert sorted(tuple(row) for row in rows) == sorted((f"k{n}", n, 1_000_000) for n in range(1, 21))
    assert await database.fetchval("select count(*) from headrace_internal.writes") == 0


async def test_the_results_of_a_worker_whose_role_may_not_stage_go_through_the_worker(
    spark: SparkSession, database: store.Database, dsn: str, ways: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def app_at(url: str, **options: Any) -> App:
        app = App(url, **options)

        @spark_consumer(app, "orders", publishes="copies", **QUICK)
        def copied(df: DataFrame) -> DataFrame:
            return df.select("key", "data")

        return app

    async with running(app_at(dsn, streams=["orders", "copies"])):
        pass  # the owner has declared the consumer
    role = f"app_{uuid4().hex[:12]}"
    await database.fetch(f"create role {role} login password 'secret'")
    try:
        for privilege in ("consume", "publish"):
            await store.grant(database, privilege, role, ("orders", "copies"))
        app = app_at(as_role(dsn, role))
        with caplog.at_level(logging.WARNING):
            async with running(app):
                await app.publish_many("orders", [(f"k{n}", n) for n in range(8)])
                await app.idle()
        assert sorted(key for _, key, _ in await read(database, "copies")) == [f"k{n}" for n in range(8)]
        assert "lacks a privilege" in str(logged(caplog, "results not staged")[0])
    finally:
        await database.fetch(f"drop owned by {role}")
        await database.fetch(f"drop role {role}")


WORKER = """
import os
import time
from pathlib import Path

from headrace import App
from headrace.runtime.messages.staged import StagedMessages
from headrace_spark import spark_consumer
from headrace_spark.handlers import results

results.COLLECTED_ROWS = 3
app = App(streams=["orders"])
publish = StagedMessages.publish


async def held(self, transaction):
    if os.environ["PHASE"] == "after":
        await publish(self, transaction)
    Path(os.environ["MARK"]).touch()
    while True:
        time.sleep(0.05)


StagedMessages.publish = held


@spark_consumer(app, "orders", publishes="copies", max_wait="0.2s", ack_wait="1s")
def copied(df):
    return df.select("key", "data")
"""


def start_worker(place: Path, **variables: str) -> subprocess.Popen[bytes]:
    with (place / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", "run", "worker:app"],
            cwd=place, env=environment(**variables), stdout=log, stderr=log,
        )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("phase", ["before", "after"])
async def test_a_worker_that_is_killed_before_its_commit_publishes_nothing_and_another_one_everything(
    spark: SparkSession, dsn: str, tmp_path: Path, phase: str
) -> None:
    app = App(dsn, streams=["orders"])

    @spark_consumer(app, "orders", publishes="copies", ack_wait="1s", **QUICK)
    def copied(df: DataFrame) -> DataFrame:
        return df.select("key", "data")

    (tmp_path / "worker.py").write_text(WORKER)
    mark = tmp_path / "mark"
    async with app:
        await app.publish_many("orders", [(f"k{n}", n) for n in range(8)])
        variables = {"PHASE": phase, "MARK": str(mark), "HEADRACE_DATABASE": dsn, "HEADRACE_DATA": str(tmp_path)}
        process = start_worker(tmp_path, **variables)
        try:
            with anyio.fail_after(PATIENCE):
                while not mark.exists():
                    assert process.poll() is None, (tmp_path / "log").read_text()
                    await anyio.sleep(0.05)
        finally:
            process.kill()
            process.wait()
        assert await app.database.fetchval("select count(*) from headrace_streams.copies") == 0
    async with running(app, within=PATIENCE):
        await app.idle()
        assert sorted(key for _, key, _ in await read(app.database, "copies")) == [f"k{n}" for n in range(8)]
        assert await dead_letters(app, "copied") == []
