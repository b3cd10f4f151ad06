"""The warm Spark session of an app: made before the first batch is leased, and stopped with the app.

If the session dies, during a job or between two, the app drains and ends with an error, since objects in the user's
modules, such as functions that were made by `udf`, belong to the dead session. A supervisor starts the process again.
Objects of Spark Connect belong to no session, so there another session is made.

Functions of the user prepare each session before the first batch, see `on_spark_session`.

It also reports the app's Spark jobs as statistics.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary, WeakMethod

import anyio
import anyio.to_thread

from headrace import App
from headrace.model.errors import ConfigurationError
from headrace.model.log import Log
from headrace.runtime.handlers.signature import is_async, name_of
from headrace_spark.handlers.failures import SparkGone
from headrace_spark.handlers.jobs import Job
from headrace_spark.session import SparkSettings, SparkUnavailable, is_connect, liveness, started, stop
from headrace_spark.session.sessions import interrupt_start, obtain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Hook = Callable[[SparkSession], object]

H = TypeVar("H", bound=Callable[..., object])

log = Log("headrace.spark")

_WATCH_INTERVAL = 1.0  # seconds between two looks at an idle session
_PY4J = logging.getLogger("py4j")
_IDLE = {"job": None, "rows": 0, "started": None, "stages": 0, "stages_done": 0, "tasks": 0, "tasks_done": 0}


class WarmSession:
    """The Spark session of one app, attached to the app beside its consumers.

    Args:
        stop_app: makes the app drain.

    Attributes:
        settings: the settings for a new session.
        jobs: the running job of each consumer, by the names of its stream and itself.
        lost: why the app ends, once its session has died.
    """

    def __init__(self, stop_app: Callable[[], object] = lambda: None) -> None:
        self.settings: SparkSettings | None = None
        self.jobs: dict[str, Job | None] = {}
        self.lost: SparkGone | None = None
        self._stop_app = stop_app
        self._drained = anyio.Event()
        self._spark: SparkSession | None = None
        self._prepare: list[Callable[[SparkSession], None]] = []
        self._hooks: list[Hook] = []
        self._hooked: SparkSession | None = None  # the session for which all hooks have returned
        self._making = threading.Lock()  # each consumer asks in a thread of its own

    def add(self, name: str, prepare: Callable[[SparkSession], None]) -> None:
        """Add a consumer. `prepare` is called once the session exists, before anything is leased."""
        self.jobs[name] = None
        self._prepare.append(prepare)

    def add_hook(self, hook: Hook) -> None:
        """Add a function that prepares each session. See `on_spark_session`."""
        self._hooks.append(hook)

    def session(self) -> SparkSession:
        """The session. One of Spark Connect that has died is made again, and prepared.

        Raises:
            SparkGone: another session than the app began with would be needed.
            SparkUnavailable: there is no session, and none can be made, or a hook failed.
        """
        with self._making:
            spark = self._obtained()
            try:
                self._run_hooks(spark)
            except Exception as error:
                if liveness.gone(spark):
                    stop()  # the next batch gets a new session
                raise SparkUnavailable(f"{error.__notes__[-1]} {type(error).__name__}: {error}") from error
            return spark

    def _obtained(self) -> SparkSession:
        if self._spark is not None and not is_connect(self._spark) and not started():
            self._note_end(self._spark)
        if self.lost is not None:
            raise self.lost
        self._spark = obtain(self.settings, {})
        return self._spark

    def _note_end(self, spark: SparkSession) -> None:
        self.note_death(SparkGone("The Spark session has ended, since its Java process or its cluster is gone."), spark)

    def note_death(self, error: SparkGone, spark: SparkSession) -> None:
        """Note that the session has died, or that objects of the user's modules belong to one that has.

        Args:
            spark: the session of the job. Over Spark Connect another consumer may have a new one already.
        """
        if self._spark is not None and is_connect(self._spark):
            if spark is self._spark:
                stop()  # the next batch gets a new session
        elif self.lost is None:
            self.lost = error

    def draining(self) -> bool:
        """Whether the app drains."""
        return self._drained.is_set()

    def end_app(self) -> None:
        """Make the app drain, since its session has died. Called on the event loop, maybe more than once."""
        if not self._drained.is_set():
            self._drained.set()
            hint = "the process ends, and its supervisor must start it again. A session can't be replaced under the objects of modules"
            log.error("spark session lost", error=self.lost, hint=hint)
            self._stop_app()

    async def lifespan(self) -> AsyncIterator[None]:
        """The app's lifespan.

        Raises:
            SparkUnavailable: there is no session, or it has died while the app ran.
            ConfigurationError: a schema is invalid.
        """
        started_here = not started()
        self.lost, self._spark, self._hooked, self._drained = None, None, None, anyio.Event()
        try:
            await self._started()
            yield
            if self.lost is not None:
                raise self.lost
        finally:
            if started_here:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(stop)

    def _run_hooks(self, spark: SparkSession) -> None:
        """Run the hooks, unless all have returned for this session. Errors are raised unchanged, with a note."""
        if self._hooked is spark:
            return
        for hook in self._hooks:
            try:
                hook(spark)
            except Exception as error:
                error.add_note(f"The hook {name_of(hook)!r} of the Spark session failed.")
                raise
        self._hooked = spark

    async def _started(self) -> None:
        """Make the session in a thread. A stop during the start, which cancels this, does not wait for the cluster."""
        try:
            await anyio.to_thread.run_sync(self._start, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(interrupt_start)
            raise

    def _start(self) -> None:
        if _PY4J.level == logging.NOTSET:  # it logs every connection that it closes
            _PY4J.setLevel(logging.WARNING)
        spark = self._obtained()
        self._run_hooks(spark)
        for prepare in self._prepare:
            prepare(spark)

    # --- the interface of a part that runs beside the consumers

    def app_statistics(self) -> Mapping[str, Any]:
        """The running job of each consumer, for `App.statistics`."""
        return {"spark": {name: dict(_IDLE) if job is None else job.statistics() for name, job in self.jobs.items()}}

    async def run(self, shared: Any) -> None:
        """Watch the session until the app drains."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            await self._drained.wait()
            group.cancel_scope.cancel()

    async def _watch(self) -> None:
        """End the app if the session dies between two jobs. Otherwise only the next batch would notice it.

        It counts as dead when two looks in a row found it so, since a look may fail for another reason. A Java process
        that is frozen does not answer, so the thread that asks is not waited for.
        """
        spark = self._spark
        if spark is None or is_connect(spark):
            return
        found_dead = 0
        while found_dead < 2:
            await anyio.sleep(_WATCH_INTERVAL)
            is_dead = await anyio.to_thread.run_sync(_is_dead, spark, abandon_on_cancel=True)
            found_dead = found_dead + 1 if is_dead else 0
        self._note_end(spark)
        self.end_app()

    def drain(self) -> None:
        """Note that the app drains, so that the end of the session doesn't stop its other handlers."""
        self._drained.set()

    def hurry(self) -> None:
        """Do nothing. There is nothing to end."""


