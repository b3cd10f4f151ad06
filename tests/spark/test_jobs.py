"""Jobs of Spark handlers, with a session that does not answer. Without Spark."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

from headrace_spark.handlers import jobs
from headrace_spark.handlers.jobs import Job

pytestmark = pytest.mark.asyncio

WITHIN = 5.0  # seconds


class Frozen:
    """A session whose Java stands still once a job runs. It counts the cancellations that wait."""

    def __init__(self) -> None:
        self.over, self.working, self.looked = threading.Event(), threading.Event(), threading.Event()
        self.cancels = 0
        self.sparkContext = self._jsc = self

    def setJobGroup(self, *_: Any, **__: Any) -> None:  # noqa: N802
        pass

    def sc(self) -> Frozen:
        return self

    def work(self, _: Any) -> None:
        self.working.set()
        self.over.wait(WITHIN)

    def cancelJobGroupAndFutureJobs(self, _: str) -> None:  # noqa: N802
        self.cancels += 1
        self.over.wait(WITHIN)

    def statusTracker(self) -> Any:  # noqa: N802
        self.looked.set()
        self.over.wait(WITHIN)


@pytest.mark.parametrize("looked_at", [True, False])
async def test_a_session_that_does_not_answer_holds_up_no_drain_and_takes_one_thread(
    looked_at: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PROGRESS_INTERVAL", 0.01 if looked_at else WITHIN)
    monkeypatch.setattr(jobs, "CANCEL_INTERVAL", 0.02)
    monkeypatch.setattr(jobs, "CANCEL_TIMEOUT", 0.2)
    spark: Any = Frozen()
    job = Job("orders:ship", 2)
    work = partial(job.call, lambda: spark, spark.work)
    try:
        async with anyio.create_task_group() as group:
            call = partial(
                jobs.run, job, work, threads=anyio.CapacityLimiter(1), log_every=WITHIN, check=lambda: None,
                draining=lambda: True,
            )  # fmt: skip
            group.start_soon(call)
            await anyio.to_thread.run_sync((spark.looked if looked_at else spark.working).wait)
            began = anyio.current_time()
            group.cancel_scope.cancel()
        assert anyio.current_time() - began < WITHIN / 2
    finally:
        spark.over.set()
    assert job.abandoned
    assert spark.cancels == 1
