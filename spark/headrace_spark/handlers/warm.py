"""One warm Spark session around an app's consumers: made before the first batch is leased, stopped with the app; and what its jobs tell."""

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
_IDLE = {
    "job": None, "rows": 0, "started": None, "stages": 0, "stages_done": 0, "tasks": 0, "tasks_done": 0,
}  # fmt: skip


class Warm:
    """The session of one app, which runs beside its consumers.

    Attributes:
        settings: how the session is made, if it has to be.
        jobs: what each consumer has at work now, by its stream and name.
    """

    def __init__(self) -> None:
        self.settings: SparkSettings | None = None
        self.jobs: dict[str, Job | None] = {}
        self._prepare: list[Callable[[SparkSession], None]] = []

    def add(self, name: str, prepare: Callable[[SparkSession], None]) -> None:
        """A consumer. `prepare` is called once the session is there, before anything is leased."""
        self.jobs[name] = None
        self._prepare.append(prepare)

    def session(self) -> SparkSession:
        """The session, made anew if it has died. Raises `SparkUnavailable`."""
        return session(self.settings)

    async def around(self) -> AsyncIterator[None]:
        """The app's lifespan. Raises `SparkUnavailable`, or `ConfigurationError` for a schema that can't be."""
        ours = not started()
        try:
            await anyio.to_thread.run_sync(self._begin)
            yield
        finally:
            if ours:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(stop)

    def _begin(self) -> None:
        if _PY4J.level == logging.NOTSET:  # it tells of every connection that it closes
            _PY4J.setLevel(logging.WARNING)
        spark = self.session()
        for prepare in self._prepare:
            prepare(spark)

    # --- what runs beside the consumers: nothing but what is told

    def tells(self) -> Mapping[str, Any]:
        """For `App.statistics`: by consumer, its job, if there is one at work."""
        return {"spark": {name: dict(_IDLE) if job is None else job.tells() for name, job in self.jobs.items()}}

    async def run(self, shared: Any) -> None:
        """There is nothing to run."""

    def drain(self) -> None:
        """There is nothing to end."""

    def hurry(self) -> None:
        """There is nothing to end."""

    def notified(self, stream_id: int) -> None:
        """Its consumers hear of it themselves."""

    def published(self, stream: str) -> None:
        """Its consumers hear of it themselves."""

    def hear(self, *, deaf: bool) -> None:
        """Its consumers hear of it themselves."""


_warm: WeakKeyDictionary[App, Warm] = WeakKeyDictionary()


def warm_of(app: App) -> Warm:
    """The one of this app, around it from now on."""
    found = _warm.get(app)
    if found is None:
        found = _warm[app] = Warm()
        app.lifespan(found.around)
        app.attach(found)
    return found