def _is_dead(spark: SparkSession) -> bool:
    """Whether the session is dead. Its process is looked at first, since py4j logs each call that fails."""
    return not started() or liveness.gone(spark)


_warm_sessions: WeakKeyDictionary[App, WarmSession] = WeakKeyDictionary()


def warm_session_of(app: App) -> WarmSession:
    """The `WarmSession` of this app. The first call adds it to the app's lifespan."""
    warm_session = _warm_sessions.get(app)
    if warm_session is None:
        stop_app = WeakMethod(app.stop)
        warm_session = _warm_sessions[app] = WarmSession(lambda: (stop := stop_app()) and stop())
        app.lifespan(warm_session.lifespan)
        app.attach(warm_session)
    return warm_session


def on_spark_session(app: App) -> Callable[[H], H]:
    """Make a function a hook that prepares the Spark session of an app, before the first batch.

        @on_spark_session(app)
        def prepare(spark: SparkSession) -> None:
            spark.udf.register("in_cents", in_cents, "bigint")

    The hook is called in a thread when the app starts. If it raises, the app does not start, and the error is raised
    unchanged. A session of Spark Connect that is lost is replaced. Then the hook is called with the new session. If it
    raises there, the batches are released, no attempt counts, and the hook is called again after a delay. Several hooks
    run in the order of their declaration.

    Args:
        app: the app of the Spark consumers. A Spark session is started with it, if there is none.

    Raises:
        ConfigurationError: the first argument is not the app, or the function is not a plain one with one parameter.
    """

    def register(function: H) -> H:
        if not callable(function) or is_async(function) or not _takes_one(function):
            raise ConfigurationError(
                f"The hook {name_of(function)!r} of the Spark session must be a plain function that takes the session: def prepare(spark)."
            )
        warm_session_of(app).add_hook(function)
        return function

    if not isinstance(app, App):
        raise ConfigurationError(
            f"The first argument of @on_spark_session is {app!r:.80}, and must be the app. Write @on_spark_session(app)."
        )
    return register


def _takes_one(function: Callable[..., object]) -> bool:
    """Whether a function can be called with one argument, as far as its signature is known."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:
        return True
    return True
