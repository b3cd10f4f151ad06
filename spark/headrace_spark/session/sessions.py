"""The process's single Spark session, which is kept warm."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.errors import HeadraceError
from headrace.model.log import Log
from headrace_spark.session import configuration, fitness, reach, shipping
from headrace_spark.session.errors import SparkMisconfigured, SparkUnavailable, extra
from headrace_spark.session.gateway import Gateway, environment_variables, kill_all, launch, stop_session
from headrace_spark.session.java import find
from headrace_spark.session.liveness import is_connect, stopped
from headrace_spark.session.settings import Resolved, SparkSettings, is_local, read
from headrace_spark.session.silencing import (
    LOGGERS_OF_THE_CONNECTIONS,
    REDUNDANT_LOGGERS,
    logs_little,
    silence,
    silence_python_loggers,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = Log("headrace.spark")

_STOP_TIMEOUT = 20.0  # seconds that a session has to stop. It may wait forever for a worker's Python
_KILL_INTERVAL = 0.2  # seconds between attempts to kill a Java process that may not have begun
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"


class _Current(msgspec.Struct):
    """The session and how it was made.

    `resolved` is None for a session that existed before. `shipped` names what was sent to its
    executors, and `problem` is a sentence about what does not work in it. `lag` is the report of its streaming queries.
    """

    spark: SparkSession
    resolved: Resolved | None = None
    gateway: Gateway | None = None
    shipped: list[str] = []
    problem: str | None = None
    lag: Any = None  # a `LagReport`, which depends on this room


_lock = threading.RLock()
_current: _Current | None = None


def session(settings: SparkSettings | None = None, **conf: str) -> SparkSession:
    """Return the process's Spark session, with the data source `headrace` registered, and make it the active session of
    this thread. A thread that writes streams must call this or `register` first.

    The first call makes it, and it is kept. The lag of its streaming queries is reported, as `report_lag` does it,
    unless it is of Spark Connect. A session that the process already has, made by `SparkSession.builder` or by a
    notebook, is used unchanged.

    Args:
        settings: how to make it. Settings that they leave out come from the environment
            (`HEADRACE_SPARK_…`), from `[tool.headrace.spark]` in pyproject.toml, or from the
            defaults.
        conf: further Spark configuration, such as `**{"spark.driver.memory": "4g"}`.

    Raises:
        SparkUnavailable: Spark isn't installed, there is no Java, the cluster or the Connect server
            can't be reached, or its executors lack what they need.
        SparkMisconfigured: a setting is invalid, or the session was made with other settings.
    """
    with _lock:
        spark = obtain(settings, conf)
        assert _current is not None
        _report_lag(_current)
        return spark


def obtain(settings: SparkSettings | None, conf: dict[str, str]) -> SparkSession:
    """Return the session, as `session` does, for what runs no streaming queries."""
    global _current
    with _lock:
        if _current is not None and not _alive(_current):
            stop()
        if _current is None:
            with extra():
                _current = _existing_session(settings, conf) or _make(read(_merged(settings, conf)))
                silence_python_loggers()
        elif (settings is not None or conf) and _current.resolved is not None:
            _check_same(_current.resolved, read(_merged(settings, conf)))
        _activate(_current.spark)  # another thread may have made it
        return _current.spark


def started() -> bool:
    """Whether there is a live session, so that `session` would not make one."""
    with _lock:
        return _current is not None and _alive(_current)


def shipped() -> list[str]:
    """The names of the modules and packages that were sent to the session's executors."""
    with _lock:
        return [] if _current is None else _current.shipped


def problem() -> str | None:
    """The problem of the session, in a sentence, or None."""
    with _lock:
        return None if _current is None else _current.problem


def lacking(text: str) -> str | None:
    """The parts that the executors of a cluster lack, from Spark's message about a failed job, in a sentence.

    None if something else failed, or workers run on this machine and import what this process can.
    """
    with _lock:
        if _current is None or _is_local(_current.spark):
            return None
        return fitness.failed_start(text, whose(_current.spark))


def stop() -> None:
    """Stop the session and its Java process. The next call of `session` makes another one."""
    global _current
    with _lock:
        current, _current = _current, None
        if current is not None and current.resolved is not None:  # otherwise the session was made elsewhere
            _end(current)


