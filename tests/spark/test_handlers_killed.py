"""Workers are killed during a job and after it, and their Java is killed too. A worker without Java ends, for its supervisor.
The output stream gets everything exactly once.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import psutil
import pytest

from headrace import App
from headrace_spark import spark_consumer
from tests.runtime.running import dead_letters, eventually, running
from tests.spark.processes import PATIENCE, environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.asyncio

WORKER = '''
import os
import time
from pathlib import Path

from pyspark.sql import functions as sql
from pyspark.sql.types import StringType

from headrace import App
from headrace_spark import spark_consumer

PLACE = os.environ["PLACE"]
phases = iter(os.environ["PHASES"].split(","))
app = App(streams=["orders"])
same = sql.udf(lambda text: text, StringType())  # it keeps an object of the session that was there at its first use


def hold(phase):
    """Say that it has come here, and wait to be killed."""
    Path(PLACE, phase).touch()
    while not Path(PLACE, "over").exists():
        time.sleep(0.02)


def hold_in_the_job(place, phase):
    def held(batches):
        Path(place, phase).touch()
        while not Path(place, "over").exists():
            time.sleep(0.02)
        yield from batches

    return held


@spark_consumer(app, "orders", publishes="copies", max_wait="0.2s", ack_wait="1s", backoff=0.0)
def copied(df):
    phase = next(phases, "")
    java = df.sparkSession.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    Path(PLACE, f"{phase}.java").write_text(str(java))
    found = df.select(same("key").alias("key"), "data")
    if phase.startswith("during"):
        found = found.mapInArrow(hold_in_the_job(PLACE, phase), found.schema)
    elif phase.startswith("after"):
        found = found.localCheckpoint()
        hold(phase)
    return found
'''


class Worker:
    """A process of `headrace run`, which stops at the given phases."""

    def __init__(self, place: Path, dsn: str, phases: str) -> None:
        self.place = place
        (place / "worker.py").write_text(WORKER)
        variables = {
            "PLACE": str(place),
            "PHASES": phases,
            "HEADRACE_DATABASE": dsn,
            "HEADRACE_DATA": str(place / "data"),
        }
        self.log = place / f"log of {phases}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace.cli.main", "run", "worker:app"],
                cwd=place, env=environment(**variables), stdout=log, stderr=log,
            )  # fmt: skip

    async def until(self, phase: str) -> None:
        """Wait until the worker stops at this phase."""
        with anyio.fail_after(PATIENCE):
            while not (self.place / phase).exists():
                assert self.process.poll() is None, self.log.read_text()
                await anyio.sleep(0.05)

    def java(self, phase: str) -> psutil.Process:
        """Return the Java process that it used in this phase."""
        return psutil.Process(int((self.place / f"{phase}.java").read_text()))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.torture
async def test_workers_and_their_java_are_killed_and_every_message_is_published_exactly_once(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    app = App(dsn, streams=["orders"])

    @spark_consumer(app, "orders", publishes="copies", max_wait="0.2s", ack_wait="1s", backoff=0.0)
    def copied(df: DataFrame) -> DataFrame:
        return df.select("key", "data")

    names = [f"k{n}" for n in range(4)]
    workers: list[Worker] = []

    def worker(phases: str) -> Worker:
        workers.append(Worker(tmp_path, dsn, phases))
        return workers[-1]

    try:
        async with app:
            await app.publish_many("orders", [(name, {"name": name}) for name in names])
            first = worker("during")
            await first.until("during")
            java = first.java("during")
            first.kill()
            await gone(java)

            second = worker("during-2")
            await second.until("during-2")
            second.java("during-2").send_signal(signal.SIGKILL)
            assert await anyio.to_thread.run_sync(second.process.wait, PATIENCE) == 69  # for its supervisor
            assert "The Spark session was lost during a job" in second.log.read_text()
            leases = "select count(*) from headrace_internal.leases"
            assert await app.database.fetchval(leases) == 0, "the batch was released"

            third = worker("after")
            await third.until("after")
            assert await published(app) == []
            third.kill()

        # The messages that they held go to a fourth worker, which is this process. The attempts counted as
        # crashes, so they come one by one.
        async with running(app, within=PATIENCE):
            await eventually(lambda: there(app, names))
            await app.idle()
            assert await published(app) == names
            assert await dead_letters(app, "copied") == []
            assert await app.database.fetchval("select count(*) from headrace_internal.parked") == 0
    finally:
        (tmp_path / "over").touch()
        for one in workers:
            one.kill()


async def there(app: App, names: list[str]) -> bool:
    return set(names) <= set(await published(app))


async def published(app: App) -> list[str]:
    if await app.database.fetchval("select to_regclass('headrace_streams.copies')") is None:
        return []
    rows: list[Any] = await app.database.fetch("select key from headrace_streams.copies")
    return sorted(row[0] for row in rows)


async def gone(process: psutil.Process) -> None:
    """Wait until the process does not exist any more."""
    with anyio.fail_after(PATIENCE):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110 - it says nothing when it ends
            await anyio.sleep(0.05)


KILLED = """
import os
from pathlib import Path

