"""The janitor does the maintenance of a database: retention, scheduled messages, vacuum, missed
notifications, dead processes, and samples for charts.

Every process has a janitor, and one of them leads. Only the leader works, except that each janitor
delivers what its own process has scheduled. Each task is a separate loop, so that none waits for another.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import random
from time import monotonic
from uuid import uuid4

import anyio
import msgspec

from headrace import store
from headrace.model.log import Log
from headrace.model.watching.samples import EVERY
from headrace.runtime.maintenance.sampler import Sampler
from headrace.runtime.maintenance.scheduler import Scheduler
from headrace.runtime.maintenance.sweeper import Sweeper, Swept
from headrace.runtime.maintenance.vacuum import Vacuum
from headrace.store.database.retry import REPAIR, DatabaseRetry, is_outage, maintain, report_failure

log = Log("headrace")

AT_ONCE, SOONEST, BUSY, USUAL, IDLE = 0.02, 0.1, 0.25, 1.0, 4.0
"""Seconds between sweeps: while more is to be done, the shortest until an announced need, after
something was done, after nothing was done, and the longest."""

TERM = 4.0
"""The leader's term in seconds. When the leader has died, another process takes over after it."""

WORKERS_CHECK = 15.0
"""Seconds between checks for processes that are gone."""

COMPACTED_EVERY = 6
"""The samples after which earlier ones are compacted."""

RESIGN_TIMEOUT = 2.0
"""Time limit in seconds for resigning at shutdown."""

SOON = 0.001
"""The shortest wait for a scheduled message in seconds."""


class JanitorTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Timings of a janitor, in seconds. They are not settings. Tests use others.

    Attributes:
        schedule: poll interval of the schedule, for messages that other processes have scheduled.
        notifications_check: interval of the checks for missed notifications. One call checks a
            thousand consumers.
        samples: interval of the samples for charts.
        repair: pause of a task that failed for a reason that needs action, such as a missing
            privilege.
    """

    schedule: float = 1.0
    notifications_check: float = 1.0
    repair: float = REPAIR
    samples: float = EVERY


JANITOR_TIMINGS = JanitorTimings()


class Janitor:
    """Maintains all streams of a database.

    Args:
        database: an open database.
        published: called with a stream's name when scheduled messages were published to it.
        timings: its timings.
    """

    def __init__(
        self, database: store.Database, published: Callable[[str], None], timings: JanitorTimings = JANITOR_TIMINGS
    ) -> None:
        self._database = database
        self._timings = timings
        self._sweeper = Sweeper(database)
        self._scheduled = Scheduler(database)
        self._vacuum = Vacuum(database)
        self._sampler = Sampler(database)
        self._published = published
        self._schedule = anyio.Event()
        self._id = uuid4()
        self._leading = anyio.Event()  # set while this process leads
        self._own = False  # whether this process has scheduled messages that may be due soon

    def hurry(self) -> None:
        """Look up when the next scheduled message is due, because this process has scheduled one."""
        self._own = True
        self._schedule.set()

    async def run(self) -> None:
        """Run all tasks until cancelled. Tasks are retried after an outage and after any other
        failure, so none stops the app."""
        try:
            async with anyio.create_task_group() as group:
                for what, task in (
                    ("leader election", self.lead),
                    ("retention", self.sweep),
                    ("schedule", self.deliver),
                    ("vacuum", self.vacuum),
                    ("missed notifications", self.notify),
                    ("old processes", self.forget),
                    ("samples", self.sample),
                ):
                    group.start_soon(maintain, what, task, self._timings.repair)
        finally:
            await self._resign()

    async def lead(self, database_retry: DatabaseRetry) -> None:
        """Lead as long as no other process does. Raises `StoreUnavailable`."""
        while True:
            leads, again_in = await store.lead(self._database, self._id, TERM)
            database_retry.cleared()
            if not leads and self._leading.is_set():
                self._leading = anyio.Event()
            elif leads and not self._leading.is_set():
                self._sweeper.forget()
                self._scheduled.forget()
                self._sampler.forget()
                self._leading.set()
                self._schedule.set()
            await anyio.sleep(again_in if leads else again_in + random() * TERM / 8)

    async def _resign(self) -> None:
        """Let another process take over immediately. If that fails, it takes over at the end of the term."""
        if self._leading.is_set():
            with anyio.move_on_after(RESIGN_TIMEOUT, shield=True), suppress(Exception):
                await store.resign(self._database, self._id)

    async def sweep(self, database_retry: DatabaseRetry) -> None:
        """Sweep until cancelled. Raises `StoreUnavailable`."""
        rest = USUAL / 2
        while True:
            await self._leading.wait()
            began = monotonic()
            try:
                swept = await self._sweeper.sweep()
            except Exception as failure:  # A failure of one stream. The other streams were swept.
                if is_outage(failure):
                    raise
                report_failure("retention", failure)
                swept = Swept()
            database_retry.cleared()
            rest = BUSY if swept.something else min(max(2 * rest, USUAL), IDLE)
            took = 0.0 if swept.more else monotonic() - began
            await anyio.sleep(max(_until(swept, rest), took))

    async def deliver(self, database_retry: DatabaseRetry) -> None:
        """Publish due scheduled messages until cancelled. Raises `StoreUnavailable`."""
        longest = self._timings.schedule
        while True:
            self._schedule = anyio.Event()
            if not self._own and not self._leading.is_set():
                await self._schedule.wait()
                continue
            _, due_in = await self._scheduled.deliver(published=self._published)
            database_retry.cleared()
            # What was scheduled since the schedule was read may not be in the result.
            self._own = self._schedule.is_set() or (due_in is not None and due_in <= longest)
            with anyio.move_on_after(longest if due_in is None else min(max(due_in, SOON), longest)):
                await self._schedule.wait()

    async def vacuum(self, database_retry: DatabaseRetry) -> None:
        """Vacuum tables that need it, and make and drop indexes of keys, until cancelled. Raises `StoreUnavailable`."""
        while True:
            await self._leading.wait()
            await self._vacuum.run()
            await store.adjust_key_indexes(self._database)
            database_retry.cleared()
            await anyio.sleep(USUAL)

    async def notify(self, database_retry: DatabaseRetry) -> None:
        """Check for missed notifications until cancelled. Raises `StoreUnavailable`."""
        reached: int | None = None
        while True:
            await self._leading.wait()
            reached, _ = await store.notify_waiting(self._database, reached or 0)
            database_retry.cleared()
            await anyio.sleep(self._timings.notifications_check)

    async def sample(self, database_retry: DatabaseRetry) -> None:
        """Take samples for charts, and compact earlier ones, until cancelled. Raises `StoreUnavailable`."""
        taken = 0
        while True:
            await self._leading.wait()
            await self._sampler.tick()
            taken += 1
            if taken % COMPACTED_EVERY == 0:
                while await store.compact_samples(self._database):
                    pass
            database_retry.cleared()
            await anyio.sleep(self._timings.samples)

    async def forget(self, database_retry: DatabaseRetry) -> None:
        """Delete the records of processes that are gone, old entries of the audit log and old witness rows of commits, and
        switch on the features that all processes know, until cancelled. Raises `StoreUnavailable`."""
        forgotten = store.Forgotten()
        while True:
            await anyio.sleep(WORKERS_CHECK)
            await self._leading.wait()
            await store.forget_workers(self._database)
            while await store.delete_old_changes(self._database) >= store.MAX_DELETED:
                pass
            for feature in await store.switch_on_features(self._database):
                log.info("feature switched on", feature=feature, hint="older processes can't start from now on")
            while (forgotten := await store.forget_commits(self._database, forgotten)).more:
                pass
            database_retry.cleared()


def _until(swept: Swept, rest: float) -> float:
    """Seconds to wait until the next sweep. Less while there is more to do, or while a stream fills quickly."""
    if swept.more:
        return AT_ONCE
    return rest if swept.again_in is None else min(max(swept.again_in, SOONEST), rest)