def interrupt_start() -> None:
    """End the start of a session in another thread by killing its Java process, and wait until it has failed.

    A cluster that has no executor free is waited for as long as `start_timeout`. A start over Spark Connect has no Java
    process here, and is waited for.
    """
    while not _lock.acquire(timeout=_KILL_INTERVAL):
        kill_all()
    _lock.release()


def _report_lag(current: _Current) -> None:
    """Report the lag of a session that was made here, unless that is done. A report over Connect would ask the server
    all the time."""
    if current.resolved is None or current.lag is not None or is_connect(current.spark):
        return
    try:
        current.lag = import_module("headrace_spark.progress.listener").report_by_default(current.spark)
    except HeadraceError as error:
        log.warning("lag of streaming queries not reported", error=error)


def _end(current: _Current) -> None:
    if current.gateway is not None:
        with current.gateway.kill_after(_STOP_TIMEOUT):
            _end_lag(current)
            if logs_little(current.resolved):
                with contextlib.suppress(Exception):  # its process may be gone
                    silence(current.spark, LOGGERS_OF_THE_CONNECTIONS)
            stop_session(current.spark)
        current.gateway.end()
    else:
        _end_lag(current)
        if is_connect(current.spark):
            _stop_waiting(current.spark)
        stop_session(current.spark)
        os.environ.pop(_CONNECT_MODE, None)
    configuration.remove_scratch()


def _stop_waiting(spark: Any) -> None:
    """Let a session of Spark Connect be released by one short call.

    Its client would try for ten minutes while no server answers.
    """
    spark.client.set_retry_policies([])
    deadlines = spark.client._rpc_deadlines
    spark.client._rpc_deadlines = replace(deadlines, release_session=_STOP_TIMEOUT)


def _end_lag(current: _Current) -> None:
    if current.lag is not None:
        with contextlib.suppress(Exception):  # its process may be gone
            current.lag.stop()


def register(spark: SparkSession) -> None:
    """Register the data source `headrace` in a session that `session` didn't make, and make it the active session of
    this thread.

    Both classic sessions and those of Spark Connect are supported.
    """
    # By name, since that package depends on this one, and imports go in one direction only.
    spark.dataSource.register(import_module("headrace_spark.source.format").HeadraceSource)
    _activate(spark)


