"""Hooks that prepare the Spark session of an app: before the first batch, and again when a session of Connect is
replaced."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace import App, Batch
from headrace.model.errors import ConfigurationError
from headrace_spark import on_spark_session, spark_consumer
from headrace_spark.handlers import transform, warm_session
from headrace_spark.session import liveness
from tests.runtime.running import Seen, dead_letters, running
from tests.spark.processes import PATIENCE, environment
from tests.spark.test_connect import server
from tests.support.logs import logged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["server"]

QUICK: Any = {"max_wait": "0.1s", "backoff": 0.0, "max_deliver": 1}


@pytest.mark.asyncio
async def test_a_hook_prepares_the_session_before_the_first_batch(spark: SparkSession, dsn: str) -> None:
    app = App(dsn, streams=["orders"])
    seen = Seen()
    leased: list[int] = []

    @on_spark_session(app)
    def load(spark: SparkSession) -> None:
        import asyncpg
        from anyio import run

        async def count() -> int:
            connection = await asyncpg.connect(dsn)
            try:
                return int(await connection.fetchval("select count(*) from headrace_internal.leases"))
            finally:
                await connection.close()

        leased.append(run(count))
        spark.udf.register("in_cents", lambda euros: round(euros * 100), "bigint")

    @on_spark_session(app)
    def rates(spark: SparkSession) -> None:
        spark.createDataFrame([("a", 2)], "key string, factor int").createOrReplaceTempView("rates")

    @spark_consumer(app, "orders", schema="euros double", **QUICK)
    def ship(df: DataFrame) -> None:
        df.createOrReplaceTempView("batch")
        rows = df.sparkSession.sql("select factor * in_cents(data.euros) from batch join rates using (key)").collect()
        seen.note(rows[0][0])

    async with app:
        await app.publish("orders", "a", {"euros": 1.25})
    try:
        async with running(app):
            assert await seen.until(1) == [250]
    finally:
        spark.catalog.dropTempView("rates")
        spark.sql("drop temporary function in_cents")
    assert leased == [0]


@pytest.mark.asyncio
async def test_a_hook_that_raises_ends_the_start_with_its_own_error(spark: SparkSession, dsn: str) -> None:
    app = App(dsn, streams=["orders"])

    @on_spark_session(app)
    def load(spark: SparkSession) -> None:
        raise FileNotFoundError("There is no model.npz.")

    with pytest.raises(FileNotFoundError, match=r"There is no model\.npz") as ended:
        async with app.running():
            pass
    assert ended.value.__notes__ == ["The hook 'load' of the Spark session failed."]


@pytest.mark.asyncio
async def test_a_hook_is_repeated_for_a_new_session_of_connect_and_no_failure_and_no_wait_of_it_counts_an_attempt(
    spark: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The death of the session is simulated."""
    monkeypatch.setattr(transform, "MIN_DELAY", 0.01)
    monkeypatch.setattr(warm_session, "is_connect", lambda _: True)
    monkeypatch.setattr(warm_session, "stop", lambda: None)
    current = [spark]
    monkeypatch.setattr(warm_session, "obtain", lambda *_: current[0])
    monkeypatch.setattr(liveness, "gone", lambda session: session is not current[0])
    app = App(dsn, streams=["orders"])
    hooked: list[SparkSession] = []
    batches: list[tuple[Any, int]] = []
    done = Seen()

    @on_spark_session(app)
    def load(session: SparkSession) -> None:
        hooked.append(session)
        if len(hooked) == 2:
            raise OSError("The models are away.")
        if len(hooked) == 3:
            time.sleep(1.2)  # longer than the timeout

    @spark_consumer(app, "orders", timeout="1s", **QUICK)
    def ship(df: DataFrame, batch: Batch) -> None:
        batches.append((df.sparkSession, batch[0].attempt))
        if len(batches) == 1:
            current[0] = spark.newSession()
            raise RuntimeError("StatusCode.UNAVAILABLE")
        done.note(batch[0].key)

    async with app:
        await app.publish("orders", "a", {})
    async with running(app):
        assert await done.until(1) == ["a"]
        await app.idle()
        assert await dead_letters(app, "ship") == []
    assert hooked == [spark, *[current[0]] * 2]
    assert batches == [(spark, 1), (current[0], 1)]
    errors = [str(record.error) for record in logged(caplog, "spark unavailable", consumer="orders:ship")]  # type: ignore[attr-defined]
    assert errors[1:] == ["The hook 'load' of the Spark session failed. OSError: The models are away."]


