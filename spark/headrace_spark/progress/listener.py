"""Follows the streaming queries of a session, and reports their lag in the log and as OpenTelemetry metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import anyio
import msgspec
from pyspark.sql.streaming.listener import StreamingQueryListener

from headrace.app import settings
from headrace.model.durations import seconds
from headrace.model.log import Log
from headrace.telemetry import Telemetry
from headrace_spark.progress.lag import lags
from headrace_spark.session.liveness import is_connect, stopped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

    from headrace.telemetry.instrumentation import Instrumentation

log = Log("headrace.spark")

_INTERVAL = 1.0  # seconds between two questions to a Connect server
_STOP_TIMEOUT = 5.0  # seconds that the last one is waited for. A server may be gone


class LagListener(StreamingQueryListener):
    """Keeps the last progress of each running query that reads streams.

    Args:
        log_every: seconds between two log lines of a query.
        clock: seconds, monotonic.
        ended: whether the session was stopped. Then no query of it reports its end.
    """

    def __init__(
        self,
        log_every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self._log_every = log_every
        self._clock = clock
        self._ended = ended
        self._lock = Lock()
        self._queries: dict[str, dict[str, Any]] = {}
        self._logged: dict[str, float] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """A query has started. It counts from its first progress on."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Keep what a query reports of its streams."""
        self.keep(event.progress)

    def keep(self, progress: StreamingQueryProgress) -> None:
        """Keep the lag of the streams in a progress report, and log it if that is due."""
        found = [lag for source in progress.sources for lag in lags(source)]
        if not found:
            return
        run, name = str(progress.runId), progress.name or str(progress.id)
        now = self._clock()
        with self._lock:
            self._queries[run] = {"name": name, "streams": [msgspec.to_builtins(one) for one in found]}
            due = now - self._logged.get(run, float("-inf")) >= self._log_every
            if due:
                self._logged[run] = now
        if due:
            for one in found:
                log.info(
                    "streaming query",
                    query=name,
                    stream=one.stream,
                    seq=one.position,
                    lag=one.lag,
                    arriving=round(one.input_rate, 1),
                    processed=round(one.processed_rate, 1),
                )

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """A query waits for news. Its last report still counts."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Forget a query that has ended."""
        self.forget({str(event.runId)})

    def forget(self, runs: set[str]) -> None:
        """Forget queries by the ids of their runs."""
        with self._lock:
            for run in runs:
                self._queries.pop(run, None)
                self._logged.pop(run, None)

    def forget_all(self) -> None:
        """Forget all queries, because no report of theirs arrives any more."""
        with self._lock:
            self._queries.clear()
            self._logged.clear()

    def statistics(self) -> dict[str, Any]:
        """The last report of each running query: its name, and of each of its streams the position, the lag and the rates."""
        if self._queries and self._ended():
            self.forget_all()
        with self._lock:
            return {"queries": dict(self._queries)}


class _Poller:
    """Asks a Connect server for the progress of a session's queries, until it is stopped or the session is.

    A listener would not do. Over Connect, that of PySpark 4.3 can get no events after it was added, and can wait forever when
    it is removed, and a process doesn't end while one is registered.
    """

    def __init__(self, spark: Any, listener: LagListener) -> None:
        self._spark = spark
        self._listener = listener
        self._stopped = Event()
        self._seen: dict[str, str] = {}
        self._thread = Thread(target=self._run, name="headrace-spark-lag", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(_INTERVAL) and not self._spark.is_stopped:
            try:
                self._ask()
            except Exception:  # the next question may be answered. The answer before is no longer current
                self._seen = {}
                self._listener.forget_all()

    def _ask(self) -> None:
        last = {str(query.runId): query.lastProgress for query in self._spark.streams.active}
        self._listener.forget(self._seen.keys() - last.keys())
        reports = {run: progress for run, progress in last.items() if progress is not None}
        for run, progress in reports.items():
            if self._seen.get(run) != progress.timestamp:  # an idle query has the same one again
                self._listener.keep(progress)
        self._seen = {run: progress.timestamp for run, progress in reports.items()}

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(_STOP_TIMEOUT)


class LagReport:
    """The report of a session's lag, until it is stopped."""

    def __init__(
        self, spark: SparkSession, listener: LagListener, instrumentation: Instrumentation | None = None
    ) -> None:
        self._leave: Callable[[], None] | None
        if is_connect(spark):
            self._leave = _Poller(spark, listener).stop
        else:
            spark.streams.addListener(listener)
            self._leave = partial(spark.streams.removeListener, listener)
        self._listener = listener
        self._instrumentation = instrumentation

    def statistics(self) -> dict[str, Any]:
        """The last report of each running query. See `LagListener.statistics`."""
        return self._listener.statistics()

    def stop(self) -> None:
        """Stop listening, and send the metrics that are left. A second call does nothing."""
        leave, self._leave = self._leave, None
        if leave is None:
            return
        try:
            leave()
        finally:
            _stop(self._instrumentation)
            self._listener.forget_all()


def _stop(instrumentation: Instrumentation | None) -> None:
    if instrumentation is not None:
        # In a thread of its own, since an event loop may run in this one.
        thread = Thread(target=anyio.run, args=(instrumentation.stop,), name="headrace-spark-lag")
        thread.start()
        thread.join()


_by_default: WeakKeyDictionary[SparkSession, LagReport] = WeakKeyDictionary()


def report_by_default(spark: SparkSession) -> LagReport:
    """Report the lag of a session until `report_lag` does it in another way. See `report_lag`."""
    report = _by_default[spark] = report_lag(spark)
    return report


def report_lag(
    spark: SparkSession, *, telemetry: Telemetry | str | bool | None = None, log_every: str | float = "10s"
) -> LagReport:
    """Report how far the session's streaming queries lag behind their streams, in the log and as metrics.

    A session that `session` has made, and that is not of Spark Connect, reports it by default. This report then takes the
    place of that one. A Connect server is asked once a second, so a query that ends sooner is not seen.

    The metrics are `headrace.spark.query.lag`, `headrace.spark.query.input_rate` and `headrace.spark.query.processed_rate`. They
    are as of the last progress that Spark reported, which it does after each micro-batch. A query with the option `consumer` has
    a live lag too, in the metrics of that consumer.

    Args:
        spark: the session, on a master or of Spark Connect.
        telemetry: where metrics go, as for `App`. By default the setting counts (`HEADRACE_TELEMETRY`).
        log_every: interval between two log lines of a query, as seconds or text such as "10s".

    Returns:
        The report. Its `stop` ends it, and it ends with the process or the session.

    Raises:
        ConfigurationError: a setting or `log_every` is invalid, or OpenTelemetry is not installed.
    """
    if (earlier := _by_default.pop(spark, None)) is not None:
        earlier.stop()
    wanted = Telemetry.of(settings.read({}).telemetry if telemetry is None else telemetry)
    listener = LagListener(seconds(log_every, "log_every"), ended=partial(stopped, spark))
    instrumentation = None
    if wanted is not None:
        from headrace.telemetry.starting import start  # not imported while telemetry is off

        instrumentation = start(wanted, listener.statistics)
    try:
        return LagReport(spark, listener, instrumentation)
    except BaseException:
        _stop(instrumentation)
        raise