def _activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread.

    For a write, Spark looks up data sources in Python only in the active session of the thread. That is the session
    that the thread has made, or none.
    """
    if not is_connect(spark):
        jvm: Any = spark._jvm
        jvm.SparkSession.setActiveSession(spark._jsparkSession)


def _merged(settings: SparkSettings | None, conf: dict[str, str]) -> SparkSettings:
    settings = settings or SparkSettings()
    return msgspec.structs.replace(settings, conf=settings.conf | {key: str(value) for key, value in conf.items()})


def _check_same(made: Resolved, wanted: Resolved) -> None:
    if made.settings != wanted.settings:
        raise SparkMisconfigured(
            "This process already has a Spark session, with other settings. Give the settings at the first call of session(), or call stop() first."
        )


def _alive(current: _Current) -> bool:
    return (current.gateway is None or current.gateway.alive) and not stopped(current.spark)


def _existing_session(settings: SparkSettings | None, conf: dict[str, str]) -> _Current | None:
    """The session that the process already has, or None. Code is sent to its executors if that is set."""
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
    current = _Current(found)
    wanted = read(_merged(settings, conf))
    if wanted.settings.ship and not _is_local(found):
        _equip(current, wanted.settings.ship, wanted.start_timeout)
    register(found)
    return current


def _is_local(spark: SparkSession) -> bool:
    return not is_connect(spark) and is_local(str(spark.sparkContext.master))


def _make(resolved: Resolved) -> _Current:
    began = time.monotonic()
    if not resolved.local:
        shipping.gather(resolved.settings.ship)  # an entry that is wrong is reported before anything starts
    elif (python := resolved.settings.python) is not None:
        variables = {**os.environ, **configuration.environment(resolved, None)}
        if (problem := fitness.local_misfit(python, variables)) is not None:
            raise SparkUnavailable(problem)
    made = (
        _master_session(resolved)
        if resolved.settings.remote is None
        else _connect_session(resolved, resolved.settings.remote)
    )
    try:
        if not resolved.local:
            left = resolved.start_timeout - (time.monotonic() - began)
            _equip(made, resolved.settings.ship, max(left, 1.0))
        register(made.spark)
    except BaseException:
        _end(made)
        raise
    return made


def _equip(current: _Current, ship: Sequence[str], wait: float) -> None:
    """Check that the executors fit this process, and send them code if `ship` names some. The first of them has `wait`
    seconds to be there.

    Raises:
        SparkUnavailable: something does not fit. The message says what would be right.
    """
    spark, shipped = current.spark, bool(ship)
    try:
        executors = fitness.of_executors(spark, wait)
    except SparkUnavailable:
        raise
    except Exception as error:
        if current.gateway is not None and not current.gateway.alive:
            raise SparkUnavailable("The Java process of Spark ended during the start.") from error
        raise SparkUnavailable(fitness.reason_of(error, whose(spark))) from error
    where = "on the Connect server" if is_connect(spark) else "on an executor"
    for found in executors:
        if (problem := fitness.misfit(found, where=where, shipped=shipped)) is not None:
            raise SparkUnavailable(problem)
    if (
        not is_connect(spark)
        and (problem := fitness.planner_misfit(spark.sparkContext.pythonExec, shipped)) is not None
    ):
        # Handlers work without it.
        current.problem = problem
        log.warning("streams can't be read or written", error=problem)
    if shipped:
        same_kind = all(found.tag == fitness.here().tag for found in executors)
        shipment = shipping.gather(ship, packages=same_kind)
        size = shipping.send(spark, shipment, configuration.scratch() / "shipped")
        current.shipped = sorted(name for name in shipment.parts if name.isidentifier())
        log.info("code shipped", modules=",".join(current.shipped), bytes=size)


def whose(spark: SparkSession) -> str:
    """Whose Python runs functions, for messages."""
    return "The Connect server's" if is_connect(spark) else "The executors'"


def _connect_session(resolved: Resolved, remote: str) -> _Current:
    from pyspark.sql import SparkSession

    reach.check_server(remote, answer_timeout=resolved.start_timeout)
    spark = (
        SparkSession.builder.config(map={**configuration.connect_configuration(resolved)}).remote(remote).getOrCreate()
    )
    return _Current(spark, resolved)


def _master_session(resolved: Resolved) -> _Current:
    from pyspark.sql import SparkSession

    reach.check_cluster(resolved.master)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # set by spark-submit, which has started a Java process
    conf = configuration.configuration(resolved)
    variables = configuration.environment(resolved, None if submitted else find())
    with environment_variables(variables), _keep_sigint_handler():
        gateway = None if submitted else launch(conf)
        # A cluster that never answers is given up after a timeout.
        limit = resolved.start_timeout
        never = contextlib.nullcontext(threading.Event())
        with never if gateway is None or resolved.local else gateway.kill_after(limit) as over:
            try:
                spark = SparkSession.builder.config(map={**conf}).getOrCreate()
            except Exception as error:
                if gateway is not None:
                    gateway.end()
                if over.is_set():
                    raise SparkUnavailable(
                        f"The Spark master {resolved.master} did not start the application within {limit:g} s:"
                        f" {reach.state_of_master(resolved.master)}. Free some of its resources, or raise start_timeout"
                        " (HEADRACE_SPARK_START_TIMEOUT)."
                    ) from error
                raise SparkUnavailable(
                    f"Spark can't start with the master {resolved.master}: {_cause(error)}."
                ) from error
        if gateway is not None:
            gateway.listener.pass_on()
            if logs_little(resolved):
                silence(spark, REDUNDANT_LOGGERS)
    return _Current(spark, resolved, gateway)


@contextlib.contextmanager
def _keep_sigint_handler() -> Iterator[None]:
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
    exception = getattr(error, "java_exception", None)
    text = str(error)
    with contextlib.suppress(Exception):  # the process may be gone already
        while exception is not None:
            text, exception = exception.getMessage() or exception.toString(), exception.getCause()
    return " ".join((text.strip().splitlines() or ["no reason is given"])[0].split()).rstrip(".")
