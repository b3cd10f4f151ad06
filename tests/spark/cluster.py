"""Clusters of Spark on this machine, with executors that share nothing with the tests: a standalone one, of a master
and two workers, and Spark's `local-cluster`, whose master and workers are in the driver's Java.

Each executor is a separate process, in its own directory. Its Python is an environment that has only what
executors are documented to need: pyarrow and pandas. Headrace and the modules of a test are not in it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psutil
from pyspark.find_spark_home import _find_spark_home

from headrace_spark.session.java import find
from tests.spark.processes import PATIENCE, QUICK, environment

ON_NODES = ("dateutil", "numpy", "pandas", "pyarrow", "pytz", "six", "tzdata")
"""The packages that the Python of the nodes has."""

LITTLE = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
"""The configuration of a driver. Its executors have one core and little memory each."""

REGISTERED = re.compile("(Successfully registered)")
"""What a worker logs when the master has it."""

_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
_CONNECT = re.compile(r"Spark Connect server started at: \S*?:(\d+)\b")
_WEB = re.compile(r"MasterUI' on port (\d+)")
_DRIVER = "org.apache.spark.deploy.SparkSubmit"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Cluster:
    """A running cluster.

    Attributes:
        directory: where all of its processes work and log.
        python: the Python of its nodes.
        programs: a directory on the search path of its nodes.
        url: the URL of the master. `web` is that of its page.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.python = python_of_nodes(directory / "python")
        self.programs = directory / "bin"
        self.programs.mkdir()
        self._java = str(find().home)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._start("master", "master.Master", "--port", "0")
        self.url = self.wait("master", _STARTED)
        self.web = f"http://127.0.0.1:{self.wait('master', _WEB)}"
        for name in ("worker-1", "worker-2"):
            self.start_worker(name)
        for name in ("worker-1", "worker-2"):
            self.wait(name, REGISTERED)

    def start_worker(self, name: str, host: str = "127.0.0.1") -> None:
        """Start a worker, which offers one core."""
        place = self.directory / name
        self._start(
            name, "worker.Worker", "--port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(place), self.url,
            host=host,
        )  # fmt: skip

    def start_connect(self, python: str | None = None, more: Mapping[str, str] | None = None) -> str:
        """Start a server of Spark Connect whose executors are on the cluster. Returns its URL.

        Args:
            python: the Python of the server and of its executors. None for that of the nodes.
            more: further configuration of the server.
        """
        conf = {**LITTLE, "spark.connect.grpc.binding.port": "0", "spark.connect.grpc.binding.address": "127.0.0.1"}
        conf |= more or {}
        pairs = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        self._launch("connect", "SparkSubmit", "--master", self.url, *pairs, *server, python=python)
        return f"sc://127.0.0.1:{self.wait('connect', _CONNECT)}"

    def kill(self, name: str) -> None:
        """Kill a worker, whose executors then end by themselves, or the Connect server."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def executors(self, driver: int | None = None) -> list[psutil.Process]:
        """Return the executors that are running, of all drivers."""
        return _executors(self._below())

    def pythons(self, driver: int | None = None) -> list[psutil.Process]:
        """Return the Python processes of executors: their daemons, and the workers below them."""
        return _pythons(self.executors())

    def _below(self) -> Iterator[psutil.Process]:
        for name, process in list(self._processes.items()):
            if name.startswith("worker"):
                yield from _children(process.pid)

    def log_of(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def wait(self, name: str, line: re.Pattern[str]) -> str:
        """Wait until a process has logged this, and return its first group."""
        end = time.monotonic() + PATIENCE
        while (found := line.search(text := self.log_of(name).read_text(errors="replace"))) is None:
            assert self._processes[name].poll() is None, text
            assert time.monotonic() < end, text
            time.sleep(0.05)
        return found[1]

    def variables(self, **more: str) -> dict[str, str]:
        """Return the environment of a driver. Its executors have one core and little memory each."""
        return variables(self.url, self.python, **more)

    def _start(self, name: str, program: str, *arguments: str, host: str = "127.0.0.1") -> None:
        self._launch(name, program, "--host", host, "--webui-port", "0", *arguments)

    def _launch(self, name: str, program: str, *arguments: str, python: str | None = None) -> None:
        home = _find_spark_home()
        kept = {key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR") if key in os.environ}
        variables = {
            **kept,
            "PATH": os.pathsep.join([str(self.programs), os.defpath]),
            "JAVA_HOME": self._java,
            "SPARK_HOME": home,
            "PYSPARK_PYTHON": python or str(self.python),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
            "SPARK_DAEMON_MEMORY": "512m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} -Dspark.master.rest.enabled=false -Dspark.worker.timeout=10",
        }
        program = f"org.apache.spark.deploy.{program}"
        with self.log_of(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [f"{home}/bin/spark-class", program, *arguments],
                cwd=self.directory, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def stop(self) -> None:
        """Kill all of its processes."""
        below = list(self._below())
        for process in self._processes.values():
            process.kill()
            process.wait()
        for one in below:
            try:
                one.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(below, timeout=PATIENCE)


class LocalCluster:
    """Spark's `local-cluster`: there is nothing to start, since a driver brings it along. It has two executors, too.

    Attributes:
        python: the Python of its executors.
    """

    url = "local-cluster[2,1,1024]"

    def __init__(self, directory: Path) -> None:
        self.python = python_of_nodes(directory)

    def variables(self, **more: str) -> dict[str, str]:
        """Return the environment of a driver."""
        return variables(self.url, self.python, **more)

    def executors(self, driver: int) -> list[psutil.Process]:
        """Return the executors that this driver has."""
        return _executors(_children(driver))

    def pythons(self, driver: int) -> list[psutil.Process]:
        """Return the Python processes of these executors."""
        return _pythons(self.executors(driver))


def variables(url: str, python: Path, **more: str) -> dict[str, str]:
    """Return the environment of a driver of a cluster. A name with dots is configuration."""
    ours = {
        "HEADRACE_SPARK_MASTER": url,
        "HEADRACE_SPARK_PYTHON": str(python),
        "HEADRACE_SPARK_CONF": ",".join([*(f"{key}={value}" for key, value in LITTLE.items()), *_pairs(more)]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return environment(**ours | {name: value for name, value in more.items() if not name.startswith("spark.")})


def _pairs(more: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in more.items() if name.startswith("spark.")]


def java_of(driver: int) -> list[psutil.Process]:
    """Return the Java of a driver. Others that it runs for a moment only say which they are."""
    return [one for one in _children(driver) if _DRIVER in _command(one)]


def _executors(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if _EXECUTOR in _command(one)]


def _pythons(executors: Iterable[psutil.Process]) -> list[psutil.Process]:
    found = [one for executor in executors for one in _children(executor.pid)]
    return [one for one in found if "pyspark.daemon" in _command(one)]


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def python_of_nodes(directory: Path, packages: tuple[str, ...] = ON_NODES) -> Path:
    """Make an environment with these packages alone, without copying them. Returns its Python."""
    venv.create(directory, symlinks=True)
    (place,) = directory.glob("lib/python*/site-packages")
    for name in dict.fromkeys(packages):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            found = Path(spec.origin)
            source = found.parent if found.name == "__init__.py" else found
            (place / source.name).symlink_to(source)
            if (libraries := source.with_name(f"{name}.libs")).exists():
                (place / libraries.name).symlink_to(libraries)
    return directory / "bin/python"


def another_python(directory: Path) -> Path:
    """Return a Python of another minor version: one that this machine has, or else this one, which says so of
    itself."""
    for minor in range(10, 20):
        path = shutil.which(f"python3.{minor}")
        if minor != sys.version_info.minor and path is not None and _says_version(path, f"3.{minor}"):
            return Path(path)
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(
        "import collections, platform, sys\n"
        "Version = collections.namedtuple('Version', 'major minor micro releaselevel serial')\n"
        "sys.version_info = Version(3, 99, 0, 'final', 0)\n"
        "platform.python_version = lambda: '3.99.0'\n"
    )
    return write_program(directory / "python", f'PYTHONPATH="{directory}:$PYTHONPATH" exec {sys.executable} "$@"')


def _says_version(path: str, version: str) -> bool:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    ended = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
    return ended.stdout.strip() == version


def write_program(path: Path, line: str) -> Path:
    """Write a program of one line for the shell."""
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


@contextmanager
def running_cluster(directory: Path) -> Iterator[Cluster]:
    """Run a cluster for the block."""
    cluster = Cluster(directory)
    try:
        yield cluster
    finally:
        cluster.stop()