from pyspark.sql import Window
from pyspark.sql import functions as sql
from pyspark.sql.types import LongType

from headrace import App
from headrace_spark import spark_consumer

app = App(streams=["orders"])
twice = sql.udf(lambda number: 2 * number, LongType())  # it keeps an object of the session that was there at its first use


@spark_consumer(app, "orders", schema="n bigint", publishes="copies", max_rows=50, max_wait="0.2s", backoff=0.0, max_deliver=1)
def copied(df):
    java = df.sparkSession.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    Path(os.environ["PLACE"], "java").write_text(str(java))
    place = sql.row_number().over(Window.partitionBy("key").orderBy("seq"))
    return df.select("key", twice("data.n").alias("n"), place.alias("place")).repartition(2, "key").sortWithinPartitions("key", "place")
"""


@pytest.mark.torture
async def test_java_is_killed_under_a_module_s_functions_and_no_message_is_lost_or_a_dead_letter(
    dsn: str, tmp_path: Path
) -> None:
    """A supervisor starts the process again whenever it has ended with 69. An attempt that counted would be a dead letter."""
    kills, messages = 5, 2000
    results = "select key, data->>'n' from headrace_streams.copies order by seq"
    (tmp_path / "killed.py").write_text(KILLED)
    variables = {"PLACE": str(tmp_path), "HEADRACE_DATABASE": dsn, "HEADRACE_DATA": str(tmp_path / "data")}
    app = App(dsn, streams=["orders", "copies"])
    log = (tmp_path / "log").open("wb")

    def started() -> subprocess.Popen[bytes]:
        (tmp_path / "java").unlink(missing_ok=True)
        command = [sys.executable, "-m", "headrace.cli.main", "run", "killed:app"]
        return subprocess.Popen(command, cwd=tmp_path, env=environment(**variables), stdout=log, stderr=log)

    async def java() -> psutil.Process:
        with anyio.fail_after(PATIENCE):
            while not (text := _read(tmp_path / "java")):
                assert process.poll() is None, (tmp_path / "log").read_text()
                await anyio.sleep(0.02)
        return psutil.Process(int(text))

    process = started()
    try:
        async with app:
            await app.publish_many("orders", [(f"k{n % 40}", {"n": n}) for n in range(messages)])
            for killed in range(kills):
                found = await java()
                await anyio.sleep(0.05 * killed)  # in another part of the work each time
                found.kill()
                assert await anyio.to_thread.run_sync(process.wait, PATIENCE) == 69, (tmp_path / "log").read_text()
                process = started()
            with anyio.fail_after(PATIENCE):
                while len(rows := await app.database.fetch(results)) < messages:  # noqa: ASYNC110 - another process publishes them
                    await anyio.sleep(0.2)
            assert [(row[0], int(row[1])) for row in rows if row[0] == "k7"] == [
                ("k7", 2 * n) for n in range(7, messages, 40)
            ]
            assert sorted(int(row[1]) for row in rows) == [2 * n for n in range(messages)]
            assert await dead_letters(app, "copied") == []
            (await java()).kill()
            assert await anyio.to_thread.run_sync(process.wait, PATIENCE) == 69, "without a further batch"
    finally:
        process.kill()
        process.wait()
        log.close()


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""
