"""The warm Spark session of an app: made before the first batch is leased, and stopped with the app.

It also reports the app's Spark jobs as statistics.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread

from headrace import App
from headrace_spark.handlers.jobs import Job
from headrace_spark.session import SparkSettings, session, started, stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PY4J = logging.getLogger("py4j")
_IDLE = {"job": None, "rows": 0, "started": None, "stages": 0, "stages_done": 0, "tasks": 0, "tasks_done": 0}


class WarmSession:
    """The Spark session of one app, attached to the app beside its consumers.

    Attributes:
        settings: the settings for a new session.
        jobs: the running job of each consumer, by the names of its stream and itself.
    """

    def __init__(self) -> None:
        self.settings: SparkSettings | None = None
        self.jobs: dict[str, Job | None] = {}
        self._prepare: list[Callable[[SparkSession], None]] = []

    def add(self, name: str, prepare: Callable[[SparkSession], None]) -> None:
        """Add a consumer. `prepare` is called once the session exists, before anything is leased."""
        self.jobs[name] = None
        self._prepare.append(prepare)

    def session(self) -> SparkSession:
        """The session, made again if it has died. Raises `SparkUnavailable`."""
        return session(self.settings)

    async def lifespan(self) -> AsyncIterator[None]:
        """The app's lifespan. Raises `SparkUnavailable`, or `ConfigurationError` for an invalid schema."""
        started_here = not started()
        try:
            await anyio.to_thread.run_sync(self._start)
            yield
        finally:
            if started_here:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(stop)

    def _start(self) -> None:
        if _PY4J.level == logging.NOTSET:  # it logs every connection that it closes
            _PY4J.setLevel(logging.WARNING)
        spark = self.session()
        for prepare in self._prepare:
            prepare(spark)

    # --- the interface of a part that runs beside the consumers. Only the statistics do anything

    def app_statistics(self) -> Mapping[str, Any]:
        """The running job of each consumer, for `App.statistics`."""
        return {"spark": {name: dict(_IDLE) if job is None else job.statistics() for name, job in self.jobs.items()}}

    async def run(self, shared: Any) -> None:
        """Do nothing. There is nothing to run."""

    def drain(self) -> None:
        """Do nothing. There is nothing to end."""

    def hurry(self) -> None:
        """Do nothing. There is nothing to end."""


_warm_sessions: WeakKeyDictionary[App, WarmSession] = WeakKeyDictionary()


def warm_session_of(app: App) -> WarmSession:
    """The `WarmSession` of this app. The first call adds it to the app's lifespan."""
    warm_session = _warm_sessions.get(app)
    if warm_session is None:
        warm_session = _warm_sessions[app] = WarmSession()
        app.lifespan(warm_session.lifespan)
        app.attach(warm_session)
    return warm_session
