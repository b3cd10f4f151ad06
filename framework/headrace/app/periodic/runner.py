"""The runner of schedules: publishes the periodic messages that this process declares.

Every process with a schedule computes its due times and tries to publish. The row of the schedule decides which one
does: the message is published in the transaction that moves the row to the next due time. There is thus no leader,
and a process that dies, freezes or loses its database delays nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import anyio
import anyio.abc

from headrace import store
from headrace.app.periodic.schedule import Schedule
from headrace.flow.due_times import is_ahead
from headrace.model.errors import HeadraceError, StoreUnavailable, StreamFull
from headrace.model.log import Log
from headrace.runtime.isolation import failed_inside
from headrace.runtime.pipeline.shared import Shared
from headrace.store import PolledSchedule, ScheduleRun
from headrace.store.database.retry import DatabaseRetry, is_outage, run_with_retry

log = Log("headrace")

POLL = 2.0
"""Seconds between two looks at the schedules, for changes by users and other processes."""

RETRY = timedelta(seconds=10)
"""The pause of a schedule after a failure, such as an error of its function."""

AFTER_OUTAGE = timedelta(seconds=1)
"""The pause of a schedule after an outage of the database."""

ALONE = timedelta(seconds=60)
"""How long this process must have watched a schedule that no other process runs before it takes it over. After an
outage of the database, the processes that ran it thus come first."""

GAP = timedelta(seconds=20)
"""A longer time between two polls means that this process has watched nothing."""

AT_ONCE = 2
"""The largest number of publishes at a time. A thousand schedules that are due at midnight leave connections to handlers."""

THREADS = 8
"""The largest number of threads for functions of schedules. A function that hangs keeps its thread for good."""

BREATH = 0.1
"""The shortest time in seconds between two polls, unless something is due earlier."""

SHORTEST = 0.01
"""The shortest wait for a due time in seconds."""


async def declare(database: store.Database, schedules: Sequence[Schedule]) -> None:
    """Create the schedules, or change existing ones to the declared settings. Changes are logged.

    Raises:
        InvalidInput: a schedule exists with another stream.
    """
    if not schedules:
        return
    names, digests = [one.spec.name for one in schedules], [one.spec.digest() for one in schedules]
    held = {polled.name for polled in await store.poll_schedules(database, names, digests) if polled.held}
    for schedule in schedules:
        if schedule.spec.name not in held:  # a role without `admin` runs those that are as it declares them
            await store.create_stream(database, schedule.spec.stream)
            await _declare(database, schedule)


async def _declare(database: store.Database, schedule: Schedule) -> None:
    spec = schedule.spec
    before = await store.declare_schedule(database, spec)
    if before is None:
        log.info("schedule created", schedule=spec.name, stream=spec.stream, every=spec.every)
        return
    for setting, old in before.items():
        if (now := getattr(spec, setting, None)) != old:
            log.info("schedule setting changed", schedule=spec.name, setting=setting, before=repr(old), now=repr(now))


class Periodic:
    """Publishes the messages of schedules. A part of the service, see `Attached`.

    Args:
        schedules: what this process declares.
    """

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self._schedules = {schedule.spec.name: schedule for schedule in schedules}
        self._digests = {schedule.spec.name: schedule.spec.digest() for schedule in schedules}
        self._aside: dict[str, datetime] = {}  # those that have other settings, and since when it watches them
        self._polled_at: datetime | None = None
        self._busy: set[str] = set()
        self._not_before: dict[str, datetime] = {}  # when those that failed are tried again
        self._examined: dict[str, datetime] = {}  # next due times that no clock was ahead for
        self._publishing = anyio.Semaphore(AT_ONCE)
        self._threads = anyio.CapacityLimiter(THREADS)
        self._scope = anyio.CancelScope()
        self._wake = anyio.Event()

    async def run(self, shared: Shared) -> None:
        """Run until drained, or until all schedules are removed."""
        with self._scope:
            await run_with_retry("schedules", lambda retry: self._loop(shared, retry))

    async def _loop(self, shared: Shared, database_retry: DatabaseRetry) -> None:
        async with anyio.create_task_group() as group:
            try:
                while self._schedules:
                    self._wake = anyio.Event()
                    due, wait = await self._poll(shared.database)
                    database_retry.cleared()
                    for polled in due:
                        self._busy.add(polled.name)
                        group.start_soon(self._run_and_wake, shared, polled)
                    await anyio.sleep(min(wait, BREATH))
                    with anyio.move_on_after(wait - BREATH):
                        await self._wake.wait()
            except StoreUnavailable as error:
                group.cancel_scope.cancel()
                outage = error
            else:
                return
        raise outage

    async def tick(self, shared: Shared, now: datetime | None = None) -> int:
        """Run what is due, one schedule after the other. Returns the number of messages published.

        Args:
            now: the time, for tests.
        """
        due, _ = await self._poll(shared.database, now)
        return sum([await self._run_one(shared, polled, now) for polled in due])

    async def _poll(self, database: store.Database, now: datetime | None = None) -> tuple[list[PolledSchedule], float]:
        """Return the schedules that are due, and the seconds until the next one or the next poll."""
        names = list(self._schedules)
        found = await store.poll_schedules(database, names, [self._digests[name] for name in names], now)
        self._forget_removed({polled.name for polled in found})
        self._watch(found)
        due, wait = [], POLL
        for polled in found:
            if not polled.held:
                await self._stand_aside(database, polled)
            elif not polled.paused and polled.name not in self._busy:
                self._aside.pop(polled.name, None)
                wanted = self._wanted_at(polled)
                if wanted <= polled.now:
                    due.append(polled)
                else:
                    wait = min(wait, (wanted - polled.now).total_seconds())
        return due, max(wait, SHORTEST)

    def _wanted_at(self, polled: PolledSchedule) -> datetime:
        """When there is something to do for a schedule."""
        wanted = polled.next_at
        if polled.requested_at is not None or wanted is None or self._is_ahead(polled.name, wanted, polled.now):
            wanted = polled.now
        return max(wanted, self._not_before.get(polled.name, wanted))

    def _is_ahead(self, name: str, next_at: datetime, now: datetime) -> bool:
        if self._examined.get(name) == next_at:
            return False
        if is_ahead(self._schedules[name].due, next_at, now):
            return True
        self._examined[name] = next_at
        return False

    def _forget_removed(self, found: set[str]) -> None:
        for name in self._schedules.keys() - found:
            del self._schedules[name]
            hint = "this process no longer runs it, restart the process to declare it again"
            log.error("schedule removed", schedule=name, hint=hint)

    def _watch(self, found: list[PolledSchedule]) -> None:
        """Note the time of a poll. After a long time without one, or after the server's clock was set back, the watch over
        the schedules of others restarts."""
        if found:
            now, before = found[0].now, self._polled_at or found[0].now
            if not timedelta(0) <= now - before <= GAP:
                self._aside = dict.fromkeys(self._aside, now)
            if now < before:
                self._not_before.clear()
                self._examined.clear()
            self._polled_at = now

    async def _stand_aside(self, database: store.Database, polled: PolledSchedule) -> None:
        """Leave a schedule to the processes that have declared it later with other settings, while any of them runs."""
        if polled.name not in self._aside:
            self._aside[polled.name] = polled.now
            hint = "they have declared it later, with other settings"
            log.info("schedule left to other processes", schedule=polled.name, hint=hint)
        elif polled.abandoned and polled.now - self._aside[polled.name] >= ALONE:
            await self._take_over(database, polled)

    async def _take_over(self, database: store.Database, polled: PolledSchedule) -> None:
        """Declare a schedule that no other process runs. If that is refused, the other schedules continue."""
        try:
            await _declare(database, self._schedules[polled.name])
        except HeadraceError as error:
            if _is_outage(error):
                raise
            self._aside[polled.name] = polled.now
            hint = f"no process runs it, it is tried again in {ALONE.total_seconds():g} s"
            log.error("schedule not taken over", schedule=polled.name, error=error, hint=hint)

    async def _run_and_wake(self, shared: Shared, polled: PolledSchedule) -> None:
        try:
            await self._run_one(shared, polled)
        finally:
            self._busy.discard(polled.name)
            self._wake.set()

    async def _run_one(self, shared: Shared, polled: PolledSchedule, now: datetime | None = None) -> int:
        """Publish what is due of one schedule. A failure is logged, and the schedule is tried again later."""
        schedule = self._schedules[polled.name]
        try:
            run = await self._messages(shared, schedule, polled)
            digest = self._digests[polled.name]
            async with self._publishing:
                published = await store.run_schedule(shared.database, schedule.spec, digest, polled, run, now)
        except BaseException as error:  # a function may raise anything, and the others continue
            if not failed_inside(error):
                raise
            self._failed(polled, error)
            return 0
        self._not_before.pop(polled.name, None)
        if published:
            shared.publisher.committed(schedule.spec.stream, None)
        return published or 0

    async def _messages(self, shared: Shared, schedule: Schedule, polled: PolledSchedule) -> ScheduleRun:
        """Make the messages that are due now."""
        times = due_now(schedule, polled)
        later = schedule.due.after(polled.now)
        then = later if polled.requested_at is None or polled.next_at is None else polled.next_at
        texts = [await schedule.message(due, self._threads, shared.publisher.stored) for due in times]
        return ScheduleRun(
            due_at=times[-1] if times else None,
            keys=[text.key for text in texts],
            data=[text.data for text in texts],
            headers=[text.headers for text in texts],
            then=then,
        )

    def _failed(self, polled: PolledSchedule, error: BaseException) -> None:
        """Put a schedule off after a failure, and log it. An outage is short, and reported by the next poll."""
        outage = _is_outage(error)
        self._not_before[polled.name] = polled.now + (AFTER_OUTAGE if outage else RETRY)
        if not outage:
            log.error(
                "schedule failed",
                schedule=polled.name,
                due_at=polled.requested_at or polled.next_at,
                error=error,
                hint=f"it is tried again in {RETRY.total_seconds():g} s",
                exc_info=None if isinstance(error, HeadraceError) else error,
            )

    # --- the rest of `Attached`

    def drain(self) -> None:
        """End now. A message is published by one call, so that can be at any time."""
        self._scope.cancel()

    def hurry(self) -> None:
        """End now."""
        self._scope.cancel()


def _is_outage(error: BaseException) -> bool:
    return is_outage(error) and not isinstance(error, StreamFull)


def due_now(schedule: Schedule, polled: PolledSchedule) -> list[datetime]:
    """Return the due times to publish messages for, by the policy for missed ones."""
    if polled.requested_at is not None:
        return [polled.requested_at]
    if polled.next_at is None or polled.next_at > polled.now:  # later, since the clock was set back
        return []
    spec = schedule.spec
    limit = spec.max_missed if spec.missed == "catch_up" else 1
    # The stored time counts even if the rules of this machine's time zones don't know it.
    times = schedule.due.latest(polled.next_at, polled.now, limit) or [polled.next_at]
    if times[0] > polled.next_at:
        hint = "no process ran the schedule, missed='catch_up' publishes a message for each"
        log.warning("missed due times skipped", schedule=spec.name, since=polled.next_at, until=times[0], hint=hint)
    return times
