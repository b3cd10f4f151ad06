"""Capturing finds the sources that capture tables, and captures those that no other process captures.

Sources are independent. One that fails reports why, is retried, and does not disturb the others.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from uuid import uuid4

import anyio
import anyio.abc
import msgspec

from headrace import store
from headrace.model.errors import HeadraceError, LeaseLost, StoreUnavailable
from headrace.runtime.pipeline.shared import Shared
from headrace.sources.postgres.capture.capture_lease import CaptureLease
from headrace.sources.postgres.capture.capturer import Capturer, Restart
from headrace.sources.postgres.errors import SlotLost, SourceStopped, StreamingFailed
from headrace.sources.postgres.shaping import transforms
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store import CaptureToDo
from headrace.store.database.retry import DatabaseRetry, run_with_retry

logger = logging.getLogger("headrace")

LOOK = 2.0
"""Seconds between two checks of the list of sources. Other processes create, change and release
sources, too.
"""

SHORTEST, LONGEST = 0.1, 5.0
"""Shortest and longest delay in seconds before a waiting source is retried."""

REPAIR = 10.0
"""Seconds before a stopped source is retried, since its problem may have been corrected."""


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
    """

    def __init__(self, only: Collection[str] | None = None) -> None:
        self._only = only
        self._holder = uuid4()
        self._running: dict[int, _Running] = {}
        self._resting: dict[int, float] = {}
        # State and reason of the sources that this process can't capture, so that they are logged
        # once.
        self._unfit: dict[int, tuple[str, str | None]] = {}
        self._counts: Counter[str] = Counter()  # changes by source, of capturers that have ended
        self._news = anyio.Event()
        self._looking: anyio.CancelScope | None = None
        self._draining = False

    async def run(self, shared: Shared) -> None:
        """Capture until `drain`. What is not appended by then is read again by the next process that
        captures the source.
        """
        self._shared = shared
        try:
            async with anyio.create_task_group() as group:
                with anyio.CancelScope() as self._looking:
                    if find_spec("psycopg") is None:
                        logger.warning(
                            "sources of kind postgres are not captured here: pip install 'headrace[capture]'"
                        )
                    elif not self._draining:  # `drain` may have been called before `run`
                        await run_with_retry(
                            "finding sources", lambda database_retry: self._look(database_retry, group)
                        )
                self._end_all()
        finally:
            self._looking = None
            self._draining = False  # the app may run again

    def look(self) -> None:
        """Check the list of sources now, since this process has created, changed or deleted one."""
        self._news.set()

    # --- finding sources

    async def _look(self, database_retry: DatabaseRetry, group: anyio.abc.TaskGroup) -> None:
        while True:
            self._news = anyio.Event()
            found = {one.number: one for one in await store.captures_to_do(self._shared.database)}
            for number, running in self._running.items():
                todo = found.get(number)
                if todo is None or todo.paused or todo.updated_at != running.todo.updated_at:
                    running.scope.cancel()
            for number, todo in found.items():
                if number not in self._running and todo.free and not todo.paused and self._is_ours(todo):
                    self._running[number] = running = _Running(todo)
                    group.start_soon(self._run, running)
            database_retry.cleared()
            with anyio.move_on_after(LOOK):
                await self._news.wait()

    def _is_ours(self, todo: CaptureToDo) -> bool:
        rests = self._resting.get(todo.number, float("-inf")) > self._shared.time.clock()
        return not rests and (self._only is None or todo.name in self._only)

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
                        group.start_soon(capture_lease.keep)
                        await self._keep_capturing(running, capture_lease)
                        group.cancel_scope.cancel()
                finally:
                    await capture_lease.release()
        except* LeaseLost as lost:
            logger.info("%s is captured here no longer: %s", todo.name, _first(lost))
        except* StoreUnavailable as away:
            logger.info("%s is captured here no longer: %s", todo.name, _first(away))
        except* Exception as failed:  # any error is limited to this source
            logger.error("%s is captured here no longer, for now", todo.name, exc_info=failed)
            self._resting[todo.number] = self._shared.time.clock() + REPAIR
        finally:
            del self._running[todo.number]
            if not self._draining:
                self._news.set()

    async def _keep_capturing(self, running: _Running, capture_lease: CaptureLease) -> None:
        """Capture, and restart after each failure. Returns when this process can't capture the source."""
        todo, delay, streaming, again = running.todo, SHORTEST, True, False
        while True:
            began = self._shared.time.clock()
            try:
                spec = self._spec_of(todo)
                if spec.transform is not None:
                    transforms.load(spec.transform)
                self._unfit.pop(todo.number, None)
            except HeadraceError as error:  # another process may succeed, for instance with another version of the code
                running.state, running.reason = self._unfit.get(todo.number, (running.state, running.reason))
                self._resting[todo.number] = began + await self._tell(running, capture_lease.epoch, error, delay)
                self._unfit[todo.number] = running.state, running.reason
                return
            try:
                if again:
                    await capture_lease.reopen()
                again = True
                capturer = Capturer(
                    self._shared.database, todo, spec, capture_lease.epoch, self._published, self._shared.time.clock,
                    streaming=streaming,
                )  # fmt: skip
                await self._capture(running, capturer)
            except (Exception, ExceptionGroup) as error:
                cause = _first(error)
                if isinstance(cause, LeaseLost):
                    raise cause from error
                if self._shared.time.clock() - began > 2 * LONGEST:
                    delay = SHORTEST  # it went well for a while
                    running.state, running.reason = "running", None
                streaming = streaming and not isinstance(cause, StreamingFailed)
                rest = await self._tell(running, capture_lease.epoch, cause, delay)
            await anyio.sleep(rest)
            delay = min(2 * delay, LONGEST)

    async def _capture(self, running: _Running, capturer: Capturer) -> None:
        running.capturer = capturer
        try:
            await capturer.run()
        finally:
            running.capturer = None
            self._counts[running.todo.name] += capturer.counted

    def _spec_of(self, todo: CaptureToDo) -> PostgresSpec:
        try:
            return PostgresSpec.stored(todo.name, todo.stream, todo.settings)
        except msgspec.ValidationError as error:
            raise SourceStopped(
                f"The settings of the source can't be read ({error}): edit it, or make it anew."
            ) from error

    async def _tell(self, running: _Running, epoch: int, error: BaseException, delay: float) -> float:
        """Report why the capturer stopped. Returns how many seconds to wait before the next try."""
        todo = running.todo
        if isinstance(error, Restart):
            logger.info("%s begins anew: %s", todo.name, error)
            return 0.0
        state, reason, mend, rest = "stopped", str(error), None, REPAIR
        if isinstance(error, StoreUnavailable):  # the captured database, Headrace's own, or a full stream
            state, rest = "waiting", delay
        elif isinstance(error, SourceStopped):
            reason, mend = error.reason, error.mend
            if isinstance(error, SlotLost) and mend is None:
                mend = f"headrace source postgres resume {todo.name} --anew"  # with a fresh backfill
        if (state, reason) != (running.state, running.reason):
            known = isinstance(error, HeadraceError)
            logger.log(
                logging.WARNING if state == "waiting" else logging.ERROR,
                "%s %s: %s%s", todo.name, "waits" if state == "waiting" else "has stopped, and is tried again now and then", reason,
                f" Mend it with: {mend}" if mend else "", exc_info=None if known else error,
            )  # fmt: skip
        running.state, running.reason = state, reason
        with suppress(StoreUnavailable):
            await store.tell_capture(self._shared.database, todo.number, epoch, state, reason, mend)
        return rest

    def _published(self, stream: str) -> None:
        self._shared.publisher.committed(stream, None)

    # --- called by the app

    def _end_all(self) -> None:
        for running in self._running.values():
            running.scope.cancel()

    def drain(self) -> None:
        """Stop capturing."""
        self._draining = True
        if self._looking is not None:
            self._looking.cancel()

    def hurry(self) -> None:
        """Do nothing. Capturing has no work that takes long to end."""

    def notified(self, stream_id: int) -> None:
        """Do nothing. Capturing waits for no stream."""

    def published(self, stream: str) -> None:
        """Do nothing. Capturing waits for no stream."""

    def hear(self, *, deaf: bool) -> None:
        """Do nothing. Capturing waits for no stream."""

    def tells(self) -> dict[str, Any]:
        """Return the sources that this process captures, for the app's statistics."""
        return {"sources": {one.todo.name: self._told(one) for one in self._running.values()}}

    def _told(self, running: _Running) -> dict[str, Any]:
        """Return a source's statistics. They are its stream, its state, the reason for the state, and
        the changes that this process has captured. While the capturer runs, they include what the
        watch reported last: changes per second, bytes of WAL, and whether its slot has an alarm.
        """
        name, capturer = running.todo.name, running.capturer
        told: dict[str, Any] = {
            "stream": running.todo.stream,
            "state": running.state,
            "reason": running.reason,
            "captured": self._counts[name],
        }
        if capturer is None:
            return told
        told["captured"] += capturer.counted
        facts = capturer.facts
        if facts is None:
            return told
        told |= {
            "state": "running",
            "reason": None,
            "rate": facts.rate,
            "behind": facts.behind,
            "held_back": facts.held_back,
        }
        return {**told, "alarm": facts.alarm}


def _first(error: BaseException) -> BaseException:
    """Return the most important of the errors that concurrent tasks raised."""
    if isinstance(error, BaseExceptionGroup):
        return min(map(_first, error.exceptions), key=_weight)
    return error


def _weight(error: BaseException) -> int:
    if isinstance(error, LeaseLost):
        return 0
    if isinstance(error, StoreUnavailable):
        return 3
    return 2 if isinstance(error, HeadraceError) else 1
