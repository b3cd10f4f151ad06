"""The process's one warm Spark session."""

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

_PATIENCE = 120.0  # seconds that a cluster has to take an application in
_STOPPING = 20.0  # seconds that a session has to stop: it may wait for ever for a worker's Python
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
# Of a task that fails they tell all that Java knows, and then it is raised here, too.
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
    """The session, with what it was made by; `resolved` is None for one that was there before us."""

    spark: SparkSession
    resolved: Resolved | None = None
    gateway: Gateway | None = None


_lock = threading.RLock()
_current: _Current | None = None


def session(settings: SparkSettings | None = None, **conf: str) -> SparkSession:
    """The process's one Spark session, with the data source `headrace` registered. It is made at the first call, and kept warm.

    A session that the process has already, made by `SparkSession.builder` or given by a notebook, is taken as it is.

    Args:
        settings: how to make it; what they leave out, the environment (`HEADRACE_SPARK_…`), `[tool.headrace.spark]` in
            pyproject.toml and the defaults say.
        conf: more of Spark's own configuration, such as `**{"spark.driver.memory": "4g"}`.

    Raises:
        SparkUnavailable: Spark isn't installed, there is no Java, or the cluster or the Connect server can't be reached.
        SparkMisconfigured: a setting that can't be; or settings other than those that the session was made with.
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
    """Whether `session` has a session, so that it would not make one."""
    with _lock:
        return _current is not None and _alive(_current)


def stop() -> None:
    """Stop the session, and the Java process that it runs in. The next call of `session` makes another one."""
    global _current
    with _lock:
        current, _current = _current, None
        if current is None or current.resolved is None:  # it is somebody else's
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
    """Make the data source `headrace` known to a session that `session` didn't make. Both classic ones and those of Spark Connect will do."""
    # By name: it lives on a floor above, where import goes down only.
    spark.dataSource.register(import_module("headrace_spark.source.format").HeadraceSource)


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect."""
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
    """The session that the process has already, if it has one."""
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
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, which has started a Java process
    conf = configuration.configuration(resolved)
    variables = configuration.environment(resolved, None if submitted else find())
    with surroundings(variables), _own_interrupt():
        gateway = None if submitted else launch(conf)
        # A cluster that never answers is given up after a while.
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
    """Whoever has taken Ctrl-C into his own hands, keeps it.

    PySpark makes of it that all jobs are cancelled and a `KeyboardInterrupt` is raised wherever the main thread is; a process that
    drains on Ctrl-C would have nothing left to wait for. Where nobody has, as in a script or a notebook, that is just right.
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
    """What Java says was the cause, in a line."""
    told = getattr(error, "java_exception", None)
    text = str(error)
    with contextlib.suppress(Exception):  # of a process that may be gone already
        while told is not None:
            text, told = told.getMessage() or told.toString(), told.getCause()
    return " ".join((text.strip().splitlines() or ["no reason is given"])[0].split()).rstrip(".")


def _hush() -> None:
    """PySpark prints JSON about errors that it raises as well: to whoever reads standard error that is twice, and once unreadable.

    And py4j, in the name of the root logger, logs the traceback of a connection that breaks.
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
