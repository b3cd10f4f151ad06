"""The loop watch: notices what blocks the event loop, reports it, and keeps the leases of the process meanwhile.

A handler that blocks in `async def`, as with `time.sleep`, stands in the way of all else in its process: other handlers,
settling, the keeper. So a thread asks the loop again and again whether it answers.

    asked ─▶ answered ─▶ asked …
      │
      └─ no answer ─▶ a third of `ack_wait`: leases are extended, over a connection of the thread's own
                  ─▶ `warn_after`: a warning that names the line, the handler and the message, and heartbeats that say so
                  ─▶ the loop answers: the connection is closed

While the loop answers, this costs one callback a tick. Native code that keeps the interpreter's lock stops the thread, too.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from headrace import store
from headrace.model.log import Log
from headrace.runtime.execution.actors import Actors
from headrace.runtime.settling.keeper import Keeper
from headrace.runtime.user_code import line_of

log = Log("headrace")

HEARTBEAT_INTERVAL = 3.0
"""Seconds between two heartbeats of a process whose event loop is blocked."""

WARNING_INTERVAL = 60.0
"""Seconds between two warnings about one block."""


class WatchTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Timings of a loop watch, in seconds.

    Attributes:
        tick: how long the loop may take to answer. It is shorter if a consumer has a short `ack_wait`.
        warn_after: how long the loop is blocked before that is reported.
    """

    tick: float = 0.5
    warn_after: float = 2.0


WATCH_TIMINGS = WatchTimings()


class Watched(Protocol):
    """A pipeline, as far as the watch needs it."""

    @property
    def keeper(self) -> Keeper: ...
    @property
    def actors(self) -> Actors: ...


Heartbeat = Callable[[store.Database, str], Awaitable[None]]
"""Sends a heartbeat over a connection of this thread's, with what blocks the loop."""


class LoopWatch:
    """Watches the event loop in which its context is entered, until the end of that.

    Args:
        dsn: the URL of the database.

    Attributes:
        heartbeat: see `Heartbeat`. None to send none.
        pipelines: the pipelines that run in the loop.
        blocked: for how many seconds the loop has been blocked so far.
    """

    def __init__(self, dsn: str, timings: WatchTimings = WATCH_TIMINGS) -> None:
        self.heartbeat: Heartbeat | None = None
        self.pipelines: set[Watched] = set()
        self._dsn = dsn
        self._timings = timings
        self._tick = timings.tick
        self._blocked_before = 0.0
        self._silent_since: float | None = None
        self._answered = True
        self._answered_at = 0.0
        self._stop = threading.Event()

    def __enter__(self) -> LoopWatch:
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        # A daemon, and not waited for: it may be at a call of a database that does not answer.
        threading.Thread(target=self._watch, name="headrace loop watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    @property
    def blocked(self) -> float:
        since = self._silent_since
        return self._blocked_before + (0.0 if since is None else time.monotonic() - since)

    def join(self, pipeline: Watched) -> None:
        """Watch over the leases of a pipeline, too."""
        self.pipelines.add(pipeline)
        self._tick = max(min(self._tick, pipeline.keeper.ack_wait / 6), 0.01)

    def leave(self, pipeline: Watched) -> None:
        """Leave a pipeline that has ended alone."""
        self.pipelines.discard(pipeline)

    # --- in the loop

    def _answer(self) -> None:
        self._answered_at = time.monotonic()
        self._answered = True

    # --- in the thread

    def _watch(self) -> None:
        try:
            while not self._stop.wait(self._tick):
                if self._answered:
                    self._answered = False
                    self._loop.call_soon_threadsafe(self._answer)
                else:
                    asyncio.run(self._sit_out())
        except RuntimeError as error:  # the loop was closed, as by a program that was interrupted
            log.debug("loop watch ended", error=error)

    async def _sit_out(self) -> None:
        """Do what is due until the loop answers again. This thread has waited for a tick. It counts no more than that, since
        the whole process may have been frozen."""
        since = self._silent_since = time.monotonic() - self._tick
        duties = _Duties(self)
        try:
            while not (self._answered or self._stop.is_set()):
                await duties.perform(time.monotonic() - since)
                await asyncio.sleep(self._tick)
        finally:
            # The answer may have come while this thread waited for its database.
            seconds = (self._answered_at if self._answered else time.monotonic()) - since
            self._blocked_before, self._silent_since = self._blocked_before + seconds, None
            if duties.warned and self._answered:
                log.info("event loop answers again", seconds=round(seconds, 3))
            await duties.close()

    def blocker(self) -> dict[str, Any]:
        """Return what blocks the loop, as fields of a log record: the line, and the handler with its message, if it is
        one."""
        found: dict[str, Any] = {"at": line_of(sys._current_frames().get(self._thread_id))}
        task = asyncio.current_task(self._loop)
        for pipeline in self.pipelines.copy():
            if task is not None and (delivery := pipeline.actors.delivery_of(task)) is not None:
                message = delivery.messages[0]
                found |= {
                    "consumer": message.consumer,
                    "stream": message.stream,
                    "key": message.key,
                    "seq": message.seq,
                }
        return found


class _Duties:
    """The work of a thread while the loop of its process is blocked."""

    def __init__(self, watch: LoopWatch) -> None:
        self._watch = watch
        self._database: store.Database | None = None
        self._extended: dict[Watched, float] = {}
        self._warn_at = watch._timings.warn_after
        self._beat_at = watch._timings.warn_after
        self.warned = False

    async def perform(self, blocked: float) -> None:
        """Do what is due when the loop has been blocked for so many seconds."""
        if blocked >= self._warn_at:
            self._warn_at, self.warned = blocked + WARNING_INTERVAL, True
            self._warn(blocked)
        try:
            for pipeline in self._watch.pipelines.copy():
                if blocked - self._extended.get(pipeline, 0.0) >= pipeline.keeper.ack_wait / 3:
                    self._extended[pipeline] = blocked
                    await pipeline.keeper.extend_over(await self._connected())
            if self._watch.heartbeat is not None and blocked >= self._beat_at:
                self._beat_at = blocked + HEARTBEAT_INTERVAL
                await self._watch.heartbeat(await self._connected(), _text(self._watch.blocker()))
        except Exception as error:  # it is tried again when it is due again
            log.debug("blocked process can't reach its database", error=error)

    async def close(self) -> None:
        """Close the connection."""
        if self._database is not None:
            await self._database.close()

    async def _connected(self) -> store.Database:
        if self._database is None:
            database = store.Database(self._watch._dsn, max_connections=1)
            await database.open()
            self._database = database
        return self._database

    def _warn(self, blocked: float) -> None:
        blocker = self._watch.blocker()
        hint = (
            "declare the handler with a plain `def`, which runs in a thread, or with runner='process'"
            if "consumer" in blocker
            else "run code that blocks in a thread, such as with anyio.to_thread.run_sync"
        )
        log.warning(
            "event loop blocked",
            seconds=round(blocked, 3),
            **blocker,
            hint=f"nothing else in this process runs meanwhile: {hint}",
        )


def _text(blocker: dict[str, Any]) -> str:
    """Return what blocks the loop, in words for the heartbeat. It names no key, which may be personal data."""
    at = blocker["at"] or "native code"
    if "consumer" not in blocker:
        return at
    return f"the handler of {blocker['consumer']} at {at}, with message {blocker['seq']} of {blocker['stream']}"
