"""The process's one Spark session: it is created once, logs little, hides secrets, and ends with its process."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest

import headrace_spark
from headrace_spark.session import (
    SparkMisconfigured,
    SparkSettings,
    SparkUnavailable,
    fitness,
    is_connect,
    session,
    sessions,
    stop,
)
from headrace_spark.session import gateway as gateways
from headrace_spark.session.gateway import Listener, launch
from headrace_spark.session.settings import read
from tests.spark.processes import PATIENCE, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_package_is_there_without_pyspark_being_imported() -> None:
    program = "import sys, headrace_spark, headrace_spark.cli.group; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("name", headrace_spark.__all__)
def test_what_the_package_promises_is_there(name: str) -> None:
    assert callable(getattr(headrace_spark, name))


def test_where_pyspark_is_not_installed_a_sentence_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules.update(pyspark=None)\n"
        "import headrace_spark\n"
        "try: headrace_spark.session()\n"
        "except headrace_spark.SparkUnavailable as error: print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ended.stdout.endswith("Run pip install 'headrace[spark]'.\n")


def test_a_module_that_uses_spark_while_it_is_imported_is_told_what_to_write(tmp_path: Path) -> None:
    early = ("F.col('a')", "F.udf(abs, 'bigint')", "Window.partitionBy('key')", "StructType.fromDDL('a int')")
    for number, text in enumerate(early):
        imports = "from pyspark.sql import Window, functions as F\nfrom pyspark.sql.types import StructType\n"
        (tmp_path / f"early_{number}.py").write_text(f"{imports}\nearly = {text}\n")
    program = (
        "import sys\nfrom headrace.cli.processes.app_loader import load_app\n"
        "from headrace_spark.pipelines.functions import load_function\n"
        "for load in (load_app, load_function):\n"
        "    for number in range(4):\n"
        "        try: load(f'early_{number}:app')\n"
        "        except Exception as error: print(type(error).__name__, error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment()
    )
    lines = ended.stdout.splitlines()
    assert len(lines) == 2 * len(early)
    for number, line in enumerate(lines):
        name = f"early_{number % len(early)}"
        assert line.startswith(f"ConfigurationError The module {name!r} uses Spark while it is imported"), line
        assert f"{name}.py:4 in <module>" in line
        assert "inside the handler, and give functions a type such as LongType()" in line


def test_the_session_is_the_same_at_every_call(spark: SparkSession) -> None:
    assert session() is spark
    assert not is_connect(spark)
    with pytest.raises(SparkMisconfigured, match="already has a Spark session, with other settings"):
        session(SparkSettings(master="local[7]"))


def test_a_session_that_the_process_has_already_is_taken_as_it_is_and_left_alone(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_current", None)
    assert session(SparkSettings(master="local[7]")) is spark
    stop()
    assert spark.range(2).count() == 2


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "can't be run on this machine"),
        ({"python": "3.9.1"}, f"is 3.9.1, and that of this process {platform.python_version()}"),
        ({"headrace": None}, "lacks headrace"),
        ({"missing": ["pyarrow", "msgspec"]}, "lacks pyarrow, msgspec"),
    ],
)
def test_another_python_of_a_local_session_is_looked_at_before(
    tmp_path: Path, answer: dict[str, Any] | None, problem: str
) -> None:
    other = tmp_path / "python"
    own = {name: getattr(fitness.here(), name) for name in fitness.Python.__struct_fields__}
    other.write_text("#!/bin/sh\n" + ("exit 1" if answer is None else f"echo '{json.dumps(own | answer)}'"))
    other.chmod(0o755)
    resolved = read(SparkSettings(master="local[2]", python=str(other)), environment={}, directory=tmp_path)
    with pytest.raises(SparkUnavailable, match=f"{re.escape(problem)}.*Leave python .* out"):
        sessions._make(resolved)
    missing = read(SparkSettings(master="local[2]", python="no-python"), environment={}, directory=tmp_path)
    with pytest.raises(SparkUnavailable, match="The Python of local workers, no-python, does not exist"):
        sessions._make(missing)
    assert fitness.local_misfit(sys.executable, os.environ) is None


def test_a_session_has_the_data_source(spark: SparkSession) -> None:
    assert spark.read.format("headrace").option("stream", "orders").load().columns == [
        "key", "seq", "headers", "created_at", "data",
    ]  # fmt: skip


def test_passwords_are_not_shown_in_plans(spark: SparkSession) -> None:
    url = "postgresql://me:hunter2@host/db"
    literal = spark.range(1).selectExpr(f"'{url}' as url")
    read = spark.read.format("headrace").option("database", url).option("stream", "orders").load()
    plans = [one._jdf.queryExecution().toString() for one in (literal, read)]
    assert "postgresql://*********(redacted)@host" in plans[0]
    assert "hunter2" not in "".join(plans)


def _program() -> None:
    """The program of the process below. Lines on its standard input let it continue, and its output
    lines show its progress.
    """
    import signal
    import threading

    from pyspark import SparkContext

    from headrace_spark.session import session

    drains = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: drains.set())

    def report_event(**what: Any) -> None:
        print(json.dumps(what), flush=True)

    found: list[SparkSession] = []
    threads = [threading.Thread(target=lambda: found.append(session())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def failing(batches: Iterator[Any]) -> Iterator[Any]:
        raise ValueError("no good")
        yield from batches

    spark = found[0]
    errors = []
    for attempt in (
        lambda: spark.range(1).mapInArrow(failing, "id bigint").collect(),
        lambda: spark.sql("select nothing from range(1)"),
    ):
        try:
            attempt()
        except Exception as error:
            errors.append(type(error).__name__)
    gateway: Any = SparkContext._gateway
    report_event(same=found[0] is found[1], errors=errors, java=gateway.proc.pid)

    marks = Path.cwd()

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        (marks / "at work").touch()
        while not (marks / "go on").exists():
            time.sleep(0.02)
        yield from batches

    rows = spark.range(3).mapInArrow(slow, "id bigint").count()
    report_event(rows=rows, drains=drains.is_set())

    gateway.proc.kill()  # as the system does when memory runs out
    gateway.proc.wait()
    again = session()
    report_event(another=again is not spark, rows=again.range(4).count())

    def stop_with_errors(spark: Any) -> None:
        loggers = spark.sparkContext._jvm.org.apache.logging.log4j.LogManager
        loggers.getLogger("org.apache.spark.network.server.TransportRequestHandler").error("an executor is late")
        loggers.getLogger("org.apache.spark.scheduler.EventLoggingListener").error("the event log is lost")
        gateways.stop_session(spark)

    cast(Any, sessions).stop_session = stop_with_errors
    stop()
    last = session()
    gateway = SparkContext._gateway
    report_event(rows=last.range(5).count(), java=gateway.proc.pid)
    sys.stdin.readline()


@pytest.mark.long
def test_a_session_is_made_once_says_nothing_twice_outlives_ctrl_c_is_made_anew_and_dies_with_its_process(
    tmp_path: Path,
) -> None:
    """Everything runs in one process, since a session takes long to start."""
    errors = tmp_path / "errors"
    with (
        errors.open("wb") as sink,
        subprocess.Popen(
            [sys.executable, "-c", "from tests.spark.test_session import _program; _program()"],
            cwd=tmp_path, env=environment(PYTHONPATH=str(Path(__file__).parents[2])),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, start_new_session=True, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        try:
            output = json.loads(process.stdout.readline())
            assert (output["same"], output["errors"]) == (True, ["PythonException", "AnalysisException"])
            assert errors.read_text() == "", "what is raised is not printed as well"
            _await(tmp_path / "at work", process)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does it, to the whole process group
            (tmp_path / "go on").touch()
            assert json.loads(process.stdout.readline()) == {"rows": 3, "drains": True}
            assert json.loads(process.stdout.readline()) == {"another": True, "rows": 4}
            output = json.loads(process.stdout.readline())
            assert output["rows"] == 5
            (said,) = [line for line in errors.read_text().splitlines() if " ERROR " in line]
            assert said.endswith("EventLoggingListener: the event log is lost"), (
                "not what is usual while a session stops"
            )
            java = psutil.Process(output["java"])
            family = [java, *java.children(recursive=True)]
            process.kill()
            gone, left = psutil.wait_procs(family, timeout=PATIENCE)
            assert (len(gone), left) == (len(family), [])
        finally:
            process.kill()
    assert sorted(os.listdir(tmp_path)) == ["at work", "errors", "go on"]


def _await(mark: Path, process: subprocess.Popen[str]) -> None:
    """Poll until the workers have left their mark. Their files are their only way to report."""
    import time

    until = time.monotonic() + PATIENCE
    while not mark.exists():
        assert process.poll() is None, "the process ended"
        assert time.monotonic() < until, f"{mark} never came"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (
            'WARNING: Using incubator modules: x\nException in thread "main" org.apache.spark.SparkException: No such thing.\n\tat org.X.y(Z)\n',
            "No such thing",
        ),
        (
            "Invalid maximum heap size: -Xmx1x\nError: Could not create the Java Virtual Machine.\n",
            "Invalid maximum heap size: -Xmx1x",
        ),
        ("", "no reason is given"),
        (
            "26/11/27 00:03:23 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address.\n",
            "no reason is given",
        ),
    ],
)
def test_the_reason_why_java_does_not_start_is_reported(stderr: str, reason: str) -> None:
    source, sink = os.pipe()
    listener = Listener(source)
    listener.start()
    os.write(sink, stderr.encode())
    os.close(sink)
    listener.join(PATIENCE)
    assert listener.error_text() == reason


def test_a_spark_home_without_spark_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=r"Spark can't start: .*No such file or directory: .*spark-submit"):
        launch({})


def test_a_java_process_that_closes_no_connection_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Py4J waits for a thread that reads from a connection of Java's, and the thread for Java."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    for owner, name in (
        (SparkContext, "_gateway"), (SparkContext, "_jvm"), (SparkContext, "_active_spark_context"),
        (SparkSession, "_instantiatedSession"), (SparkSession, "_activeSession"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))  # those of the other tests' session, which it resets
    monkeypatch.setattr(gateways, "_END_TIMEOUT", 0.2)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.PIPE)

    class Java:
        proc = process

        def shutdown(self) -> None:
            process.wait()

    source, sink = os.pipe()
    os.close(sink)
    listener = gateways.Listener(source)
    listener.start()
    gateway = gateways.Gateway(cast(Any, Java()), listener)
    gateway.end()
    assert not gateway.alive


def test_a_java_process_that_ends_while_executors_are_asked_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    class Ended:
        alive = False

    monkeypatch.setattr(fitness, "of_executors", refused)
    with pytest.raises(SparkUnavailable, match="Java process of Spark ended during the start"):
        sessions._equip(sessions._Current(cast(Any, None), gateway=cast(Any, Ended())), [], 1.0)


SERVICE = """
from headrace import App
from headrace_spark import spark_consumer

app = App()


@spark_consumer(app, "orders")
def ship(df):
    pass
"""

GIVES_UP = 60.0
"""Seconds after which Spark itself gives up a master that does not answer."""


@pytest.mark.long
def test_a_stop_during_the_start_does_not_wait_for_a_master_that_never_answers(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SERVICE)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        where = {"HEADRACE_DATABASE": dsn, "HEADRACE_SPARK_MASTER": f"spark://127.0.0.1:{silent.getsockname()[1]}"}
        with subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", "run", "service:app"], cwd=tmp_path,
            env=environment(**where, HEADRACE_SPARK_START_TIMEOUT="1h"), stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                for _ in ("the look at the master", "Java"):
                    silent.accept()[0].close()
                process.terminate()
                _, said = process.communicate(timeout=GIVES_UP / 2)
            finally:
                process.kill()
    assert (process.returncode, "stopping during the start" in said) == (0, True), said
