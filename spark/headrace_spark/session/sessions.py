"""The process's single Spark session, which is kept warm."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from headrace_spark.session import configuration, reach
from headrace_spark.session.errors import SparkMisconfigured, SparkUnavailable, extra
from headrace_spark.session.gateway import Gateway, launch, stopped, surroundings
from headrace_spark.session.java import find
from headrace_spark.session.settings import Resolved, SparkSettings, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE = 120.0  # seconds that a cluster has to accept an application
_STOPPING = 20.0  # seconds that a session has to stop. It may wait forever for a worker's Python
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
# These loggers write all that Java knows about a failed task, and the same error is also raised
# here.
_REPEAT_WHAT_IS_RAISED = (
    "org.apache.spark.api.python",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources",
    "org.apache.spark.sql.execution.python",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.util.Utils",
)


class _Current(msgspec.Struct):
    """The session and how it was made. `resolved` is None for a session that existed before."""

    spark: SparkSession
    resolved: Resolved | None = None
    gateway: Gateway | None = None


_lock = threading.RLock()
_current: _Current | None = None


def session(settings: SparkSettings | None = None, **conf: str) -> SparkSession:
    """Return the process's Spark session, with the data source `headrace` registered.

    The first call makes it, and it is kept. A session that the process already has, made by
    `SparkSession.builder` or by a notebook, is used unchanged.

    Args:
        settings: how to make it. What they leave out comes from the environment
            (`HEADRACE_SPARK_…`), from `[tool.headrace.spark]` in pyproject.toml, or from the
            defaults.
        conf: further Spark configuration, such as `**{"spark.driver.memory": "4g"}`.

    Raises:
        SparkUnavailable: Spark isn't installed, there is no Java, or the cluster or the Connect
            server can't be reached.
        SparkMisconfigured: a setting is invalid, or the session was made with other settings.
    """
    global _current
    with _lock:
        if _current is not None and not _alive(_current):
            stop()
        if _current is None:
            with extra():
                _current = _adopted() or _made(read(_given(settings, conf)))
                _hush()
        elif (settings is not None or conf) and _current.resolved is not None:
            _check_same(_current.resolved, read(_given(settings, conf)))
        return _current.spark


def started() -> bool:
    """Whether there is a live session, so that `session` would not make one."""
    with _lock:
        return _current is not None and _alive(_current)


def stop() -> None:
    """Stop the session and its Java process. The next call of `session` makes another one."""
    global _current
    with _lock:
        current, _current = _current, None
        if current is None or current.resolved is None:  # the session was made elsewhere
            return
        if current.gateway is not None:
            with current.gateway.given(_STOPPING):
                stopped(current.spark)
            current.gateway.end()
        else:
            stopped(current.spark)
            os.environ.pop(_CONNECT_MODE, None)
        shutil.rmtree(configuration.scratch(), ignore_errors=True)


def register(spark: SparkSession) -> None:
    """Register the data source `headrace` in a session that `session` didn't make.

    Both classic sessions and those of Spark Connect are supported.
    """
    # By name, since that package depends on this one, and imports go in one direction only.
    spark.dataSource.register(import_module("headrace_spark.source.format").HeadraceSource)


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is a Spark Connect session."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _given(settings: SparkSettings | None, conf: dict[str, str]) -> SparkSettings:
    settings = settings or SparkSettings()
    return msgspec.structs.replace(settings, conf=settings.conf | {key: str(value) for key, value in conf.items()})


def _check_same(made: Resolved, wanted: Resolved) -> None:
    if made.settings != wanted.settings:
        raise SparkMisconfigured(
            "This process has its Spark session already, made with other settings: give them at the first call of session(), or call stop() before."
        )


def _alive(current: _Current) -> bool:
    if current.gateway is not None and not current.gateway.alive:
        return False
    if is_connect(current.spark):
        return not getattr(current.spark, "is_stopped", False)
    return current.spark.sparkContext._jsc is not None


def _adopted() -> _Current | None:
    """The session that the process already has, or None."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    found: SparkSession | None = None
    if _CONNECT_MODE in os.environ:
        from pyspark.sql.connect.session import SparkSession as RemoteSession

        found = RemoteSession._get_default_session()  # type: ignore[assignment]
    elif SparkContext._active_spark_context is not None:
        found = SparkSession.builder.getOrCreate()
    if found is None:
        return None
    register(found)
    return _Current(found)


def _made(resolved: Resolved) -> _Current:
    made = (
        _on_a_master(resolved) if resolved.settings.remote is None else _on_a_server(resolved, resolved.settings.remote)
    )
    register(made.spark)
    return made


def _on_a_server(resolved: Resolved, remote: str) -> _Current:
    from pyspark.sql import SparkSession

    reach.server(remote)
    spark = SparkSession.builder.config(map={**configuration.of_a_server(resolved)}).remote(remote).getOrCreate()
    return _Current(spark, resolved)


def _on_a_master(resolved: Resolved) -> _Current:
    from pyspark.sql import SparkSession

    reach.cluster(resolved.master)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # set by spark-submit, which has started a Java process
    conf = configuration.configuration(resolved)
    variables = configuration.environment(resolved, None if submitted else find())
    with surroundings(variables), _own_interrupt():
        gateway = None if submitted else launch(conf)
        # A cluster that never answers is given up after a timeout.
        with contextlib.nullcontext() if gateway is None or resolved.local else gateway.given(_PATIENCE):
            try:
                spark = SparkSession.builder.config(map={**conf}).getOrCreate()
            except Exception as error:
                if gateway is not None:
                    gateway.end()
                raise SparkUnavailable(
                    f"Spark doesn't start with the master {resolved.master}: {_cause(error)}."
                ) from error
        if gateway is not None:
            gateway.listener.pass_on()
            if "spark.log.level" not in resolved.settings.conf:
                _hush_java(spark)
    return _Current(spark, resolved, gateway)


@contextlib.contextmanager
def _own_interrupt() -> Iterator[None]:
    """Keep the process's own SIGINT handler, which PySpark would replace.

    PySpark's handler cancels all jobs and raises `KeyboardInterrupt` in the main thread. A process
    that drains on Ctrl-C would then have nothing left to wait for. If the process has no handler of
    its own, as in a script or a notebook, PySpark's handler stays.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and before is not signal.default_int_handler:
            signal.signal(signal.SIGINT, before)


def _cause(error: Exception) -> str:
    """The root cause in one line, from the Java exception."""
    told = getattr(error, "java_exception", None)
    text = str(error)
    with contextlib.suppress(Exception):  # the process may be gone already
        while told is not None:
            text, told = told.getMessage() or told.toString(), told.getCause()
    return " ".join((text.strip().splitlines() or ["no reason is given"])[0].split()).rstrip(".")


def _hush() -> None:
    """Silence PySpark's JSON output about errors that it also raises, since it repeats them unreadably.

    Also silence py4j, which logs the traceback of a broken connection through the root logger.
    """
    logging.getLogger().addFilter(_of_others)
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def _of_others(record: logging.LogRecord) -> bool:
    return f"{os.sep}py4j{os.sep}" not in record.pathname


def _hush_java(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    log4j = jvm.org.apache.logging.log4j
    for name in _REPEAT_WHAT_IS_RAISED:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