def test_what_is_no_hook_is_reported_at_once() -> None:
    async def awaited(spark: Any) -> None: ...

    for wrong in (awaited, lambda: None, lambda spark, batch: None, "load"):
        with pytest.raises(ConfigurationError, match="must be a plain function that takes the session"):
            on_spark_session(App("postgres://nowhere"))(wrong)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="must be the app"):
        on_spark_session("orders")  # type: ignore[arg-type]


def _program(dsn: str) -> None:
    """The program of a client of Connect, which handles a message before the server is restarted and one after that."""
    import anyio
    import anyio.to_thread

    app = App(dsn, streams=["orders"])
    hooked: list[str] = []
    done: list[list[Any]] = []

    @on_spark_session(app)
    def load(spark: SparkSession) -> None:
        hooked.append(spark.session_id)  # type: ignore[attr-defined]
        spark.createDataFrame([(len(hooked),)], "number int").createOrReplaceTempView("hooked")

    @spark_consumer(app, "orders", **QUICK)
    def ship(df: DataFrame, batch: Batch) -> None:
        done.append([batch[0].key, batch[0].attempt, df.sparkSession.table("hooked").collect()[0][0]])

    async def work() -> None:
        async with running(app, within=PATIENCE):
            await app.publish("orders", "before", {})
            await app.idle()
            print("before", flush=True)
            await anyio.to_thread.run_sync(sys.stdin.readline)
            await app.publish("orders", "after", {})
            await app.idle()
            failed = [letter.error for letter in await dead_letters(app, "ship")]
            print(json.dumps({"done": done, "sessions": len(set(hooked)), "failed": failed}))

    anyio.run(work)


@pytest.mark.long
def test_a_hook_prepares_the_session_that_replaces_one_of_a_connect_server_which_was_restarted(
    server: str, spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    variables = environment(PYTHONPATH=str(Path(__file__).parents[2]), HEADRACE_SPARK_REMOTE=server)
    variables.pop("HEADRACE_SPARK_MASTER")
    code = "import sys; from tests.spark.test_session_hooks import _program; _program(*sys.argv[1:])"
    with (tmp_path / "stderr").open("wb") as errors:
        client = subprocess.Popen(
            [sys.executable, "-c", code, dsn], cwd=tmp_path, env=variables, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "before\n", (tmp_path / "stderr").read_text()
        restart(spark, server)
        output, _ = client.communicate("restarted\n", timeout=PATIENCE)
    finally:
        client.kill()
        client.wait()
    assert client.returncode == 0, (tmp_path / "stderr").read_text()
    assert json.loads(output) == {"done": [["before", 1, 1], ["after", 1, 2]], "sessions": 2, "failed": []}


def restart(spark: SparkSession, url: str) -> None:
    """Stop the Connect server in the Java of this session, and start another one on its port."""
    jvm: Any = spark.sparkContext._jvm
    service = getattr(getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    service.stop(jvm.scala.Option.empty(), jvm.scala.Option.empty())
    conf = spark.sparkContext._jsc.sc().conf()
    before = conf.get("spark.connect.grpc.binding.port")
    conf.set("spark.connect.grpc.binding.port", url.rpartition(":")[2])
    try:
        service.start(spark.sparkContext._jsc.sc())
    finally:
        conf.set("spark.connect.grpc.binding.port", before)
