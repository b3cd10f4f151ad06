"""A standalone cluster of Spark on this machine for `cluster` and `driver`: a master, and a worker of one core for each executor."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import anyio.to_thread

from benchmarks.checks import CheckFailed
from benchmarks.suite.spark_crew import SparkCrew, spark_crew

CONF = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "1g",
}
"""The configuration of a driver, and of its executors."""

_TIMEOUT = 60.0
"""Seconds within which a process of the cluster must be ready."""
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER = re.compile(r"(Successfully registered)")


class Nodes:
    """A running cluster.

    Attributes:
        url: the URL of its master.
        workers: the process ids of its workers. Each starts one executor for a driver.
    """

    def __init__(self, directory: Path, count: int) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[int] = []
        try:
            self.url = self._start("master", "master.Master", _MASTER, "--port", "0")
            for number in range(1, count + 1):
                name = f"worker-{number}"
                place = ("--work-dir", str(directory / name))
                self._start(name, "worker.Worker", _WORKER, "--cores", "1", "--memory", "2g", *place, self.url)
                self.workers.append(self._processes[-1].pid)
        except BaseException:
            self.stop()
            raise

    def _start(self, name: str, program: str, ready: re.Pattern[str], *arguments: str) -> str:
        from pyspark.find_spark_home import _find_spark_home

        from headrace_spark.session.java import find

        home = _find_spark_home()
        variables = {
            **{key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR") if key in os.environ},
            "PATH": os.defpath,
            "JAVA_HOME": str(find().home),
            "SPARK_HOME": home,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        log = self._directory / f"{name}.log"
        command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{program}", "--host", "127.0.0.1"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, "--webui-port", "0", *arguments], cwd=self._directory, env=variables,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        self._processes.append(process)
        end = time.monotonic() + _TIMEOUT
        while (found := ready.search(log.read_text(errors="replace"))) is None:
            if process.poll() is not None or time.monotonic() > end:
                raise CheckFailed(f"the {name} of Spark did not start: {log.read_text(errors='replace')[-500:]}")
            time.sleep(0.05)
        return found[1]

    def stop(self) -> None:
        """Stop it. Workers end their executors."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _nodes(count: int) -> Iterator[Nodes]:
    """Run a cluster with this many workers for the block."""
    with tempfile.TemporaryDirectory(prefix="headrace-nodes-", ignore_cleanup_errors=True) as directory:
        running = Nodes(Path(directory), count)
        try:
            yield running
        finally:
            running.stop()


@asynccontextmanager
async def cluster_nodes(count: int) -> AsyncIterator[Nodes]:
    """Run a cluster with this many workers for the block."""
    context = _nodes(count)
    running = await anyio.to_thread.run_sync(context.__enter__)
    try:
        yield running
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(context.__exit__, None, None, None))


@asynccontextmanager
async def cluster_crew(running: Nodes, executors: int) -> AsyncIterator[SparkCrew]:
    """A driver with this many executors, of one core each."""
    async with spark_crew({**CONF, "spark.cores.max": str(executors)}, master=running.url) as crew:
        yield crew
