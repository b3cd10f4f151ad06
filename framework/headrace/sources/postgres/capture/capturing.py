"""Capturing finds the sources that capture tables, and captures those that no other process captures.

Sources are independent. One that fails reports why, is retried, and does not disturb the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from uuid import uuid4

import anyio
import anyio.abc
import msgspec

from headrace import store
from headrace.model.errors import HeadraceError, LeaseLost, StoreUnavailable, public_text
from headrace.model.log import Log
from headrace.model.text.error_text import text_of
from headrace.runtime.pipeline.shared import Shared
from headrace.sources.postgres.capture.capture_lease import CaptureLease
from headrace.sources.postgres.capture.capturer import Capturer, CaptureResources
from headrace.sources.postgres.capture.shared_slot import SharedSlot
from headrace.sources.postgres.capture.table_watch import TablesChanged
from headrace.sources.postgres.connection.untrusted import SourceDatabase
from headrace.sources.postgres.errors import SlotLost, SourceStopped, SourceUnavailable, StreamingFailed
from headrace.sources.postgres.held_capture import HeldCapture
from headrace.sources.postgres.limits import DEFAULTS, CaptureLimits
from headrace.sources.postgres.rules import transforms
from headrace.sources.postgres.rules.transform_watchdog import RECORD_TIMEOUT, TransformStuck, TransformWatchdog
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store import CaptureToDo
from headrace.store.database.retry import DatabaseRetry, run_with_retry

log = Log("headrace")


class _Running:
    """A source that this process captures."""

    def __init__(self, todo: CaptureToDo) -> None:
        self.todo = todo
        self.scope = anyio.CancelScope()
        self.state = "starting"
        self.reason: str | None = None
        self.capturer: Capturer | None = None


class Capturing:
    """Captures sources beside an app's consumers, see `headrace.app.attached`.

    Args:
        only: names of the sources to capture. None means all sources.
        limits: the timings and sizes of the captures.
        database_of: returns the database to capture a source from, if its URL needs checks. None for
            that of its settings.
    """

    def __init__(
        self,
        only: Collection[str] | None = None,
        limits: CaptureLimits = DEFAULTS,
        database_of: Callable[[PostgresSpec], SourceDatabase | None] = lambda _: None,
    ) -> None:
        self._limits = limits
        self._watchdog = TransformWatchdog(limits.transform_timeout, limits.interruption_grace)
        self._only = only
        self._database_of = database_of
        self._holder = uuid4()
        self._running: dict[int, _Running] = {}
        self._retry_at: dict[int, float] = {}
        self._shared_slots: dict[str, SharedSlot] = {}
        # State and reason of the sources that this process can't capture, so that they are logged
        # once.
        self._not_capturable_here: dict[int, tuple[str, str | None]] = {}
        self._counts: Counter[str] = Counter()  # changes by source, of capturers that have ended
        self._sources_changed = anyio.Event()
        self._poll_scope: anyio.CancelScope | None = None
        self._draining = False
        self._warned = False  # that the driver is missing

    async def run(self, shared: Shared) -> None:
        """Capture until `drain`. Changes that are not appended by then are read again by the next process that
        captures the source.
        """
        self._shared = shared
        self._resources = CaptureResources(self._published, self._watchdog, self._limits, shared.time.clock)
        try:
            async with anyio.create_task_group() as self._readers:
                async with anyio.create_task_group() as group:
                    with anyio.CancelScope() as self._poll_scope:
                        if not self._draining:  # `drain` may have been called before `run`
                            await run_with_retry(
                                "finding sources", lambda database_retry: self._poll(database_retry, group)
                            )
                    self._cancel_all()
                self._readers.cancel_scope.cancel()
        finally:
            self._shared_slots.clear()
            self._poll_scope = None
            self._draining = False  # the app may run again

    def look(self) -> None:
        """Check the list of sources now, since this process has created, changed or deleted one."""
        self._sources_changed.set()

    # --- finding sources

    async def _poll(self, database_retry: DatabaseRetry, group: anyio.abc.TaskGroup) -> None:
        while True:
            self._sources_changed = anyio.Event()
            found = {one.number: one for one in await store.captures_to_do(self._shared.database)}
            if find_spec("psycopg") is None:
                self._warn_without_driver([todo.name for todo in found.values()])
                found = {}
            for number, running in self._running.items():
                todo = found.get(number)
                if todo is None or todo.paused or todo.updated_at != running.todo.updated_at:
                    running.scope.cancel()
            for number, todo in found.items():
                if number not in self._running and todo.free and not todo.paused and self._may_capture(todo):
                    self._running[number] = running = _Running(todo)
                    group.start_soon(self._run, running)
            database_retry.cleared()
            with anyio.move_on_after(self._limits.sources_interval):
                await self._sources_changed.wait()

    def _warn_without_driver(self, sources: Sequence[str]) -> None:
        """Log once that this process can't capture, as soon as there is something to capture."""
        if sources and not self._warned:
            self._warned = True
            names, error = ", ".join(sources[:10]), "psycopg is missing"
            hint = "pip install 'headrace[capture]', or run another process that captures"
            log.warning("tables not captured", sources=names, error=error, hint=hint)

    def _may_capture(self, todo: CaptureToDo) -> bool:
        is_waiting = self._retry_at.get(todo.number, float("-inf")) > self._shared.time.clock()
        return not is_waiting and (self._only is None or todo.name in self._only)

    # --- one source

    async def _run(self, running: _Running) -> None:
        todo, database = running.todo, self._shared.database
        try:
            with running.scope:
                capture_lease = await CaptureLease.take(database, todo.number, self._holder, self._shared.time.clock)
                if capture_lease is None:
                    return
                try:
                    async with anyio.create_task_group() as group:
                        group.start_soon(capture_lease.renew)
                        await self._keep_capturing(running, capture_lease)
                        group.cancel_scope.cancel()
                finally:
                    await capture_lease.release()
        except* LeaseLost as lost:
            log.info("capture ended", source=todo.name, error=_root_cause(lost))
        except* StoreUnavailable as unavailable:
            log.info("capture ended", source=todo.name, error=_root_cause(unavailable))
            # A database that is read-only refuses the lease, and still answers which sources there are.
            self._retry_at[todo.number] = self._shared.time.clock() + self._limits.first_retry_delay
        except* Exception as failed:  # any error is limited to this source
            hint = "another process may take it over, or this one retries"
            log.error(
                "capture failed", source=todo.name, seconds=self._limits.stopped_retry_delay, exc_info=failed, hint=hint
            )
            self._retry_at[todo.number] = self._shared.time.clock() + self._limits.stopped_retry_delay
        finally:
            del self._running[todo.number]
            if not self._draining:
                self._sources_changed.set()

    async def _keep_capturing(self, running: _Running, capture_lease: CaptureLease) -> None:
        """Capture, and restart after each failure. Returns when this process can't capture the source."""
        todo, delay, streaming, is_retry = running.todo, self._limits.first_retry_delay, True, False
        while True:
            started_at = self._shared.time.clock()
            try:
                spec = self._spec_of(todo)
                if spec.transform is not None:
                    await transforms.load_in_thread(spec.transform, self._limits.import_timeout)
                self._not_capturable_here.pop(todo.number, None)
            except HeadraceError as error:  # another process may succeed, for instance with another version of the code
                running.state, running.reason = self._not_capturable_here.get(
                    todo.number, (running.state, running.reason)
                )
                self._retry_at[todo.number] = started_at + await self._report(
                    running, capture_lease.epoch, error, delay
                )
                self._not_capturable_here[todo.number] = running.state, running.reason
                return
            try:
                if is_retry:
                    await capture_lease.reopen()
                is_retry = True
                database = self._shared.database
                capture = HeldCapture(database, todo.number, capture_lease.epoch)
                dsn: SourceDatabase = self._database_of(spec) or spec.database or database.dsn
                shared_slot = await self._shared_slot(spec)
                capturer = Capturer(
                    capture, todo, spec, dsn, self._resources, streaming=streaming, shared_slot=shared_slot
                )
                await self._capture(running, capturer)
            except (Exception, ExceptionGroup) as error:
                cause = _root_cause(error)
                if isinstance(cause, LeaseLost):
                    raise cause from error
                if isinstance(cause, TransformStuck):
                    await self._stop(running, capture_lease.epoch, cause)
                    return
                if self._shared.time.clock() - started_at > 2 * self._limits.longest_retry_delay:
                    delay = self._limits.first_retry_delay  # it went well for a while
                    running.state, running.reason = "running", None
                streaming = streaming and not isinstance(cause, StreamingFailed)
                pause = await self._report(running, capture_lease.epoch, cause, delay)
            await anyio.sleep(pause)
            delay = min(2 * delay, self._limits.longest_retry_delay)

    async def _capture(self, running: _Running, capturer: Capturer) -> None:
        running.capturer = capturer
        try:
            await capturer.run()
        finally:
            running.capturer = None
            self._counts[running.todo.name] += capturer.captured_count

    async def _shared_slot(self, spec: PostgresSpec) -> SharedSlot | None:
        """Return the slot that a source shares with others, and start its reader with the first of them."""
        name = spec.shared_slot
        if name is None:
            return None
        slot_id = await store.shared_slot_id(self._shared.database, name)
        if name not in self._shared_slots:
            self._shared_slots[name] = shared_slot = SharedSlot(self._shared.database, name, slot_id, self._limits)
            self._readers.start_soon(shared_slot.run)
        return self._shared_slots[name]

    def _spec_of(self, todo: CaptureToDo) -> PostgresSpec:
        try:
            return PostgresSpec.stored(todo.name, todo.stream, todo.settings)
        except msgspec.ValidationError as error:
            raise SourceStopped(
                f"The settings of the source can't be read: {error}. Edit the source, or create it again."  # public: its settings
            ) from error

    async def _report(self, running: _Running, epoch: int, error: BaseException, delay: float) -> float:
        """Report why the capturer stopped. Returns how many seconds to wait before the next try."""
        todo = running.todo
        if isinstance(error, TablesChanged):
            log.info("capture restarts", source=todo.name, error=error)
            return 0.0
        state, reason, mend, pause = "stopped", public_text(error), None, self._limits.stopped_retry_delay
        if isinstance(error, StoreUnavailable):  # the captured database, Headrace's own, or a full stream
            state, pause = "waiting", delay
            if isinstance(error, SourceUnavailable):
                reason = str(error)  # public: of the captured database, for those that have given its URL
        elif isinstance(error, SourceStopped):
            reason, mend = error.reason, error.mend
            if isinstance(error, SlotLost) and mend is None:
                mend = f"headrace source postgres resume {todo.name} --anew"  # with a fresh backfill
        told = reason if isinstance(error, SourceStopped) else text_of(error)  # public: for the log
        if (state, told) != (running.state, running.reason):
            trace = None if isinstance(error, HeadraceError) else error
            if state == "waiting":
                log.warning("capture waits", source=todo.name, error=told, hint=mend, exc_info=trace)
            else:
                log.error("capture stopped", source=todo.name, error=told, hint=mend, seconds=pause, exc_info=trace)
        running.state, running.reason = state, told
        with suppress(StoreUnavailable):
            await store.report_capture(self._shared.database, todo.number, epoch, state, reason, mend)
        return pause

    async def _stop(self, running: _Running, epoch: int, error: TransformStuck) -> None:
        """Stop a source until it is resumed."""
        running.state, running.reason = "stopped", error.reason
        log.error("capture stopped", source=running.todo.name, error=error.reason, hint=error.mend, exc_info=error)

        async def store_stopped(_: DatabaseRetry) -> None:
            await store.stop_capture(self._shared.database, running.todo.number, epoch, error.reason, error.mend)

        with anyio.move_on_after(RECORD_TIMEOUT, shield=True):  # otherwise the next process is held up, and stores it
            await run_with_retry("stopping a source", store_stopped)

    def _published(self, stream: str) -> None:
        self._shared.publisher.committed(stream, None)

    # --- called by the app

    def _cancel_all(self) -> None:
        for running in self._running.values():
            running.scope.cancel()

    def drain(self) -> None:
        """Stop capturing."""
        self._draining = True
        if self._poll_scope is not None:
            self._poll_scope.cancel()

    def hurry(self) -> None:
        """Do nothing. Capturing has no work that takes long to end."""

    def app_statistics(self) -> dict[str, Any]:
        """Return the sources that this process captures, for the app's statistics."""
        return {"sources": {one.todo.name: self._source_statistics(one) for one in self._running.values()}}

    def _source_statistics(self, running: _Running) -> dict[str, Any]:
        """Return a source's statistics. They are its stream, its state, the reason for the state, and
        the changes that this process has captured. While the capturer runs, they include what the
        slot monitor reported last: changes per second, bytes of WAL, and whether its slot has an alarm.
        """
        name, capturer = running.todo.name, running.capturer
        statistics: dict[str, Any] = {
            "stream": running.todo.stream,
            "state": running.state,
            "reason": running.reason,
            "captured": self._counts[name],
        }
        if capturer is None:
            return statistics
        statistics["captured"] += capturer.captured_count
        facts = capturer.facts
        if facts is None:
            return statistics
        statistics |= {
            "state": "running",
            "reason": None,
            "rate": facts.rate,
            "behind": facts.behind,
            "held_back": facts.held_back,
        }
        return {**statistics, "alarm": facts.alarm}


def _root_cause(error: BaseException) -> BaseException:
    """Return the most important of the errors that concurrent tasks raised."""
    if isinstance(error, BaseExceptionGroup):
        return min(map(_root_cause, error.exceptions), key=_priority)
    return error


def _priority(error: BaseException) -> int:
    if isinstance(error, TransformStuck):  # the loop was held up, so the lease may have been lost as well
        return -1
    if isinstance(error, LeaseLost):
        return 0
    if isinstance(error, StoreUnavailable):
        return 3
    return 2 if isinstance(error, HeadraceError) else 1
