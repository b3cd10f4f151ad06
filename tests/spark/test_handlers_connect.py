"""Spark handlers over Spark Connect: the same handler works, and a timeout stops what runs on the server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace import App, Batch
from headrace_spark import spark_consumer
from headrace_spark.handlers import warm_session
from headrace_spark.handlers.failures import SparkGone
from tests.runtime.running import dead_letters, eventually, running
from tests.spark.processes import PATIENCE, environment
from tests.spark.test_connect import server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["server"]


def _program(dsn: str) -> None:
    """The program of the client's process. It prints its results."""
    import anyio

    app = App(dsn, streams=["orders"])

    @spark_consumer(app, "orders", schema="n int", publishes="doubles", max_wait="0.1s")
    def doubled(df: DataFrame, batch: Batch) -> DataFrame:
        return df.selectExpr("key", "data.n * 2 as n")

    @spark_consumer(app, "orders", max_wait="0.1s", timeout="2s", max_deliver=1)
    def stuck(df: DataFrame) -> None:
        def sleep(batches: Any) -> Any:
            import time

            for batch in batches:
                time.sleep(600)
                yield batch

        df.select("key").mapInArrow(sleep, "key string").collect()

    @spark_consumer(app, "orders", publishes="doubles", max_wait="0.1s", max_deliver=1)
    def wrong(df: DataFrame) -> DataFrame:
        return df.select("key", "nonsense")

    async def work() -> dict[str, Any]:
        async with app:
            await app.publish_many("orders", [("a", {"n": 1}), ("b", {"n": 2})])
        async with running(app, within=PATIENCE):
            await app.idle()
            rows = await app.database.fetch("select key, data::text from headrace_streams.doubles order by key")
            return {
                "doubles": [[row[0], json.loads(row[1])] for row in rows],
                "stuck": [letter.error for letter in await dead_letters(app, "stuck")],
                "wrong": [letter.error for letter in await dead_letters(app, "wrong")],
            }

    print(json.dumps(anyio.run(work)))


@pytest.mark.asyncio
async def test_a_handler_works_over_spark_connect_and_its_timeout_stops_the_server_s_job(
    server: str,
    spark: SparkSession,
    dsn: str,
    tmp_path: Path,
) -> None:
    variables = environment(
        ("HEADRACE_SPARK_MASTER",), PYTHONPATH=str(Path(__file__).parents[2]), JAVA_HOME="/nowhere", PATH="/nowhere",
        HEADRACE_SPARK_REMOTE=server, HEADRACE_SPARK_CONF="spark.sql.shuffle.partitions=1",
    )  # fmt: skip
    variables.pop("HEADRACE_SPARK_MASTER", None)
    ended = subprocess.run(  # noqa: ASYNC221 - nothing else runs in this loop
        [sys.executable, "-c", "import sys; from tests.spark.test_handlers_connect import _program; _program(*sys.argv[1:])", dsn],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    answers = json.loads(ended.stdout)
    assert answers["doubles"] == [["a", {"n": 2}], ["b", {"n": 4}]]
    assert set(answers["stuck"]) == {"The handler took longer than its timeout of 2 s."}
    assert ["nonsense" in error for error in answers["wrong"]] == [True, True]

    async def quiet() -> bool:
        return not spark.sparkContext.statusTracker().getActiveJobsIds()

    await eventually(quiet)


def test_a_job_of_a_session_that_is_gone_does_not_end_the_one_that_has_replaced_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two consumers one may have a new session before the other finds that the old one is gone."""
    stopped: list[Any] = []
    old, new = object(), object()
    monkeypatch.setattr(warm_session, "stop", lambda: stopped.append(new))
    monkeypatch.setattr(warm_session, "is_connect", lambda _: True)
    shared: Any = warm_session.WarmSession()
    shared._spark = new
    shared.note_death(SparkGone("The old session was lost."), old)
    assert stopped == []
    shared.note_death(SparkGone("The new session was lost."), new)
    assert stopped == [new]
