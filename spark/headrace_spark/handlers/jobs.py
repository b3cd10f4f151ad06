"""A Spark job in a thread of its own: begun, watched, and cancelled.

    await run(job, work) ──▶ a thread: session ──▶ group or tag ──▶ work(spark) ──▶ result
         │
         ├── every so often: how far it is, for the log and for who asks; and are its leases still ours?
         └── cancelled: the group is cancelled, the jobs to come with it, and the thread is waited for

A session in this process's own Java has job groups; of Spark Connect the operations bear a tag, and a tag can only interrupt what runs already: so it
is said again until the thread has ended.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import anyio
import anyio.to_thread

from headrace.model.errors import HeadraceError
from headrace_spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("headrace.spark")

T = TypeVar("T")

LOOK = 1.0
"""Seconds from one look at a running job to the next."""

AGAIN = 0.5
"""Seconds after which a cancelled job that still runs is cancelled again."""


class Cancelled(HeadraceError):
    """A job was cancelled before it began."""


class Job:
    """One call of a handler.

    Attributes:
        name: the consumer's full name.
        rows: messages in its batch.
        group: the job group, or the tag, of all that Spark does for it.
        started: when it began, in seconds since the epoch.
        stages, stages_done, tasks, tasks_done: as far as Spark has planned them, when that was last looked at.
    """

    def __init__(self, name: str, rows: int) -> None:
        self.name = name
        self.rows = rows
        self.group = f"headrace-{name}-{uuid4()}"
        self.started = time.time()
        self.stages = self.stages_done = self.tasks = self.tasks_done = 0
        self._spark: SparkSession | None = None
        self._cancelled = False

    # --- in its thread

    def call(self, make: Callable[[], SparkSession], work: Callable[[SparkSession], T]) -> T:
        """Do the work, with all that Spark does for it under the group."""
        spark = make()
        self._enter(spark)
        self._spark = spark
        try:
            if self._cancelled:
                raise Cancelled(f"{self.name} was stopped before its job began.")
            return work(spark)
        finally:
            with contextlib.suppress(Exception):  # the thread is used again; a session that is gone has no groups
                self._leave(spark)

    def _enter(self, spark: SparkSession) -> None:
        if is_connect(spark):
            spark.addTag(self.group)
        else:
            about = f"{self.name}: {self.rows} messages"
            spark.sparkContext.setJobGroup(self.group, about, interruptOnCancel=True)

    def _leave(self, spark: SparkSession) -> None:
        if is_connect(spark):
            spark.removeTag(self.group)
            return
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]

    # --- beside it

    def cancel(self) -> None:
        """Cancel all that Spark does for it. What is gone needs no cancelling."""
        self._cancelled = True
        spark = self._spark
        if spark is None:
            return
        with contextlib.suppress(Exception):
            if is_connect(spark):
                spark.interruptTag(self.group)
            else:
                spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(self.group)

    def look(self) -> None:
        """See how far it is. Over Spark Connect that isn't told."""
        spark = self._spark
        if spark is None or is_connect(spark):
            return
        with contextlib.suppress(Exception):
            tracker = spark.sparkContext.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self.group)]
            known = {stage: tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds}
            stages = [stage for stage in known.values() if stage is not None]
            self.stages = len(known)
            self.tasks = sum(stage.numTasks for stage in stages)
            self.tasks_done = sum(stage.numCompletedTasks for stage in stages)
            self.stages_done = sum(stage.numCompletedTasks >= stage.numTasks > 0 for stage in stages)

    def tells(self) -> dict[str, Any]:
        """What it tells of itself."""
        return {
            "job": self.group, "rows": self.rows, "started": self.started, "stages": self.stages, "stages_done": self.stages_done,
            "tasks": self.tasks, "tasks_done": self.tasks_done,
        }  # fmt: skip

    def __str__(self) -> str:
        seconds = time.time() - self.started
        done = f"{self.stages_done} of {self.stages} stages and {self.tasks_done} of {self.tasks} tasks"
        return f"{self.name}: {self.rows} messages in Spark for {seconds:.0f} s, {done} done"


async def run(
    job: Job, work: Callable[[], T], *, threads: anyio.CapacityLimiter, log_every: float, check: Callable[[], None]
) -> T:
    """Do the work in a thread, to the end: of a cancellation, too.

    Args:
        work: goes through `Job.call`.
        threads: where the thread comes from.
        log_every: seconds from one line in the log about a long job to the next.
        check: is asked every second; when it raises, the job is cancelled, and that is raised.

    Returns:
        What the work returned. Raises what it raised.
    """
    over = anyio.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    async def in_thread() -> None:
        try:
            with anyio.CancelScope(shield=True):
                results.append(await anyio.to_thread.run_sync(work, limiter=threads))
        except Exception as error:
            errors.append(error)
        finally:
            over.set()

    async with anyio.create_task_group() as group:
        group.start_soon(in_thread)
        try:
            await _watch(job, over, log_every, check)
        except BaseException as stopped:
            await _stop(job, over)
            if isinstance(stopped, Exception):
                errors[:] = [stopped]
            else:
                raise
    if errors:
        raise errors[0]
    return results[0]


async def _watch(job: Job, over: anyio.Event, log_every: float, check: Callable[[], None]) -> None:
    told = time.monotonic()
    while not over.is_set():
        with anyio.move_on_after(min(LOOK, log_every)):
            await over.wait()
            return
        check()
        await anyio.to_thread.run_sync(job.look)
        if time.monotonic() - told >= log_every and not over.is_set():
            told = time.monotonic()
            logger.info("%s", job)


async def _stop(job: Job, over: anyio.Event) -> None:
    """Cancel the job, and wait for its thread: a batch must not be at work twice at a time."""
    with anyio.CancelScope(shield=True):
        while not over.is_set():
            await anyio.to_thread.run_sync(job.cancel)
            with anyio.move_on_after(AGAIN):
                await over.wait()
