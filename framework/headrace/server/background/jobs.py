"""Works on the jobs of a database. Every server does, and they take turns, see `store/sql/functions/messages/jobs.sql`."""

from __future__ import annotations

import anyio

from headrace import store
from headrace.model.errors import FilterTooSlow, HeadraceError, StoreUnavailable, UnknownConsumer, public_text
from headrace.model.log import Log
from headrace.runtime.pipeline.shared import Shared
from headrace.server.background.tasks import BackgroundPart
from headrace.store import ClaimedJob
from headrace.store.database.retry import DatabaseRetry, is_outage, maintain
from headrace.store.database.time_limit import within

log = Log("headrace")

POLL = 5.0
"""Seconds between two look-ups of jobs that other processes have created."""

CLAIM = 20.0
"""Seconds for which a job is claimed. The job of a server that was killed goes on elsewhere after that."""

TURN = 2.0
"""Seconds for which a server works on a job before the next one has its turn."""

CHUNK = 500
"""The most dead letters of one step. A step holds the lock of the consumer, for which its lease calls wait."""

EXAMINED = 20_000
"""The most dead letters that a step examines. There are fewer after a step that took too long."""

STEP_LIMIT = 5.0
"""Seconds after which a step is ended, and tried again with fewer dead letters."""

PAUSE = 0.02
"""Seconds between two steps, for the consumer's other calls."""

TIDY = 600.0
"""Seconds between two deletions of old jobs."""


class JobRunner(BackgroundPart):
    """Works on jobs, one at a time. See `headrace.app.attached`."""

    def __init__(self) -> None:
        self._wake = anyio.Event()
        self._draining = False
        self._examined = EXAMINED

    def look(self) -> None:
        """Look for jobs now. Called when this process has created one."""
        self._wake.set()

    async def run(self, shared: Shared) -> None:
        """Work until `drain`, and until the step under way has ended."""
        self._database, self._clock = shared.database, shared.time.clock
        self._tidy_at = float("-inf")
        try:
            with anyio.CancelScope() as self.scope:
                if self._database.maintains:  # a role with fewer rights leaves jobs to others
                    await maintain("jobs", self._work)
        finally:
            self.scope = None
            self._draining = False  # the app may run again

    async def _work(self, database_retry: DatabaseRetry) -> None:
        while not self._draining:
            self._wake = anyio.Event()
            job = await store.claim_job(self._database, CLAIM)
            database_retry.cleared()
            if job is not None:
                await self._take_turn(job)
                continue
            await self._tidy()
            with anyio.move_on_after(POLL):
                await self._wake.wait()

    async def _tidy(self) -> None:
        if self._clock() >= self._tidy_at:
            while await store.delete_old_jobs(self._database):
                pass
            self._tidy_at = self._clock() + TIDY

    async def _take_turn(self, job: ClaimedJob) -> None:
        """Work on a job for a while, and give it back if there is more to do. A claim that is not released expires.

        A failure stops neither the server nor other jobs. One that Headrace knows ends the job. After any other, the job is
        tried again when its claim has expired.
        """
        try:
            await self._work_on(job)
        except Exception as failure:
            if is_outage(failure):
                raise
            known = isinstance(failure, HeadraceError) and not isinstance(failure, StoreUnavailable)
            hint = "create it again once the cause is fixed" if known else f"it is tried again in {CLAIM:g} s"
            of = {"job": job.id, "kind": job.kind, "stream": job.stream, "consumer": job.consumer}
            log.error("job failed", **of, error=failure, hint=hint, exc_info=None if known else failure)
            if known:
                await store.fail_job(self._database, job, public_text(failure))

    async def _work_on(self, job: ClaimedJob) -> None:
        until = self._clock() + TURN
        self._examined, state = EXAMINED, "running"
        while state == "running" and self._clock() < until and not self._draining:
            state = await self._step(job)
        if state == "running":
            await store.release_job(self._database, job)
        else:
            log.info("job ended", job=job.id, kind=job.kind, stream=job.stream, consumer=job.consumer, state=state)

    async def _step(self, job: ClaimedJob) -> str:
        """Do one step. Returns the state of the job."""
        try:
            async with (
                self._database.judging(job.stream, None, bounded=False),
                within(self._database, STEP_LIMIT) as connection,
            ):
                state = await store.work_job(connection, job, chunk=CHUNK, examine=self._examined, seconds=CLAIM)
            await anyio.sleep(PAUSE)
            return state
        except UnknownConsumer:  # deleted just now, which the next step notes
            return "running"
        except FilterTooSlow as error:
            if self._examined > 1:
                self._examined = max(self._examined // 10, 1)
                return "running"
            await store.fail_job(self._database, job, public_text(error))
            return "failed"

    # --- events from the app

    def drain(self) -> None:
        """Begin nothing more."""
        self._draining = True
        self._wake.set()
