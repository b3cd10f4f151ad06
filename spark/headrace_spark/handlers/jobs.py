"""Runs a Spark job in a separate thread: starts it, watches its progress, and cancels it.

    await run(job, work) ──▶ a thread: session ──▶ group or tag ──▶ work(spark) ──▶ result
         │
         ├── every second: looks at the progress, for the log and for statistics, and checks the leases
         └── cancelled: cancels the group and its future jobs, and waits for the thread. At the end of a drain it waits for
             a moment only, since the batch must be released before the process is killed

A session in this process's own Java process has job groups. Spark Connect tags operations instead.
An interrupt by tag reaches only the operations that already run, so it is repeated until the thread
has ended.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import anyio
import anyio.to_thread

from headrace.model.errors import HeadraceError
from headrace.model.log import Log
from headrace_spark.session import is_connect

if TYPE_CHECKING:
    from pyspark import SparkStageInfo, StatusTracker
    from pyspark.sql import SparkSession

log = Log("headrace.spark")

T = TypeVar("T")

PROGRESS_INTERVAL = 1.0
"""Interval in seconds between two looks at a running job."""

CANCEL_INTERVAL = 0.5
"""Interval in seconds between two attempts to cancel a job that still runs."""


CANCEL_TIMEOUT = 2.0
"""Seconds that a cancelled job has to end while the app drains. A drain waits 3 s for the handlers that it has stopped."""


class Cancelled(HeadraceError):
    """The job was cancelled before it began."""


class Job:
    """One call of a Spark handler.

    Attributes:
        name: the consumer's full name.
        rows: number of messages in its batch.
        group: the job group, or the tag, of all the Spark work of this call.
        started: start time in seconds since the epoch.
        stages, stages_done, tasks, tasks_done: counts of what Spark has planned so far, as of the
            last look.
        abandoned: whether its batch was released although its thread has not ended.
    """

    def __init__(self, name: str, rows: int) -> None:
        self.name = name
        self.rows = rows
        self.group = f"headrace-{name}-{uuid4()}"
        self.started = time.time()
        self.stages = self.stages_done = self.tasks = self.tasks_done = 0
        self.abandoned = False
        self._spark: SparkSession | None = None
        self._cancelled = False
        self._cancelling = Lock()

    # --- called in the job's thread

    def call(self, make_session: Callable[[], SparkSession], work: Callable[[SparkSession], T]) -> T:
        """Do the work, with all of its Spark jobs in the group."""
        spark = make_session()
        self._enter(spark)
        self._spark = spark
        try:
            if self._cancelled:
                raise Cancelled(f"The job of {self.name} was cancelled before it began.")
            return work(spark)
        finally:
            with contextlib.suppress(Exception):  # the thread is reused, and a session that is gone has no groups
                self._leave(spark)

    def _enter(self, spark: SparkSession) -> None:
        if is_connect(spark):
            spark.addTag(self.group)
        else:
            description = f"{self.name}: {self.rows} messages"
            spark.sparkContext.setJobGroup(self.group, description, interruptOnCancel=True)

    def _leave(self, spark: SparkSession) -> None:
        if is_connect(spark):
            spark.removeTag(self.group)
            return
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]

    # --- called from other threads

    def cancel(self) -> None:
        """Cancel all Spark jobs of this call. Errors of a session that is gone are ignored.

        While a session does not answer an earlier call, nothing is done. Each call would hold a thread.
        """
        self._cancelled = True
        spark = self._spark
        if spark is None or not self._cancelling.acquire(blocking=False):
            return
        try:
            with contextlib.suppress(Exception):
                if is_connect(spark):
                    spark.interruptTag(self.group)
                else:
                    spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(self.group)
        finally:
            self._cancelling.release()

    def read_progress(self) -> None:
        """Read the progress from Spark. Spark Connect does not report it."""
        spark = self._spark
        if spark is None or is_connect(spark):
            return
        with contextlib.suppress(Exception):
            stages = _stages(spark.sparkContext.statusTracker(), self.group)
            begun = [stage for stage in stages if stage is not None]
            self.stages = len(stages)
            self.tasks = sum(stage.numTasks for stage in begun)
            self.tasks_done = sum(stage.numCompletedTasks for stage in begun)
            self.stages_done = sum(stage.numCompletedTasks >= stage.numTasks > 0 for stage in begun)

    def statistics(self) -> dict[str, Any]:
        """The state of the job, for statistics."""
        return {"job": self.group, "rows": self.rows, "started": self.started, **self._progress()}

    def _progress(self) -> dict[str, int]:
        done = {"stages_done": self.stages_done, "tasks_done": self.tasks_done}
        return {"stages": self.stages, "tasks": self.tasks, **done}

    def log_progress(self) -> None:
        """Log how far the job is."""
        seconds = round(time.time() - self.started)
        log.info("spark job running", consumer=self.name, messages=self.rows, seconds=seconds, **self._progress())


def _stages(tracker: StatusTracker, group: str) -> list[SparkStageInfo | None]:
    """The stages of a group's jobs, but for those that Spark has skipped, because an earlier job had done their work. None for
    a stage that Spark has not begun."""
    found: dict[int, SparkStageInfo | None] = {}
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group)]
    for job in [job for job in jobs if job is not None]:
        for number in job.stageIds:
            stage = tracker.getStageInfo(number)
            if job.status != "SUCCEEDED" or (stage is not None and stage.numCompletedTasks):
                found[number] = stage
    return list(found.values())


async def run(
    job: Job,
    work: Callable[[], T],
    *,
    threads: anyio.CapacityLimiter,
    log_every: float,
    check: Callable[[], None],
    draining: Callable[[], bool] = lambda: False,
) -> T:
    """Do the work in a thread, and wait until the thread has ended, even when cancelled.

    Args:
        work: a function that calls `Job.call`.
        threads: the limiter of the thread.
        log_every: interval in seconds between two log lines about a long job.
        check: called every second. If it raises, the job is cancelled and the error is raised.
        draining: whether the app drains. Then a thread that has not ended `CANCEL_TIMEOUT` seconds after it was cancelled
            is abandoned.

    Returns:
        The result of the work. Raises what the work raised.
    """
    ended = anyio.Event()
    results: list[T] = []
    errors: list[BaseException] = []
    waiting = anyio.CancelScope(shield=True)

    async def in_thread() -> None:
        try:
            with waiting:
                results.append(await anyio.to_thread.run_sync(work, limiter=threads, abandon_on_cancel=True))
        except Exception as error:
            errors.append(error)
        finally:
            ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(in_thread)
        try:
            await _watch(job, ended, log_every, check)
        except BaseException as stopped:
            await _stop(job, ended, draining)
            waiting.cancel()  # if the thread has not ended
            if isinstance(stopped, Exception):
                errors[:] = [stopped]
            else:
                raise
    if errors:
        raise errors[0]
    return results[0]


async def _watch(job: Job, ended: anyio.Event, log_every: float, check: Callable[[], None]) -> None:
    logged_at = time.monotonic()
    while not ended.is_set():
        with anyio.move_on_after(min(PROGRESS_INTERVAL, log_every)):
            await ended.wait()
            return
        check()
        await anyio.to_thread.run_sync(job.read_progress, abandon_on_cancel=True)  # a session may not answer
        if time.monotonic() - logged_at >= log_every and not ended.is_set():
            logged_at = time.monotonic()
            job.log_progress()


async def _stop(job: Job, ended: anyio.Event, draining: Callable[[], bool]) -> None:
    """Cancel the job, and wait for its thread, since a batch must not be processed twice at a time.

    While the app drains, the wait is short. Work in this process can't be cancelled, and a session may not answer.
    """
    began, threads = anyio.current_time(), anyio.CapacityLimiter(1)
    with anyio.CancelScope(shield=True):
        while not ended.is_set():
            with anyio.move_on_after(CANCEL_INTERVAL):
                await anyio.to_thread.run_sync(job.cancel, limiter=threads, abandon_on_cancel=True)
                await ended.wait()
            if not ended.is_set() and draining() and anyio.current_time() - began >= CANCEL_TIMEOUT:
                job.abandoned = True
                hint = "its batch is released, and nothing of it will be published. Work outside of Spark's jobs can't be cancelled"
                log.warning("spark job not cancelled", consumer=job.name, seconds=CANCEL_TIMEOUT, hint=hint)
                return
